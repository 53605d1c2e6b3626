"""`SplitRows`: the rows of every snapshot split over ranks, those of neighbors on other ranks (the halo) fetched for each sum.

What vertex partitioning of AliGraph and DGL does. Topology and features are on every rank, so that nothing is sent for sums of
features that come first; a sum of states sends the rows that others read, and their gradients come back.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.graph import Graph, Snapshots
from headrace.kernels import aggregate
from headrace.nn.cells import Cell
from headrace.nn.first_sum import Factors
from headrace.nn.neighbor_sum import Kind, in_turn, matrix_of
from headrace.ranks import Exchange
from headrace.snapshots.rows import WholeRows, block_diagonal


class Lanes:
    """The exchange of each thread that sums over split rows: every rank uses them in the same order of calls."""

    def __init__(self, exchanges: Sequence[Exchange]) -> None:
        self.exchanges = list(exchanges)
        self._of_thread = threading.local()

    @property
    def own(self) -> Exchange:
        """Of this thread: the first, unless it has taken another."""
        return self.exchanges[getattr(self._of_thread, "number", 0)]

    def take(self, number: int) -> None:
        """Let this thread use an exchange of its own."""
        self._of_thread.number = number


@dataclass(frozen=True, eq=False)
class Cut:
    """The rows of a sum that one rank owns. Columns are its own rows, then the halo: rows of others, by rank and place.

    told: own rows that each rank reads; asked: how many rows of each are in the halo.
    """

    square: Graph  # own rows and the halo's, of which these are empty: so that its reverse is kept
    factors: Factors
    own: int
    halo: Tensor  # rows of the whole
    told: list[Tensor]
    asked: list[int]

    @classmethod
    def of(cls, rows: Graph, factors: Factors, owner: Tensor, rank: int, size: int) -> Cut:
        """Of a sum over `rows`, where row v is on rank `owner[v]`."""
        mine = (owner == rank).nonzero().flatten()
        entries, indptr = _entries(rows, mine)
        sources = rows.indices[entries].long()
        halo = sources[owner[sources] != rank].unique()
        halo = halo[owner[halo].argsort(stable=True)]
        column = torch.empty(rows.num_nodes, dtype=torch.int64)
        column[mine], column[halo] = torch.arange(len(mine)), len(mine) + torch.arange(len(halo))
        told = []
        for other in range(size):
            theirs = rows.indices[_entries(rows, (owner == other).nonzero().flatten())[0]].long() if other != rank else halo[:0]
            told.append(column[theirs[owner[theirs] == rank].unique()])
        padded = torch.cat([indptr, indptr[-1:].expand(len(halo))])
        weight = None if factors.weight is None else factors.weight[entries]
        scale = None if factors.scale is None else factors.scale[torch.cat([mine, halo])]
        cut = [None if part is None else part[mine] for part in (factors.row_scale, factors.own)]
        square = Graph(padded, column[sources].to(rows.indices.dtype))
        asked = torch.bincount(owner[halo], minlength=size).tolist()
        return cls(square, Factors(weight, scale, *cut), len(mine), halo, told, asked)

    def sum(self, x: Tensor) -> Tensor:  # [own + halo, d] -> [own, d]
        """The sums of own rows."""
        factors, square = self.factors, self.square
        reverse = square.reverse() if x.requires_grad and torch.is_grad_enabled() else None
        out = aggregate(
            x,
            square.indptr[: self.own + 1],
            square.indices,
            weight=factors.weight,
            scale=factors.scale,
            row_scale=factors.row_scale,
            reverse=reverse,
        )
        return out if factors.own is None else torch.addcmul(out, x[: self.own], factors.own.to(out.dtype).unsqueeze(1))


def _entries(rows: Graph, of: Tensor) -> tuple[Tensor, Tensor]:
    """Where the entries of some rows are, and where each row's begin among them."""
    counts = rows.degrees()[of]
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return torch.repeat_interleave(rows.indptr[of] - indptr[:-1], counts) + torch.arange(int(indptr[-1])), indptr


