"""Every cell, and short sequences of snapshots: one graph, graphs that change, nodes that come and go."""

import torch

import headrace as hr
from headrace.snapshots import Group

CELLS = {
    "tgcn": lambda: hr.nn.TGCN(4, 8),
    "a3tgcn": lambda: hr.nn.A3TGCN(4, 8, 3),
    "lrgcn": lambda: hr.nn.LRGCN(4, 8),
    "gconv_gru": lambda: hr.nn.GConvGRU(4, 8, K=3),
    "gclstm": lambda: hr.nn.GCLSTM(4, 8),
    "mpnn_lstm": lambda: hr.nn.MPNNLSTM(4, 8),
    "wdgcn": lambda: hr.nn.WDGCN(4, 8, skip=True),
    "evolve_o": lambda: hr.nn.EvolveGCNO(4),
    "evolve_h": lambda: hr.nn.EvolveGCNH(4),
}
GROUPS = [Group(first, 3) for first in (0, 1, 4)]


def sequence(kind):
    torch.manual_seed(3)
    edges = [torch.randint(0, 9, (2, count)).tolist() for count in (20, 0, 30, 25, 3, 14, 40)]
    x = torch.randn(7, 10, 4)
    if kind == "one graph":
        return hr.Snapshots([edges[0]] * 7, 10, x=x)
    if kind == "changing graphs":
        return hr.Snapshots(edges, 10, x=x)
    nodes = [torch.tensor(sorted({*src, *dst, 0, 1, 2, 3})) for src, dst in edges]
    return hr.Snapshots(edges, 10, x=[x[t, ids] for t, ids in enumerate(nodes)], nodes=nodes)
