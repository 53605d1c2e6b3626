"""T-GCN (Zhao et al., 2019) and A3T-GCN (Bai et al., 2021): a GRU whose input is a graph convolution of x."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.nn.cells.cell import Cell, State, dense, graph
from headrace.nn.convs.gcn import GCNConv
from headrace.nn.neighbor_sum import Where, neighbor_sum

_GATES = "zrh"


class TGCN(Cell):
    """PyG Temporal's `TGCN`: the same parameters and names.

    z, r = sigma(L [GCN(x) || H]), c = tanh(L [GCN(x) || r H]), H' = z H + (1 - z) c. The three convolutions are one sum. Both maps
    that follow it are linear, so their product is applied: x never becomes three times `out_channels` wide before that.

    >>> import headrace as hr, torch
    >>> cell, graph = hr.nn.TGCN(2, 8), hr.Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> state = cell(torch.randn(3, 2), graph)
    >>> cell.rows(cell(torch.randn(3, 2), graph, state)).shape
    torch.Size([3, 8])
    """

    operators = (graph("neighbors", "x"), dense("gates of x", "x", "weights"), dense("gates of state", "state", "weights"))

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        for gate in _GATES:
            self.add_module(f"conv_{gate}", GCNConv(in_channels, out_channels))
            self.add_module(f"linear_{gate}", nn.Linear(2 * out_channels, out_channels))

    def fixed(self, x: Tensor, where: Where) -> Tensor:
        return neighbor_sum("gcn", x, where)

    def ahead(self, x: Tensor, fixed: Tensor | None, where: Where | None, counts: Sequence[int]) -> list[Any]:
        assert fixed is not None
        weights, biases = zip(*(self._of_x(gate) for gate in _GATES), strict=True)
        return list(F.linear(fixed, torch.cat(weights), torch.cat(biases)).split(list(counts)))

    def _of_x(self, gate: str) -> tuple[Tensor, Tensor]:
        conv, linear = getattr(self, f"conv_{gate}"), getattr(self, f"linear_{gate}")
        left = linear.weight[:, : self.out_channels]
        return left @ conv.lin.weight, left @ conv.bias + linear.bias

    def step(self, ahead: Any, where: Where, state: State) -> State:
        (hidden,) = state
        wide = self.out_channels
        both = torch.cat([self.linear_z.weight[:, wide:], self.linear_r.weight[:, wide:]])  # type: ignore[union-attr, index]
        z, r = torch.sigmoid(ahead[:, : 2 * wide] + F.linear(hidden, both)).chunk(2, dim=1)
        candidate = torch.tanh(ahead[:, 2 * wide :] + F.linear(r * hidden, self.linear_h.weight[:, wide:]))  # type: ignore[union-attr, index]
        return (torch.lerp(candidate, hidden, z),)


class A3TGCN(TGCN):
    """A T-GCN whose rows are a mean over the window's states, by learnt attention to each of `periods` snapshots.

    recurrent: whether a snapshot's state goes on from that of the one before, as in the paper; PyG Temporal's `A3TGCN` begins each
        from the initial state.
    """

    per_node = (0, 1)

    def __init__(self, in_channels: int, out_channels: int, periods: int, *, recurrent: bool = True) -> None:
        super().__init__(in_channels, out_channels)
        self.periods, self.recurrent = periods, recurrent
        self.attention = nn.Parameter(torch.rand(periods))

    def start(self, rows: int, like: Tensor) -> State:
        zeros = like.new_zeros(rows, self.out_channels)
        return zeros, zeros, 0

    def step(self, ahead: Any, where: Where, state: State) -> State:
        hidden, mean, number = state
        if number >= self.periods:
            raise ValueError(f"this A3TGCN attends to {self.periods} snapshots, and was given one more: pass periods=window")
        (new,) = super().step(ahead, where, (hidden,))
        mean = mean + self.attention.softmax(0)[number] * new
        return (new if self.recurrent else hidden), mean, number + 1

    def rows(self, state: State) -> Tensor:
        mean: Tensor = state[1]
        return mean