class _WithHalo(torch.autograd.Function):
    """Own rows, then those of the halo. Gradients of the halo go back to who owns the rows, who adds them in the order of ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cut: Cut, exchange: Exchange) -> Tensor:
        ctx.cut, ctx.exchange = cut, exchange
        sending = [len(rows) for rows in cut.told]
        exchange.begin()
        halo = exchange.all_to_all("halo", x[torch.cat(cut.told)], sending=sending, receiving=cut.asked).wait()
        return torch.cat([x, halo])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        cut, (gradient,) = ctx.cut, gradients
        receiving = [len(rows) for rows in cut.told]
        ctx.exchange.begin()
        sent = gradient[cut.own :].contiguous()
        back = ctx.exchange.all_to_all("halo gradients", sent, sending=cut.asked, receiving=receiving).wait()
        own = gradient[: cut.own].clone()
        for rows, part in zip(cut.told, back.split(receiving), strict=True):
            own.index_add_(0, rows, part)  # rows of one rank differ
        return own, None, None


class SplitGraph:
    """The rows of a graph that this rank owns: sums over them fetch the halo, or have it where all rows of x are known."""

    def __init__(self, graph: Graph, owner: Tensor, rank: int, lanes: Lanes) -> None:
        self.graph, self.owner, self.rank, self.lanes = graph, owner, rank, lanes
        self._cuts: dict[tuple[str, torch.dtype], Cut] = {}

    def cut(self, kind: Kind, dtype: torch.dtype = torch.float32) -> Cut:
        """What this rank has of a sum. Made once and kept."""
        dtype = torch.float64 if dtype == torch.float64 else torch.float32
        if (kind, dtype) not in self._cuts:
            rows, factors = matrix_of(kind, self.graph, dtype)
            self._cuts[kind, dtype] = Cut.of(rows, factors, self.owner, self.rank, self.lanes.own.size)
        return self._cuts[kind, dtype]

    def neighbor_sum(self, kind: Kind, x: Tensor) -> Tensor:  # [own, d] -> [own, d]
        cut, exchange = self.cut(kind, x.dtype), self.lanes.own
        return in_turn(x, ("wire", lambda own: _WithHalo.apply(own, cut, exchange)), ("graph", cut.sum))  # type: ignore[no-untyped-call]


class _Known:
    """A split graph for features that are on every rank: nothing is sent."""

    def __init__(self, graph: SplitGraph, whole: Tensor) -> None:
        self.graph, self.whole = graph, whole

    def neighbor_sum(self, kind: Kind, x: Tensor) -> Tensor:
        cut = self.graph.cut(kind, x.dtype)
        return in_turn(torch.cat([x, self.whole[cut.halo]]), ("graph", cut.sum))


class SplitRows(WholeRows):
    """The rows of every snapshot that one of `size` ranks owns: node v is on rank v % size."""

    def __init__(self, snapshots: Snapshots, rank: int, lanes: Lanes) -> None:
        super().__init__(snapshots)
        size = lanes.own.size
        self.rank, self.lanes = rank, lanes
        self.owner = torch.arange(snapshots.num_nodes) % size
        self.ids = (self.owner == rank).nonzero().flatten()
        self.num_nodes, self.whole = len(self.ids), self.x
        present = [self.owner if self.nodes is None else self.owner[ids] for ids in self.nodes or self.x]
        places = [(owner == rank).nonzero().flatten() for owner in present]
        self.x = [rows[own] for rows, own in zip(self.whole, places, strict=True)]
        if self.nodes is not None:
            self.nodes = [torch.searchsorted(self.ids, ids[own]) for ids, own in zip(self.nodes, places, strict=True)]
        self._present = present
        self._graphs: dict[int, SplitGraph] = {}

    def where(self, times: Sequence[int]) -> SplitGraph:
        if len(times) == 1:
            key = self.snapshots.same_as(times[0])
            if key not in self._graphs:
                self._graphs[key] = SplitGraph(self.snapshots.own_graph(key), self._present[key], self.rank, self.lanes)
            return self._graphs[key]
        graph = block_diagonal([self.snapshots.own_graph(at) for at in times])
        return SplitGraph(graph, torch.cat([self._present[at] for at in times]), self.rank, self.lanes)

    def _both(self) -> list[list[Tensor]]:
        return [self.x, self.whole]

    def _sums(self, cell: Cell, times: Sequence[int], rows: list[Tensor]) -> Tensor:
        graph, (own, whole) = self.where(times), rows
        if getattr(cell, "K", 2) > 2:  # sums of sums: those of the halo would be asked for
            made = cell.fixed(whole, graph.graph)
            assert made is not None
            return made[graph.owner == self.rank]
        made = cell.fixed(own, _Known(graph, whole))
        assert made is not None
        return made


def check_splits(cell: Cell) -> None:
    """ValueError for a cell that looks at all rows of a snapshot together."""
    if not cell.splits_rows:
        raise ValueError(
            f"{type(cell).__name__} looks at all rows of a snapshot together, and strategy vertex splits them over ranks: "
            "choose balanced, equal, snapshot or sequential"
        )
