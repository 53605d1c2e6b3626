"""`GCNConv`: a sum over neighbors and oneself, weighted by 1 / sqrt(degree x degree)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from headrace.graph.topology.edge_rows import EdgeRows, carried, kept_with
from headrace.nn.order import gradient_of, transform_first
from headrace.pyg.layer import Fast, own_rows
from headrace.pyg.linear import linear, mapped, weights_of
from headrace.pyg.sage import is_weight
from headrace.pyg.sums import weighted_sum


class GCNConv(Fast, pyg.GCNConv):  # type: ignore[misc]
    """PyG's `GCNConv`. Without edge weights the norms are folded into the sum, and made once per `edge_index`."""

    pyg = pyg.GCNConv
    reduces = ("sum", "add")
    takes = ("x_j", "edge_weight")
    _cached_edge_index: tuple[Tensor, Tensor | None] | None

    def forward(self, x: Any, edge_index: Any, edge_weight: Any = None) -> Tensor:
        # propagate_type: (x: Tensor, edge_weight: OptTensor)
        rows = None
        if is_weight(edge_weight, edge_index, x) and (edge_weight is None or edge_weight.dim() == 1):
            if self.normalize and self.cached and self._is_usual() and isinstance(edge_index, Tensor) and isinstance(x, Tensor):
                edge_index, edge_weight = self._kept(x, edge_index, edge_weight)
            rows = self.rows_for(edge_index, x, x)
        out: Tensor
        if rows is None:
            out = super().forward(x, edge_index, edge_weight) if edge_weight is not None else self._small(x, edge_index)
            return out
        rows = rows.whole()
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        sampled = carried(edge_index) if rows.num_dst < rows.num_src else None
        if sampled is None:
            norm = self._norm(rows, edge_weight, dtype)
        else:  # rows were trimmed, and norms are of all edges of the batch, as without
            norm = self._norm(sampled.whole(), edge_weight, dtype).cut(rows)
        parts = weights_of(self.lin, x)
        if parts is None or transform_first(rows, *parts[0].shape[::-1], gradient=gradient_of(x)):
            out = norm.sum(mapped(self.lin, x), rows)
        else:
            out = linear(norm.sum(x, rows), *parts)
        return out if self.bias is None else out + self.bias

    def _small(self, x: Any, edge_index: Any) -> Tensor:
        """PyG's `forward`, for which edges with loops and norms are kept with the `edge_index`."""
        own = self.normalize and not self.cached and self.add_self_loops and self._ends(edge_index, None) is not None
        out: Tensor
        if not own or not isinstance(x, Tensor) or x.dim() != 2:
            out = super().forward(x, edge_index)
            return out
        sizes: Any = len(x), self.improved, True, self.flow, x.dtype
        looped, weight = kept_with(edge_index, f"gcn {sizes}", lambda: gcn_norm(edge_index, None, *sizes))
        out = self.propagate(looped, x=self.lin(x), edge_weight=weight)
        return out if self.bias is None else out + self.bias

    def _kept(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What PyG keeps with `cached=True`: the edges with their loops and norms, of the first call."""
        if self._cached_edge_index is None:
            sizes = x.size(self.node_dim), self.improved, self.add_self_loops
            self._cached_edge_index = gcn_norm(edge_index, edge_weight, *sizes, self.flow, x.dtype)
        edge_index, edge_weight = self._cached_edge_index
        return edge_index, edge_weight

    def _norm(self, rows: EdgeRows, weight: Tensor | None, dtype: torch.dtype) -> Norm:
        if not self.normalize or self.cached:
            return Norm(weight=None if weight is None else rows.of_edges(weight))
        loop = 0.0 if not self.add_self_loops else 2.0 if self.improved else 1.0
        if weight is None:
            return rows.derived(f"gcn norm {loop > 0} {dtype}", lambda: _folded(rows, loop > 0, dtype))
        if weight.requires_grad and torch.is_grad_enabled():
            return _weighted(rows, rows.of_edges(weight).to(dtype), loop)
        plain = weight.detach()
        return rows.derived_from(weight, f"gcn norm {loop} {dtype}", lambda: _weighted(rows, rows.of_edges(plain).to(dtype), loop))


@dataclass(frozen=True, eq=False)
class Norm:
    """Factors of a sum: of its entries, or of its sources and results; and of each target's own row, added to it."""

    weight: Tensor | None = None  # [edges]
    scale: Tensor | None = None  # [nodes], of sources
    row_scale: Tensor | None = None  # [nodes], of results
    own: Tensor | None = None  # [nodes]

    def sum(self, x: Tensor, rows: EdgeRows) -> Tensor:
        """The weighted sum over neighbors and oneself.  # [nodes, d] -> [nodes, d]"""
        out = weighted_sum(x, rows, weight=self.weight, scale=self.scale, row_scale=self.row_scale)
        return out if self.own is None else torch.addcmul(out, own_rows(x, rows), self.own.to(x.dtype).unsqueeze(1))

    def cut(self, rows: EdgeRows) -> Norm:
        """Those of the first rows alone, whose entries come first too."""
        lengths = len(rows.indices), rows.num_src, rows.num_dst, rows.num_dst
        parts = self.weight, self.scale, self.row_scale, self.own
        return Norm(*(None if part is None else part[:length] for part, length in zip(parts, lengths, strict=True)))


def _folded(rows: EdgeRows, loop: bool, dtype: torch.dtype) -> Norm:
    """Without weights, where an added loop counts as any edge (PyG's `improved` is about weights). A loop that is there stands for
    the one that would be added; it is summed with the other entries, and the own row makes up for the difference."""
    degrees = rows.degrees().to(dtype)
    if not loop:
        root = _inverse_root(degrees)
        return Norm(scale=root, row_scale=root)
    loops = torch.zeros_like(degrees).index_add_(0, rows.targets(), (rows.sources() == rows.targets()).to(dtype))
    root = _inverse_root(degrees - loops + 1)
    return Norm(scale=root, row_scale=root, own=(1 - loops) * root * root)


def _weighted(rows: EdgeRows, weight: Tensor, loop: float) -> Norm:
    """With weights, of which the gradient may be wanted. A loop that is there keeps its weight, as in PyG."""
    target, own = rows.targets(), None
    if loop:
        own = weight.new_full((rows.num_rows,), loop)
        at = (rows.sources() == target).nonzero().flatten()
        if len(at):
            own = own.index_put((target[at],), weight[at])
            weight = weight.index_fill(0, at, 0.0)
    degrees = weight.new_zeros(rows.num_rows).index_add(0, target, weight)
    root = _inverse_root(degrees if own is None else degrees + own)
    norm = root[rows.sources()] * weight * root[target]
    return Norm(weight=norm, own=None if own is None else own * root * root)


def _inverse_root(degrees: Tensor) -> Tensor:
    root = degrees.pow(-0.5)
    return root.masked_fill(root == float("inf"), 0.0)
