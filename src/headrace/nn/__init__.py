"""Convolutions with PyG's names and parameters, a stack of them, and decoders of edges."""

from headrace.nn.cells import A3TGCN, GCLSTM, LRGCN, MPNNLSTM, TGCN, WDGCN, Cell, EvolveGCNH, EvolveGCNO, GConvGRU, Operator
from headrace.nn.cheb import ChebConv
from headrace.nn.first_sum import FirstSum
from headrace.nn.gat import GATConv
from headrace.nn.gcn import GCNConv
from headrace.nn.gin import GINConv
from headrace.nn.gnn import GNN, Layer
from headrace.nn.links.decoders import DECODERS, RESCAL, ComplEx, Decoder, DistMult, Dot, register_decoder
from headrace.nn.links.distance_decoders import RotatE, TransE
from headrace.nn.links.shared_softmax import shared_softmax_loss
from headrace.nn.order import keeping_pays, step_cost, transform_first
from headrace.nn.relational import RelationalConv
from headrace.nn.sage import SAGEConv
from headrace.nn.split import ByNode, LayerSplit, Split, SplitError

__all__ = [
    "A3TGCN",
    "DECODERS",
    "GCLSTM",
    "GNN",
    "LRGCN",
    "MPNNLSTM",
    "RESCAL",
    "TGCN",
    "WDGCN",
    "ByNode",
    "Cell",
    "ChebConv",
    "ComplEx",
    "Decoder",
    "DistMult",
    "Dot",
    "EvolveGCNH",
    "EvolveGCNO",
    "FirstSum",
    "GATConv",
    "GCNConv",
    "GConvGRU",
    "GINConv",
    "Layer",
    "LayerSplit",
    "Operator",
    "RelationalConv",
    "RotatE",
    "SAGEConv",
    "Split",
    "SplitError",
    "TransE",
    "keeping_pays",
    "register_decoder",
    "shared_softmax_loss",
    "step_cost",
    "transform_first",
]
