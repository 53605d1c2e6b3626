"""GCN (Kipf and Welling, 2017): a sum over neighbors and oneself, weighted by 1 / sqrt(degree x degree)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.graph import Graph, RowRange
from headrace.kernels import aggregate
from headrace.nn.convs.init import glorot, zeros
from headrace.nn.first_sum import Factors, FixedSum
from headrace.nn.order import Order, check_order, gradient_of, transform_first
from headrace.nn.split import Split
from headrace.nn.structure import Structure, over, sources_of, structure_of, targets_of


class GCNConv(nn.Module):
    """PyG's `GCNConv`: the same parameters, names and initial distribution, so that its `state_dict` loads.

    On a `Graph` (or an `edge_index`) the norms are those of the graph, made once per graph; a graph's `weight` is used. On a
    sampled `Block` whose `degree` is known, each sampled neighbor stands for `degree / sampled` of them, so that the sum is
    right on average and exact where all neighbors were taken; without degrees, the block's own are used, as PyG does.

    Without weights the norms are folded: 1 / sqrt(degree) multiplies each row that is read, and each result. `order` says whether
    the linear map comes before the sum ("transform") or after it ("aggregate"); both give the same.

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
        *,
        order: Order = "auto",
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.order = in_channels, out_channels, check_order(order)
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
        self,
        x: Tensor,
        where: Structure | Tensor,
        edge_weight: Tensor | None = None,
        *,
        ids: Tensor | None = None,
        summed: Tensor | None = None,
    ) -> Tensor:
        """New rows of the targets.  # [num_src, in] -> [num_dst, out]

        `summed` are the sums that `fixed_sum` makes of `x`, if they have been made already.
        """
        if isinstance(x, tuple):
            raise ValueError("GCNConv takes one x, not a pair: its norms are those of one set of nodes (SAGEConv takes pairs)")
        where = structure_of(where, x, edge_weight, ids)
        return self._finish(self._mapped(x, where, (self.lin.weight,), ids, summed), where)

    def _mapped(
        self, x: Tensor, where: Structure, weights: Sequence[Tensor], ids: Tensor | None = None, summed: Tensor | None = None
    ) -> Tensor:
        """The normalized sum through its map, in the order that costs less."""
        (weight,) = weights
        if summed is not None:
            return F.linear(summed, weight)
        if transform_first(where, *weight.shape[::-1], order=self.order, gradient=gradient_of(x)):
            return self._sum(F.linear(sources_of(x, where, ids), weight), where, None)
        return F.linear(self._sum(x, where, ids), weight)

    def _finish(self, rows: Tensor, where: Structure) -> Tensor:
        return rows if self.bias is None else rows + self.bias.to(rows.dtype)  # under autocast, the type that a linear map gives

    def split(self) -> Split:
        """Summed and mapped by input column; then the bias."""
        return Split(("lin.weight",), self.out_channels, self._mapped, self._finish, reads_own=False)

    def fixed_sum(self) -> FixedSum:
        """What is summed before anything that is learnt: the normalized sum over neighbors and oneself."""
        key = ("gcn", self.loop, self.normalize)
        make = lambda x, where: self._sum(x, where, None)  # noqa: E731
        return FixedSum(key, make, self.in_channels, self.out_channels, self.order, factors=self._norm)

    def _sum(self, x: Tensor, where: Structure, ids: Tensor | None) -> Tensor:
        norm = self._norm(where, torch.float64 if x.dtype == torch.float64 else torch.float32)
        told = over(where, x, weighted=norm.weight is not None)
        if norm.scale is not None:  # one per source, no more
            x, ids = (x[: where.num_src], None) if ids is None else (x, ids[: where.num_src])
        out = aggregate(x, **told, weight=norm.weight, scale=norm.scale, row_scale=norm.row_scale, ids=ids)
        if norm.own is None:
            return out
        return torch.addcmul(out, targets_of(x, where, ids), norm.own.to(out.dtype).unsqueeze(1))

    def _norm(self, where: Structure, dtype: torch.dtype) -> Factors:
        if isinstance(where, (Graph, RowRange)):
            graph = where.graph if isinstance(where, RowRange) else where
            if not self.normalize:
                return Factors(weight=graph.weight)
            norm = graph_norm(graph, self.loop, dtype)
            return norm.rows(where.first, where.num_dst) if isinstance(where, RowRange) else norm
        return _block_norm(where, self.loop, dtype) if self.normalize else Factors()

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}"


