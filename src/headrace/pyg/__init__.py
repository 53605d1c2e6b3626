"""PyG's own layers with Headrace's kernels under them: for models that are written with PyG. Needs torch-geometric.

`accelerate(model)` changes the layers of a model in place; `headrace.pyg.SAGEConv` and the others are the same by import. What is
not sped up runs PyG's code.
"""

try:
    import torch_geometric as _  # noqa: F401
except ImportError as _error:
    raise ImportError("headrace.pyg needs PyG: pip install torch-geometric (or headrace[pyg])") from _error

from headrace.pyg.accelerate import Accelerated, Layer, accelerate
from headrace.pyg.gat import GATConv, GATv2Conv
from headrace.pyg.gcn import GCNConv
from headrace.pyg.gin import GINConv, GINEConv
from headrace.pyg.rgcn import RGCNConv
from headrace.pyg.sage import GraphConv, SAGEConv
from headrace.pyg.transformer import TransformerConv

__all__ = [
    "Accelerated",
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "GINEConv",
    "GraphConv",
    "Layer",
    "RGCNConv",
    "SAGEConv",
    "TransformerConv",
    "accelerate",
]
