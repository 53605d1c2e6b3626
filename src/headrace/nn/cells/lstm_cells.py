"""Cells with a long memory: GC-LSTM, LRGCN, MPNN-LSTM, WD-GCN and CD-GCN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.nn.cells.cell import Cell, State, dense, graph
from headrace.nn.convs.cheb import ChebConv
from headrace.nn.convs.gcn import GCNConv
from headrace.nn.convs.init import glorot
from headrace.nn.convs.relational import RelationalConv
from headrace.nn.neighbor_sum import Steps, Where, asking_chebyshev, asking_relations, completed, neighbor_sum, relations

_GATES = "ifco"


def _lstm(gates: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """New state and memory, from the gates in, forget, candidate and out.  # [n, 4 h], [n, h]"""
    take, forget, candidate, give = gates.chunk(4, dim=1)
    memory = torch.sigmoid(forget) * memory + torch.sigmoid(take) * torch.tanh(candidate)
    return torch.sigmoid(give) * torch.tanh(memory), memory


class _WithMemory(Cell):
    per_node = (0, 1)

    def start(self, rows: int, like: Tensor) -> State:
        zeros = like.new_zeros(rows, self.out_channels)
        return zeros, zeros


class GCLSTM(_WithMemory):
    """PyG Temporal's `GCLSTM` (Chen et al., 2018): gates `x W + ChebConv(H) + b`. The four filters are one of K - 1 sums.

    The sums read the state: none can run ahead.
    """

    operators = (graph("neighbors' states", "state"), dense("gates of x", "x", "weights"), dense("gates", "state", "weights"))

    def __init__(self, in_channels: int, out_channels: int, K: int = 2) -> None:  # noqa: N803 - PyG's name
        super().__init__()
        self.in_channels, self.out_channels, self.K = in_channels, out_channels, K
        for gate in _GATES:
            self.add_module(f"conv_{gate}", ChebConv(out_channels, out_channels, K))
            self.register_parameter(f"W_{gate}", nn.Parameter(torch.empty(in_channels, out_channels)))
            self.register_parameter(f"b_{gate}", nn.Parameter(torch.zeros(1, out_channels)))
            glorot(getattr(self, f"W_{gate}"))

    def ahead(self, x: Tensor, fixed: Tensor | None, where: Where | None, counts: Sequence[int]) -> list[Any]:
        weight = torch.cat([getattr(self, f"W_{gate}") for gate in _GATES], dim=1)
        bias = torch.cat([getattr(self, f"b_{gate}")[0] + getattr(self, f"conv_{gate}").bias for gate in _GATES])
        return list(torch.addmm(bias, x, weight).split(list(counts)))

    def step(self, ahead: Any, where: Where, state: State) -> State:
        return completed(self.stepwise(ahead, where, state))

    def stepwise(self, ahead: Any, where: Where, state: State) -> Steps[State]:
        hidden, memory = state
        filtered = yield from asking_chebyshev(hidden, where, self.K)
        weight = torch.cat([getattr(self, f"conv_{gate}").matrix() for gate in _GATES])
        return _lstm(ahead + F.linear(filtered, weight), memory)


class LRGCN(_WithMemory):
    """PyG Temporal's `LRGCN` (Li et al., 2019) over the relations edge in and edge out: gates `R-GCN(x) + R-GCN(H)`."""

    operators = (
        graph("neighbors in", "x"),
        graph("neighbors out", "x"),
        graph("neighbors' states in", "state"),
        graph("neighbors' states out", "state"),
        dense("gates of x", "x", "weights"),
        dense("gates", "state", "weights"),
    )

    def __init__(self, in_channels: int, out_channels: int, num_bases: int | None = None) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        for gate in _GATES:
            self.add_module(f"conv_x_{gate}", RelationalConv(in_channels, out_channels, num_bases))
            self.add_module(f"conv_h_{gate}", RelationalConv(out_channels, out_channels, num_bases))

    def fixed(self, x: Tensor, where: Where) -> Tensor:
        return relations(x, where)

    def ahead(self, x: Tensor, fixed: Tensor | None, where: Where | None, counts: Sequence[int]) -> list[Any]:
        assert fixed is not None
        weight = torch.cat([getattr(self, f"conv_x_{gate}").matrix() for gate in _GATES])
        bias = torch.cat([getattr(self, f"conv_x_{gate}").bias + getattr(self, f"conv_h_{gate}").bias for gate in _GATES])
        return list(F.linear(fixed, weight, bias).split(list(counts)))

    def step(self, ahead: Any, where: Where, state: State) -> State:
        return completed(self.stepwise(ahead, where, state))

    def stepwise(self, ahead: Any, where: Where, state: State) -> Steps[State]:
        hidden, memory = state
        summed = yield from asking_relations(hidden, where)
        weight = torch.cat([getattr(self, f"conv_h_{gate}").matrix() for gate in _GATES])
        return _lstm(ahead + F.linear(summed, weight), memory)


