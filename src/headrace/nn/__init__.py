"""Convolutions with PyG's names and parameters, a stack of them, decoders of edges, and temporal models."""

from headrace.nn.cells import A3TGCN, GCLSTM, LRGCN, MPNNLSTM, TGCN, WDGCN, Cell, EvolveGCNH, EvolveGCNO, GConvGRU, Operator
from headrace.nn.convs.cheb import ChebConv
from headrace.nn.convs.gat import GATConv
from headrace.nn.convs.gcn import GCNConv
from headrace.nn.convs.gin import GINConv
from headrace.nn.convs.relational import RelationalConv
from headrace.nn.convs.sage import SAGEConv
from headrace.nn.first_sum import FirstSum
from headrace.nn.gnn import GNN, Layer
from headrace.nn.links.decoders import DECODERS, RESCAL, ComplEx, Decoder, DistMult, Dot, register_decoder
from headrace.nn.links.distance_decoders import RotatE, TransE
from headrace.nn.links.shared_softmax import shared_softmax_loss
from headrace.nn.order import keeping_pays, step_cost, transform_first
from headrace.nn.split import ByNode, LayerSplit, Split, SplitError
from headrace.nn.tgn.event_scores import EventScores, event_losses
from headrace.nn.tgn.tgn import TGN
from headrace.nn.tgn.time_attention import TimeAttention
from headrace.nn.tgn.time_encoding import TimeEncoding

__all__ = [
    "A3TGCN",
    "DECODERS",
    "GCLSTM",
    "GNN",
    "LRGCN",
    "MPNNLSTM",
    "RESCAL",
    "TGCN",
    "TGN",
    "WDGCN",
    "ByNode",
    "Cell",
    "ChebConv",
    "ComplEx",
    "Decoder",
    "DistMult",
    "Dot",
    "EventScores",
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
    "TimeAttention",
    "TimeEncoding",
    "TransE",
    "event_losses",
    "keeping_pays",
    "register_decoder",
    "shared_softmax_loss",
    "step_cost",
    "transform_first",
]
