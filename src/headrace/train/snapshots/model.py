"""`SnapshotModel`: a recurrent cell and a head that forecasts numbers of nodes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.nn import A3TGCN, GCLSTM, LRGCN, MPNNLSTM, TGCN, WDGCN, Cell, EvolveGCNH, EvolveGCNO, GConvGRU
from headrace.train.snapshots.options import SnapshotOptions


class SnapshotModel(nn.Module):
    """A cell, a linear map of its rows, and with `skip` one of a node's own last values (`begin_linear`)."""

    def __init__(self, cell: Cell, *, window: int, horizon: int, skip: bool) -> None:
        super().__init__()
        self.cell = cell
        self.head = nn.Linear(cell.out_channels, horizon)
        self.skip = nn.Linear(window, horizon, bias=False) if skip else None

    def begin_linear(self, weights: Tensor) -> None:  # [window + 1, horizon]
        """Begin as the linear model of these weights, to which the cell's rows then add."""
        assert self.skip is not None
        with torch.no_grad():
            self.skip.weight.copy_(weights[:-1].t())
            self.head.bias.copy_(weights[-1])
            self.head.weight.zero_()

    def forward(self, rows: Tensor, history: Tensor) -> Tensor:  # [..., out], [..., window] -> [..., horizon]
        made: Tensor = self.head(rows)
        return made if self.skip is None else made + self.skip(history)


def make_cell(options: SnapshotOptions, features: int) -> Cell:
    """The cell that the options name."""
    hidden, name = options.hidden, options.model
    if name == "a3tgcn":
        return A3TGCN(features, hidden, options.window)
    if name == "gconvgru":
        return GConvGRU(features, hidden, options.terms)
    if name == "gclstm":
        return GCLSTM(features, hidden, options.terms)
    if name == "mpnnlstm":
        return MPNNLSTM(features, hidden, options.dropout)
    if name in ("evolvegcno", "evolvegcnh"):
        return EvolveGCNO(features) if name == "evolvegcno" else EvolveGCNH(features)
    if name in ("wdgcn", "cdgcn"):
        return WDGCN(features, hidden, skip=name == "cdgcn")
    return LRGCN(features, hidden) if name == "lrgcn" else TGCN(features, hidden)
