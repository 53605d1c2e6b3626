"""`GINConv` and `GINEConv`: a network of the sum over neighbors and oneself."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor

from headrace.pyg.layer import Fast, own_rows
from headrace.pyg.linear import mapped
from headrace.pyg.sums import edgewise, inverse_degrees, reduced, segment_sum, take_sources

_IN_PLACE = 1 << 20  # elements of messages


class GINConv(Fast, pyg.GINConv):  # type: ignore[misc]
    """PyG's `GINConv`; sum, mean and max over neighbors are one kernel."""

    pyg = pyg.GINConv

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        # propagate_type: (x: OptPairTensor)
        source, own = (x, x) if isinstance(x, Tensor) else x
        rows = self.rows_for(edge_index, source, own, size)
        out: Tensor
        if rows is None:
            out = super().forward(x, edge_index, size)
            return out
        out = self.nn(with_own(reduced(source, rows.whole(), self.aggr), own_rows(own, rows), self.eps))
        return out


class GINEConv(Fast, pyg.GINEConv):  # type: ignore[misc]
    """PyG's `GINEConv`. Messages are built, as they must be; reading neighbors, summing, and both gradients are kernels."""

    pyg = pyg.GINEConv
    reduces = ("sum", "add", "mean")
    takes = ("x_j", "edge_attr")
    least = 1 << 22

    def forward(self, x: Any, edge_index: Any, edge_attr: Any = None, size: Any = None) -> Tensor:
        # propagate_type: (x: OptPairTensor, edge_attr: OptTensor)
        source, own = (x, x) if isinstance(x, Tensor) else x
        rows = self.rows_for(edge_index, source, own, size) if isinstance(edge_attr, Tensor) else None
        out: Tensor
        if rows is None or not self._fits(edge_attr, edge_index, source):
            out = super().forward(x, edge_index, edge_attr, size)
            return out
        rows = edgewise(rows.whole())
        edge_attr = edge_attr[: len(rows.indices)]  # of all edges, unless rows were trimmed
        attributes = edge_attr if self.lin is None else mapped(self.lin, edge_attr)
        out = segment_sum((take_sources(source, rows) + attributes).relu_(), rows)
        if self.aggr == "mean":
            out = out * inverse_degrees(rows, out.dtype).to(out.dtype).unsqueeze(1)
        out = self.nn(with_own(out, own_rows(own, rows), self.eps))
        return out

    def messages(self, **given: Any) -> Tensor:
        """PyG's, in place while they are few: `x_j` was made for them. Of a sampled batch that took longer than new tensors."""
        x, edge_attr = given["x_j"], given["edge_attr"]
        if self.lin is not None or type(edge_attr) is not Tensor or edge_attr.shape != x.shape or edge_attr.dtype != x.dtype:
            return super().messages(**given)
        if x.numel() > _IN_PLACE:
            return super().messages(**given)
        messages: Tensor = x.add_(edge_attr).relu_()
        return messages

    def _fits(self, edge_attr: Tensor, edge_index: Tensor, source: Tensor) -> bool:
        if edge_attr.dim() != 2 or len(edge_attr) != edge_index.shape[1] or edge_attr.dtype != source.dtype:
            return False
        return self.lin is not None or edge_attr.shape[1] == source.shape[1]


def with_own(out: Tensor, own: Tensor | None, eps: Tensor) -> Tensor:
    """The sum with (1 + eps) times oneself."""
    return out if own is None else torch.addcmul(out, own, (1 + eps).to(out.dtype))
