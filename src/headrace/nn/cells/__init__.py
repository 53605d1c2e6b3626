"""Recurrent cells over snapshot sequences, with PyG Temporal's names: `state = cell(x, graph, state)`."""

from headrace.nn.cells.cell import Cell, Operator, State
from headrace.nn.cells.evolve import EvolveGCNH, EvolveGCNO
from headrace.nn.cells.gconv_gru import GConvGRU
from headrace.nn.cells.lstm_cells import GCLSTM, LRGCN, MPNNLSTM, WDGCN
from headrace.nn.cells.tgcn import A3TGCN, TGCN

__all__ = [
    "A3TGCN",
    "GCLSTM",
    "LRGCN",
    "MPNNLSTM",
    "TGCN",
    "WDGCN",
    "Cell",
    "EvolveGCNH",
    "EvolveGCNO",
    "GConvGRU",
    "Operator",
    "State",
]
