"""Convolutions with PyG's names and parameters, and a stack of them."""

from headrace.nn.first_sum import FirstSum
from headrace.nn.gat import GATConv
from headrace.nn.gcn import GCNConv
from headrace.nn.gin import GINConv
from headrace.nn.gnn import GNN, Layer
from headrace.nn.order import keeping_pays, step_cost, transform_first
from headrace.nn.sage import SAGEConv

__all__ = [
    "GNN",
    "FirstSum",
    "GATConv",
    "GCNConv",
    "GINConv",
    "Layer",
    "SAGEConv",
    "keeping_pays",
    "step_cost",
    "transform_first",
]
