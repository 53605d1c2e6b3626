"""`RGCNConv`: a sum or mean over neighbors for each relation, each with its own map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric
import torch_geometric.nn as pyg
from torch import Tensor

from headrace.graph.topology.edge_rows import EdgeRows
from headrace.pyg.layer import Fast, own_rows
from headrace.pyg.sums import reduced, weighted_sum


class RGCNConv(Fast, pyg.RGCNConv):  # type: ignore[misc]
    """PyG's `RGCNConv`. One kernel sums for all relations, into rows for the pairs of target and relation that have edges."""

    pyg = pyg.RGCNConv
    least, least_on_gpu = 0, 1 << 20
    takes = ()  # PyG's own: it propagates for each relation

    @classmethod
    def refusal(cls, conv: Any) -> str | None:
        """Why a layer of PyG's class always takes PyG's own path, or None."""
        if (
            torch_geometric.typing.WITH_SEGMM
            and torch_geometric.backend.use_segment_matmul is not False
            and conv.num_blocks is None
        ):
            return "pyg-lib is installed, with whose segment_matmul PyG averages otherwise (backend.use_segment_matmul = False)"
        return super().refusal(conv)

    def forward(self, x: Any, edge_index: Any, edge_type: Any = None) -> Tensor:
        # propagate_type: (x: Tensor, edge_type_ptr: OptTensor)
        source, own = x if isinstance(x, tuple) else (x, x)
        typed = isinstance(edge_type, Tensor) and isinstance(edge_index, Tensor) and edge_type.shape == edge_index.shape[1:]
        rows = self.rows_for(edge_index, source, own) if typed and self.refusal(self) is None else None
        out: Tensor
        if rows is None or not self._fits(source, own):
            out = super().forward(x, edge_index, edge_type)
            return out
        rows = rows.whole()
        make = lambda: _pairs(rows, edge_type, self.num_relations)  # noqa: E731
        pairs = rows.derived_from(edge_type, f"pairs of {self.num_relations} relations", make)
        if pairs is None:
            out = super().forward(x, edge_index, edge_type)
            return out
        summed = reduced(source, pairs.sums, self.aggr)
        out = weighted_sum(self._mapped(summed, pairs), pairs.together)
        if self.root is not None:
            out = out + own_rows(own, rows) @ self.root
        return out if self.bias is None else out + self.bias

    def _fits(self, source: Tensor, own: Tensor) -> bool:
        if torch.is_autocast_enabled(source.device.type):
            return False
        return bool(source.dtype == own.dtype == self.weight.dtype == torch.get_default_dtype())  # which PyG's sum begins with

    def _mapped(self, summed: Tensor, pairs: _Pairs) -> Tensor:
        """Each relation's rows times its weight.  # [pairs, in] -> [pairs, out]"""
        weight = self.weight
        if self.num_bases is not None:
            shape = self.num_relations, self.in_channels_l, self.out_channels
            weight = (self.comp @ weight.view(self.num_bases, -1)).view(shape)
        parts = []
        for relation, part in zip(pairs.relations, summed.split(pairs.counts), strict=True):
            if self.num_blocks is None:
                parts.append(part @ weight[relation])
            else:
                blocks = part.view(len(part), weight.shape[1], weight.shape[2])
                parts.append(torch.einsum("abc,bcd->abd", blocks, weight[relation]).reshape(len(part), self.out_channels))
        return torch.cat(parts)


@dataclass(frozen=True, eq=False)
class _Pairs:
    """The pairs of relation and target that have edges, by relation."""

    sums: EdgeRows  # from the sources to the pairs
    together: EdgeRows  # from the pairs to the targets
    relations: list[int]  # that have any
    counts: list[int]  # pairs of each of them


def _pairs(rows: EdgeRows, edge_type: Tensor, num_relations: int) -> _Pairs | None:
    """None where there is no edge, or a relation is not from 0 to num_relations - 1: PyG leaves such edges out."""
    kind = rows.of_edges(edge_type).long()
    if len(kind) == 0 or not 0 <= int(kind.min()) <= int(kind.max()) < num_relations:
        return None
    key, order = torch.sort(kind * max(rows.num_dst, 1) + rows.targets(), stable=True)
    distinct, counts = torch.unique_consecutive(key, return_counts=True)
    indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    sums = EdgeRows(indptr, rows.indices[order], rows.num_src, len(distinct))
    target, place = torch.sort(distinct % max(rows.num_dst, 1), stable=True)
    bounds = torch.arange(rows.num_dst + 1, device=target.device)
    together = EdgeRows(torch.searchsorted(target, bounds), place.to(torch.int32), len(distinct), rows.num_dst)
    relations, number = torch.unique_consecutive(distinct // max(rows.num_dst, 1), return_counts=True)
    return _Pairs(sums, together, relations.tolist(), number.tolist())
