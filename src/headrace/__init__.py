"""Headrace: graph neural networks and graph embeddings, wherever the data fits."""

from headrace import kernels, sample, store
from headrace.graph import Dataset, Graph, generate, load
from headrace.graph import open_dataset as open

__version__ = "0.1.0"

__all__ = ["Dataset", "Graph", "generate", "kernels", "load", "open", "sample", "store"]
