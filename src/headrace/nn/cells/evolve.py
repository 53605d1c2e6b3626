"""EvolveGCN (Pareja et al., 2020): a graph convolution whose weights are the state of a GRU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headrace.nn.cells.cell import Cell, State, dense, graph
from headrace.nn.convs.init import glorot, uniform
from headrace.nn.neighbor_sum import Where, neighbor_sum


class _Evolve(Cell):
    """The state is (weights, rows): W' = GRU(input, W) by rows of W, rows = A x W'. Weights go on from snapshot to snapshot."""

    per_node = (1,)

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.in_channels = self.out_channels = in_channels
        self.initial_weight = nn.Parameter(torch.empty(in_channels, in_channels))
        self.recurrent_layer = nn.GRU(in_channels, in_channels)
        glorot(self.initial_weight)

    def fixed(self, x: Tensor, where: Where) -> Tensor:
        return neighbor_sum("gcn", x, where)

    def start(self, rows: int, like: Tensor) -> State:
        return self.initial_weight, like.new_zeros(rows, self.out_channels)

    def _evolved(self, read: Tensor, weight: Tensor) -> Tensor:
        # One step by the cell, which has the layer's bits on a CPU: on a GPU the layer would round products to TF32.
        matrix_x, matrix_w, bias_x, bias_w = self.recurrent_layer.parameters()
        return torch.gru_cell(read, weight, matrix_x, matrix_w, bias_x, bias_w)

    def rows(self, state: State) -> Tensor:
        rows: Tensor = state[1]
        return rows


class EvolveGCNO(_Evolve):
    """PyG Temporal's `EvolveGCNO`: weights evolve by themselves, W' = GRU(W, W)."""

    operators = (graph("neighbors", "x"), dense("evolution of weights", "state", "weights"), dense("product", "x", "state"))

    def ahead(self, x: Tensor, fixed: Tensor | None, where: Where | None, counts: Sequence[int]) -> list[Any]:
        assert fixed is not None
        return list(fixed.split(list(counts)))

    def step(self, ahead: Any, where: Where, state: State) -> State:
        weight = self._evolved(state[0], state[0])
        return weight, ahead @ weight


class EvolveGCNH(_Evolve):
    """PyG Temporal's `EvolveGCNH`: W' = GRU(the rows of x that score highest, times tanh of their scores, W)."""

    operators = (
        graph("neighbors", "x"),
        dense("chosen rows", "x", "weights"),
        dense("evolution of weights", "state", "weights"),
        dense("product", "x", "state"),
    )
    stacks = splits_rows = False  # the rows are chosen among all of a snapshot

    def __init__(self, in_channels: int) -> None:
        super().__init__(in_channels)
        self.score = nn.Parameter(torch.empty(1, in_channels))
        uniform(self.score, in_channels)

    def ahead(self, x: Tensor, fixed: Tensor | None, where: Where | None, counts: Sequence[int]) -> list[Any]:
        assert fixed is not None
        sizes = list(counts)
        return [(part, self._chosen(rows)) for part, rows in zip(fixed.split(sizes), x.split(sizes), strict=True)]

    def _chosen(self, x: Tensor) -> Tensor:  # [n, in] -> [in, in]
        if len(x) < self.in_channels:
            raise ValueError(f"EvolveGCNH reads the {self.in_channels} best rows of a snapshot, and one has {len(x)} nodes")
        scores = torch.tanh((x * self.score).sum(1) / self.score.norm())
        best = scores.sort(descending=True, stable=True).indices[: self.in_channels]
        return x[best] * scores[best].unsqueeze(1)

    def step(self, ahead: Any, where: Where, state: State) -> State:
        summed, chosen = ahead
        weight = self._evolved(chosen, state[0])
        return weight, summed @ weight
