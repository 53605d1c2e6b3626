"""`SAGEConv` and `GraphConv`: a map of the reduced neighbors plus a map of oneself."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor

from headrace.graph.topology.edge_rows import EdgeRows
from headrace.nn.order import gradient_of, step_cost
from headrace.pyg.layer import Fast, own_rows
from headrace.pyg.linear import linear, mapped, two_maps, weights_of
from headrace.pyg.sums import padded, reduced


class SAGEConv(Fast, pyg.SAGEConv):  # type: ignore[misc]
    """PyG's `SAGEConv`; sum, mean and max over neighbors are one kernel."""

    pyg = pyg.SAGEConv

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        # propagate_type: (x: OptPairTensor)
        source, own = (x, x) if isinstance(x, Tensor) else x
        rows = self.rows_for(edge_index, source, own, size)
        if rows is None:
            fallback: Tensor = super().forward(x, edge_index, size)
            return fallback
        if self.project and hasattr(self, "lin"):
            source = mapped(self.lin, source).relu()
        root = self.lin_r if self.root_weight and own is not None else None
        out = combined(source, own_rows(own, rows), rows, self.aggr, neighbors=self.lin_l, root=root)
        return F.normalize(out, p=2.0, dim=-1) if self.normalize else out


class GraphConv(Fast, pyg.GraphConv):  # type: ignore[misc]
    """PyG's `GraphConv`; sum, mean and max over neighbors, weighted or not, are one kernel."""

    pyg = pyg.GraphConv
    takes = ("x_j", "edge_weight")

    def forward(self, x: Any, edge_index: Any, edge_weight: Any = None, size: Any = None) -> Tensor:
        # propagate_type: (x: OptPairTensor, edge_weight: OptTensor)
        source, own = (x, x) if isinstance(x, Tensor) else x
        rows = self.rows_for(edge_index, source, own, size) if is_weight(edge_weight, edge_index, source) else None
        if rows is None:
            fallback: Tensor = super().forward(x, edge_index, edge_weight, size)
            return fallback
        weight = None if edge_weight is None else rows.of_edges(edge_weight.reshape(-1))
        root = self.lin_root if own is not None else None
        return combined(source, own_rows(own, rows), rows, self.aggr, neighbors=self.lin_rel, root=root, weight=weight)


def is_weight(weight: Any, edge_index: Any, x: Any) -> bool:
    """Whether `weight` is None or a number per edge of the type of `x`."""
    if weight is None:
        return True
    if not isinstance(weight, Tensor) or not isinstance(x, Tensor) or not isinstance(edge_index, Tensor):
        return False
    return weight.numel() == edge_index.shape[-1] and weight.dtype == x.dtype and weight.device == x.device


def combined(
    source: Tensor, own: Any, rows: EdgeRows, reduce: str, *, neighbors: Any, root: Any, weight: Tensor | None = None
) -> Tensor:
    """`neighbors(reduced source) + root(own)`, in whichever order costs least.  # -> [num_dst, out]"""
    parts = weights_of(neighbors, source)
    if parts is None:  # a module with hooks, say, sees the whole of what it is given
        out: Tensor = neighbors(reduced(source, rows.whole(), reduce, weight=weight))
        return out if root is None else out + mapped(root, own)
    matrix, bias = parts
    if reduce != "max" and _map_first(source, rows, matrix):
        summed = reduced(linear(source, matrix), rows.whole(), reduce, weight=weight)
        if root is None:
            return summed if bias is None else summed + bias
        return summed + _with_bias(root, own, bias)
    summed = reduced(source, rows, reduce, weight=weight)
    own_parts = None if root is None else weights_of(root, own)
    if own_parts is not None and own_parts[1] is None:
        return two_maps(own, own_parts[0], summed, matrix, bias)
    out = padded(linear(summed, matrix), rows.num_dst)
    out = out if bias is None else out + bias
    return out if root is None else out + root(own)


def _with_bias(root: Any, own: Tensor, bias: Tensor | None) -> Tensor:
    parts = weights_of(root, own)
    if parts is not None and parts[1] is None:
        return linear(own, parts[0], bias)
    out: Tensor = root(own)
    return out if bias is None else out + bias


def _map_first(source: Tensor, rows: EdgeRows, matrix: Tensor) -> bool:
    narrow, wide = matrix.shape
    where, gradient = rows.derived("own rows", lambda: _Sizes(rows)), gradient_of(source)
    return step_cost(where, wide, narrow, "transform", gradient) < step_cost(where, wide, narrow, "aggregate", gradient)


class _Sizes:
    """What the cost of an order is computed from: only targets that have a row are summed and mapped."""

    first = 0

    def __init__(self, rows: EdgeRows) -> None:
        self.indptr, self.indices, self.num_src, self.num_dst = rows.indptr, rows.indices, rows.num_src, rows.num_rows