def graph_norm(graph: Graph, loop: float, dtype: torch.dtype) -> Factors:
    """The norms of a whole graph, by the weight of the edge to oneself. Made once and kept."""
    make = _folded_norm if graph.weight is None else _weighted_norm
    return graph.derived(f"gcn norm {loop} {dtype}", lambda: make(graph, loop, dtype))


def _folded_norm(graph: Graph, loop: float, dtype: torch.dtype) -> Factors:
    """Of a graph without weights. A loop that is there is the loop that would be added, as in PyG: it is summed with the other
    entries, and the own row makes up for the difference."""
    degree = graph.degrees(loops=not loop)
    root = _inverse_root(degree.to(dtype) + loop)
    own = (loop - (graph.degrees() - degree).to(dtype)) * root * root if loop else None
    return Factors(scale=root, row_scale=root, own=own)


def _weighted_norm(graph: Graph, loop: float, dtype: torch.dtype) -> Factors:
    """Of a graph with weights. A loop that is there keeps its weight, as in PyG."""
    assert graph.weight is not None
    weight, target = graph.weight.to(dtype), targets(graph)
    own = torch.full((graph.num_nodes,), loop, dtype=dtype, device=graph.device)
    if loop:
        at = (graph.indices == target).nonzero().flatten()
        if len(at):
            own[target[at]] = weight[at]
            weight = weight.index_fill(0, at, 0.0)
    root = _inverse_root(row_sums(graph, weight) + own)
    return Factors(weight=weight * root[target] * root[graph.indices], own=own * root * root if loop else None)


def row_sums(graph: Graph, weight: Tensor) -> Tensor:  # [entries] -> [num_nodes]
    """The sum of the weights of each row's entries. On a GPU by our kernel: torch would add in any order, with other bits."""
    if graph.device.type == "cpu":
        return weight.new_zeros(graph.num_nodes).index_add_(0, targets(graph), weight)
    ones = weight.new_ones(graph.num_nodes, 1)
    return aggregate(ones, graph.indptr, graph.indices, weight=weight).squeeze(1)


def _block_norm(block: Structure, loop: float, dtype: torch.dtype) -> Factors:
    sampled = block.indptr.diff()
    loops = _loops(block) if loop else None
    others = (sampled if loops is None else sampled - loops).to(dtype)
    known: Tensor | None = getattr(block, "degree", None)
    if known is None:
        degree = F.pad(others, (block.first, block.num_src - block.num_dst - block.first))
    else:
        degree = known.to(dtype)
    root, targets = _inverse_root(degree + loop), slice(block.first, block.first + block.num_dst)
    mine = root[targets]
    row_scale = mine * degree[targets] / others.clamp_min(1)
    own = None if loops is None else loop * mine.square() - loops.to(dtype) * row_scale * mine
    return Factors(scale=root, row_scale=row_scale, own=own)


def _loops(block: Structure) -> Tensor:
    """How many entries of each row are the row's own node.  # -> [num_dst]"""
    target, inside = _block_targets(block)
    own = block.indices == target + block.first
    if inside is not None:
        own = own & inside
    return torch.zeros(block.num_dst, dtype=torch.int32, device=own.device).index_add_(0, target, own.to(torch.int32))


def _block_targets(block: Structure) -> tuple[Tensor, Tensor | None]:
    """The row of every entry, and which entries are in any: the last of a padded block are not. On a GPU nothing is waited for."""
    if block.indptr.device.type == "cpu":
        target = targets(block)
        more = len(block.indices) - len(target)
        return (F.pad(target, (0, more)), torch.arange(len(block.indices)) < len(target)) if more else (target, None)
    entries = torch.arange(len(block.indices), device=block.indptr.device)
    target = torch.searchsorted(block.indptr, entries, right=True) - 1
    inside = target < block.num_dst
    return target.clamp_max(max(block.num_dst - 1, 0)).to(block.indices.dtype), inside


def targets(where: Structure) -> Tensor:
    """The row of every entry."""
    rows = torch.arange(where.num_dst, dtype=where.indices.dtype, device=where.indptr.device)
    return torch.repeat_interleave(rows, where.indptr.diff())


def _inverse_root(degree: Tensor) -> Tensor:
    return torch.where(degree > 0, degree.rsqrt(), 0)
