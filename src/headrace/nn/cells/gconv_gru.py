"""GConvGRU (Seo et al., 2018): a GRU whose maps are Chebyshev filters, of x and of the state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.nn.cells.cell import Cell, State, dense, graph
from headrace.nn.convs.cheb import ChebConv
from headrace.nn.neighbor_sum import Steps, Where, asking_chebyshev, chebyshev, completed

_GATES = "zrh"


class GConvGRU(Cell):
    """PyG Temporal's `GConvGRU`: the same parameters and names. The filters of x are one of K - 1 sums, those of the state two."""

    operators = (
        graph("neighbors", "x"),
        graph("neighbors' states", "state"),
        graph("neighbors' reset states", "state"),
        dense("gates of x", "x", "weights"),
        dense("gates of state", "state", "weights"),
    )

    def __init__(self, in_channels: int, out_channels: int, K: int = 2) -> None:  # noqa: N803 - PyG's name
        super().__init__()
        self.in_channels, self.out_channels, self.K = in_channels, out_channels, K
        for gate in _GATES:
            self.add_module(f"conv_x_{gate}", ChebConv(in_channels, out_channels, K))
            self.add_module(f"conv_h_{gate}", ChebConv(out_channels, out_channels, K))

    def fixed(self, x: Tensor, where: Where) -> Tensor:
        return chebyshev(x, where, self.K)

    def ahead(self, x: Tensor, fixed: Tensor | None, where: Where | None, counts: Sequence[int]) -> list[Any]:
        assert fixed is not None
        weight = torch.cat([getattr(self, f"conv_x_{gate}").matrix() for gate in _GATES])
        bias = torch.cat([getattr(self, f"conv_x_{gate}").bias + getattr(self, f"conv_h_{gate}").bias for gate in _GATES])
        return list(F.linear(fixed, weight, bias).split(list(counts)))

    def step(self, ahead: Any, where: Where, state: State) -> State:
        return completed(self.stepwise(ahead, where, state))

    def stepwise(self, ahead: Any, where: Where, state: State) -> Steps[State]:
        (hidden,) = state
        wide, filters = self.out_channels, [getattr(self, f"conv_h_{gate}").matrix() for gate in _GATES]
        both = F.linear((yield from asking_chebyshev(hidden, where, self.K)), torch.cat(filters[:2]))
        z, r = torch.sigmoid(ahead[:, : 2 * wide] + both).chunk(2, dim=1)
        reset = yield from asking_chebyshev(r * hidden, where, self.K)
        candidate = torch.tanh(ahead[:, 2 * wide :] + F.linear(reset, filters[2]))
        return (torch.lerp(candidate, hidden, z),)
