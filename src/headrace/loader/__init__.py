"""Loaders: batches for training, with PyG's keywords."""

from headrace.loader.batch import Batch, MovedBatch, WholeBatch
from headrace.loader.neighbor import NeighborLoader

__all__ = ["Batch", "MovedBatch", "NeighborLoader", "WholeBatch"]
