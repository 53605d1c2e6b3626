"""Chebyshev filters (Defferrard et al., 2016): polynomials of the graph's Laplacian, each with a map."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.nn.convs.init import glorot, zeros
from headrace.nn.neighbor_sum import Where, chebyshev

_MOST_TERMS = 10_000  # each has a map of its own


class ChebConv(nn.Module):
    """PyG's `ChebConv` with symmetric normalization: the same parameters and names. K terms take K - 1 sums.

    >>> import headrace as hr, torch
    >>> graph = hr.Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> hr.nn.ChebConv(8, 4, K=2)(torch.randn(3, 8), graph).shape
    torch.Size([3, 4])
    """

    def __init__(self, in_channels: int, out_channels: int, K: int, bias: bool = True) -> None:  # noqa: N803 - PyG's name
        super().__init__()
        if not 1 <= K <= _MOST_TERMS:
            raise ValueError(f"K counts the terms of the filter and must be from 1 to {_MOST_TERMS:,}, not {K}")
        self.in_channels, self.out_channels, self.K = in_channels, out_channels, K
        self.lins = nn.ModuleList([nn.Linear(in_channels, out_channels, bias=False) for _ in range(K)])
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for lin in self.lins:
            assert isinstance(lin, nn.Linear)
            glorot(lin.weight)
        zeros(self.bias)

    def matrix(self) -> Tensor:
        """The maps of all terms, for what `chebyshev` gives.  # -> [out, K * in]"""
        return torch.cat([next(lin.parameters()) for lin in self.lins], dim=1)

    def forward(self, x: Tensor, where: Where) -> Tensor:
        return F.linear(chebyshev(x, where, self.K), self.matrix(), self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, K={self.K}"
