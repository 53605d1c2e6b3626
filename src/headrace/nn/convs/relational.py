"""A relational layer (R-GCN, Schlichtkrull et al., 2018) over edges in and edges out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.nn.convs.init import glorot, zeros
from headrace.nn.neighbor_sum import Where, relations


class RelationalConv(nn.Module):
    """PyG's `RGCNConv` of two relations, edges in (0) and edges out (1): the same parameters and names.

    num_bases: relations share that many matrices, each relation with its own mixture; None for a matrix each.
    """

    def __init__(self, in_channels: int, out_channels: int, num_bases: int | None = None) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.weight = nn.Parameter(torch.empty(num_bases or 2, in_channels, out_channels))
        self.comp = nn.Parameter(torch.empty(2, num_bases)) if num_bases else None
        self.root = nn.Parameter(torch.empty(in_channels, out_channels))
        self.bias = nn.Parameter(torch.empty(out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        glorot(self.weight)
        glorot(self.root)
        zeros(self.bias)
        if self.comp is not None:
            glorot(self.comp)

    def matrix(self) -> Tensor:
        """The maps of the own row and both relations, for what `relations` gives.  # -> [out, 3 * in]"""
        weight = self.weight if self.comp is None else torch.einsum("rb,bio->rio", self.comp, self.weight)
        return torch.cat([self.root, weight[0], weight[1]]).t()

    def forward(self, x: Tensor, where: Where) -> Tensor:
        return F.linear(relations(x, where), self.matrix(), self.bias)