class WDGCN(_WithMemory):
    """WD-GCN (Manessi et al., 2020): a graph convolution of each snapshot, then an LSTM per node. `skip` makes it CD-GCN, whose
    LSTM reads x beside the convolution."""

    operators = (graph("neighbors", "x"), dense("convolution", "x", "weights"), dense("gates", "state", "weights"))

    def __init__(self, in_channels: int, out_channels: int, *, skip: bool = False) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.skip = in_channels, out_channels, skip
        self.conv = GCNConv(in_channels, out_channels)
        self.lstm = nn.LSTMCell(out_channels + (in_channels if skip else 0), out_channels)

    def fixed(self, x: Tensor, where: Where) -> Tensor:
        return neighbor_sum("gcn", x, where)

    def ahead(self, x: Tensor, fixed: Tensor | None, where: Where | None, counts: Sequence[int]) -> list[Any]:
        assert fixed is not None
        rows = torch.relu(F.linear(fixed, self.conv.lin.weight, self.conv.bias))
        return list((torch.cat([x, rows], dim=1) if self.skip else rows).split(list(counts)))

    def step(self, ahead: Any, where: Where, state: State) -> State:
        hidden, memory = self.lstm(ahead, state)
        return hidden, memory


class MPNNLSTM(Cell):
    """MPNN-LSTM (Panagopoulos et al., 2021): two convolutions with ReLU, norm and dropout, side by side into two LSTMs per node.

    The norm is over the nodes of each snapshot by its own statistics, in training and after (PyG Temporal's is over a whole
    window): so snapshots stay independent of one another. `rows` are the states of both LSTMs.
    """

    operators = (
        graph("neighbors", "x"),
        graph("neighbors' rows", "x", "weights"),
        dense("convolutions", "x", "weights"),
        dense("gates", "state", "weights"),
    )
    per_node = (0, 1, 2, 3)
    stacks = splits_rows = False  # the norm is over all rows of a snapshot

    def __init__(self, in_channels: int, out_channels: int, dropout: float = 0.0) -> None:
        super().__init__()
        if out_channels % 2:
            raise ValueError(f"rows of an MPNNLSTM are the states of two LSTMs: out_channels must be even, not {out_channels}")
        half = out_channels // 2
        self.in_channels, self.out_channels, self.hidden, self.dropout = in_channels, out_channels, half, dropout
        self.conv_1, self.conv_2 = GCNConv(in_channels, half), GCNConv(half, half)
        self.norm_1, self.norm_2 = (nn.BatchNorm1d(half, track_running_stats=False) for _ in range(2))
        self.lstm_1, self.lstm_2 = nn.LSTMCell(2 * half, half), nn.LSTMCell(half, half)

    def fixed(self, x: Tensor, where: Where) -> Tensor:
        return neighbor_sum("gcn", x, where)

    def ahead(self, x: Tensor, fixed: Tensor | None, where: Where | None, counts: Sequence[int]) -> list[Any]:
        assert fixed is not None
        assert where is not None
        first = self._normed(F.linear(fixed, self.conv_1.lin.weight, self.conv_1.bias), self.norm_1, counts)
        summed = neighbor_sum("gcn", first, where)
        second = self._normed(F.linear(summed, self.conv_2.lin.weight, self.conv_2.bias), self.norm_2, counts)
        return list(torch.cat([first, second], dim=1).split(list(counts)))

    def _normed(self, rows: Tensor, norm: nn.Module, counts: Sequence[int]) -> Tensor:
        parts = [norm(part) if len(part) > 1 else part for part in torch.relu(rows).split(list(counts))]
        return F.dropout(torch.cat(parts), self.dropout, self.training)

    def start(self, rows: int, like: Tensor) -> State:
        return tuple(like.new_zeros(rows, self.hidden) for _ in range(4))

    def step(self, ahead: Any, where: Where, state: State) -> State:
        first, second = self.lstm_1(ahead, state[:2]), None
        second = self.lstm_2(first[0], state[2:])
        return (*first, *second)

    def rows(self, state: State) -> Tensor:
        return torch.cat([state[0], state[2]], dim=1)
