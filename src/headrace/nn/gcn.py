"""GCN (Kipf and Welling, 2017): a sum over neighbours and oneself, weighted by 1 / sqrt(degree x degree)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.graph import Graph, RowRange
from headrace.kernels import aggregate
from headrace.nn.init import glorot, zeros
from headrace.nn.structure import Structure, reverse_of, sources_of, structure_of, targets_of, transform_first


class GCNConv(nn.Module):
    """PyG's `GCNConv`: the same parameters, names and initial distribution, so that its `state_dict` loads.

    On a `Graph` (or an `edge_index`) the norms are those of the graph, made once per graph; a graph's `weight` is used. On a
    sampled `Block` whose `degree` is known, each sampled neighbour stands for `degree / sampled` of them, so that the sum is
    right on average and exact where all neighbours were taken; without degrees, the block's own are used, as PyG does.

    >>> import headrace as hr, torch
    >>> graph = hr.Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> hr.nn.GCNConv(8, 4)(torch.randn(3, 8), graph).shape
    torch.Size([3, 4])
    """

    reads_ids = True
    wants_degree = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        improved: bool = False,
        cached: bool = False,
        add_self_loops: bool = True,
        normalize: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.loop = 0.0 if not add_self_loops else 2.0 if improved else 1.0  # weight of the edge to oneself
        self.normalize = normalize  # `cached` is PyG's hint: a Graph keeps its norms in any case
        if not normalize:
            self.loop = 0.0  # PyG adds no loops then
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        glorot(self.lin.weight)
        zeros(self.bias)

    def forward(
        self, x: Tensor, where: Structure | Tensor, edge_weight: Tensor | None = None, *, ids: Tensor | None = None
    ) -> Tensor:
        """New rows of the targets.  # [num_src, in] -> [num_dst, out]"""
        if isinstance(x, tuple):
            raise ValueError("GCNConv takes one x, not a pair: its norms are those of one set of nodes (SAGEConv takes pairs)")
        where = structure_of(where, x, edge_weight, ids)
        if transform_first(where, self.in_channels, self.out_channels):
            out = self._sum(self.lin(sources_of(x, where, ids)), where, None)
        else:
            out = self.lin(self._sum(x, where, ids))
        return out if self.bias is None else out + self.bias

    def _sum(self, x: Tensor, where: Structure, ids: Tensor | None) -> Tensor:
        weight, own = self._weights(where, torch.float64 if x.dtype == torch.float64 else torch.float32)
        out = aggregate(x, where.indptr, where.indices, weight=weight, ids=ids, reverse=reverse_of(where, x))
        return out if own is None else torch.addcmul(out, targets_of(x, where, ids), own.to(out.dtype).unsqueeze(1))

    def _weights(self, where: Structure, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        """Of each entry, and of each target's own row."""
        if isinstance(where, (Graph, RowRange)):
            graph = where.graph if isinstance(where, RowRange) else where
            if not self.normalize:
                return graph.weight, None
            weight, own = graph.derived(f"gcn norm {self.loop} {dtype}", lambda: _graph_norm(graph, self.loop, dtype))
            return weight, own[where.first : where.first + where.num_dst] if self.loop else None
        return _block_norm(where, self.loop, dtype) if self.normalize else (None, None)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}"


def _graph_norm(graph: Graph, loop: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Weights of all entries and of the loops of all nodes. A loop that is there keeps its weight, as in PyG."""
    weight = torch.ones(graph.num_edges, dtype=dtype, device=graph.device) if graph.weight is None else graph.weight.to(dtype)
    target = _targets(graph)
    own = torch.full((graph.num_nodes,), loop, dtype=dtype, device=graph.device)
    if loop:
        at = (graph.indices == target).nonzero().flatten()
        if len(at):
            if graph.weight is not None:
                own[target[at]] = weight[at]
            weight = weight.index_fill(0, at, 0.0)
    root = _inverse_root(torch.zeros_like(own).index_add_(0, target, weight) + own)
    return weight * root[target] * root[graph.indices], own * root * root


def _block_norm(block: Structure, loop: float, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    target, inside = _block_targets(block)
    weight = torch.ones(len(target), dtype=dtype, device=target.device) if not loop else (block.indices != target).to(dtype)
    source = block.indices
    if inside is not None:
        weight, source = torch.where(inside, weight, 0), source.clamp_max(max(block.num_src - 1, 0))
    sampled = weight.new_zeros(block.num_dst).index_add_(0, target, weight)
    known: Tensor | None = getattr(block, "degree", None)
    degree = F.pad(sampled, (0, block.num_src - block.num_dst)) if known is None else known.to(dtype)
    root = _inverse_root(degree + loop)
    stands_for = root[: block.num_dst] * degree[: block.num_dst] / sampled.clamp_min(1)
    return weight * stands_for[target] * root[source], loop * root[: block.num_dst].square() if loop else None


def _block_targets(block: Structure) -> tuple[Tensor, Tensor | None]:
    """The row of every entry, and which entries are in any: the last of a padded block are not. On a GPU nothing is waited for."""
    if block.indptr.device.type == "cpu":
        target = _targets(block)
        more = len(block.indices) - len(target)
        return (F.pad(target, (0, more)), torch.arange(len(block.indices)) < len(target)) if more else (target, None)
    entries = torch.arange(len(block.indices), device=block.indptr.device)
    target = torch.searchsorted(block.indptr, entries, right=True) - 1
    inside = target < block.num_dst
    return target.clamp_max(max(block.num_dst - 1, 0)).to(block.indices.dtype), inside


def _targets(where: Structure) -> Tensor:
    """The row of every entry."""
    rows = torch.arange(where.num_dst, dtype=where.indices.dtype, device=where.indptr.device)
    return torch.repeat_interleave(rows, where.indptr.diff())


def _inverse_root(degree: Tensor) -> Tensor:
    return torch.where(degree > 0, degree.rsqrt(), 0)
