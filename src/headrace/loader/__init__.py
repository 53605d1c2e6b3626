"""Loaders: batches for training, with PyG's keywords."""

from headrace.loader.batch import Batch, MovedBatch
from headrace.loader.hetero import HeteroBatch, HeteroNeighborLoader
from headrace.loader.hetero_link import HeteroLinkBatch, HeteroLinkNeighborLoader
from headrace.loader.link import LinkNeighborLoader
from headrace.loader.link_batch import LinkBatch, Links, MovedLinkBatch
from headrace.loader.neighbor import NeighborLoader
from headrace.loader.shard import Shard
from headrace.loader.whole import WholeBatch
from headrace.loader.zip import ZipLoader

__all__ = [
    "Batch",
    "HeteroBatch",
    "HeteroLinkBatch",
    "HeteroLinkNeighborLoader",
    "HeteroNeighborLoader",
    "LinkBatch",
    "LinkNeighborLoader",
    "Links",
    "MovedBatch",
    "MovedLinkBatch",
    "NeighborLoader",
    "Shard",
    "WholeBatch",
    "ZipLoader",
]
