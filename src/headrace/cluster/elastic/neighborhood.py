"""`Neighborhood`: the rows of a graph that a server owns, their ghosts, and who reads which of them, in both directions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import cast

import torch
from torch import Tensor

from headrace.cluster.parts.part import Part
from headrace.cluster.topology.share import Share
from headrace.ranks import Exchange
from headrace.sample import Block


class _Kind(IntEnum):
    setup = 0


@dataclass(frozen=True, eq=False)
class Reading:
    """Rows that are gathered over: an entry is a row of an own node, or of a ghost behind them.

    `asked[s]` are the rows of server s that are ghosts here, in their order; `told[s]` the own rows that are ghosts there.
    """

    indptr: Tensor  # [own + 1]
    indices: Tensor  # [entries]
    asked: list[Tensor]
    told: list[Tensor]

    @property
    def num_src(self) -> int:
        """Own nodes and ghosts."""
        return len(self.indptr) - 1 + sum(map(len, self.asked))

    def rows(self, begin: int, end: int, degree: Tensor | None = None) -> Block:
        """Own rows `begin` to `end` as a structure over all rows that are here."""
        first, last = int(self.indptr[begin]), int(self.indptr[end])
        return Block(self.indptr[begin : end + 1] - first, self.indices[first:last], self.num_src, degree, first=begin)


class Neighborhood:
    """What one server holds of a graph: built by all servers together.

    intervals: into how many ranges of about equal work the own rows are cut. Their ids are global: servers' follow one another.

    forward, backward: who is gathered over, along edges and against them.
    bounds: of each server, where its intervals begin and end among its rows.
    """

    def __init__(self, part: Part, *, intervals: int, exchange: Exchange | None) -> None:
        self.part, self.exchange = part, exchange
        self.server, self.servers = part.number, part.parts
        self.ids = part.ids
        indices = part.indices.long()
        counts = part.indptr.diff()
        self.forward = self._reading(part.indptr, indices)
        self.backward = self._reading(*self._reversed(indices, counts))
        own = _bounds(part.indptr, self.backward.indptr, intervals)
        self.bounds: list[list[int]] = [bounds.tolist() for bounds in self.sent("bounds", [own] * self.servers)]
        self.firsts = torch.tensor([0, *(len(bounds) - 1 for bounds in self.bounds)]).cumsum(0).tolist()
        degrees = Share(part.indptr, part.indices, part.owners, part.number).degrees.long()
        self.degree = torch.cat([degrees, *self.exchanged(degrees, self.forward)])

    @property
    def num_own(self) -> int:
        return len(self.ids)

    @property
    def own_intervals(self) -> range:
        return range(self.firsts[self.server], self.firsts[self.server + 1])

    @property
    def num_intervals(self) -> int:
        """Of all servers."""
        return cast(int, self.firsts[-1])

    def range_of(self, interval: int) -> tuple[int, int]:
        """The rows of an interval, among those of its server."""
        server = self.server_of(interval)
        bounds, place = self.bounds[server], interval - self.firsts[server]
        return bounds[place], bounds[place + 1]

    def server_of(self, interval: int) -> int:
        """Whose an interval is."""
        return next(server for server in range(self.servers) if interval < self.firsts[server + 1])

    def told(self, reading: Reading, interval: int, to: int) -> Tensor:
        """Own rows of an own interval that are ghosts of server `to`."""
        begin, end = self.range_of(interval)
        rows = reading.told[to]
        return rows[(rows >= begin) & (rows < end)]

    def places(self, reading: Reading, interval: int) -> Tensor:
        """Where rows of another server's interval lie here, in the order in which that server tells them."""
        server = self.server_of(interval)
        begin, end = self.range_of(interval)
        before = self.num_own + sum(len(reading.asked[s]) for s in range(server))
        rows = reading.asked[server]
        return before + ((rows >= begin) & (rows < end)).nonzero().flatten()

    def reads(self, reading: Reading) -> dict[int, set[int]]:
        """Of each own interval, those whose rows it gathers."""
        of_row = torch.empty(reading.num_src, dtype=torch.int64)
        for interval in self.own_intervals:
            begin, end = self.range_of(interval)
            of_row[begin:end] = interval
        for interval in range(self.num_intervals):
            if self.server_of(interval) != self.server:
                of_row[self.places(reading, interval)] = interval
        read = {}
        for interval in self.own_intervals:
            begin, end = self.range_of(interval)
            entries = reading.indices[int(reading.indptr[begin]) : int(reading.indptr[end])]
            read[interval] = {*of_row[entries.unique().long()].tolist(), interval}
        return read

    def exchanged(self, rows: Tensor, reading: Reading, phase: str = "ghosts") -> list[Tensor]:
        """Rows of the ghosts, by server; `rows` are those of the own nodes. Collective."""
        if self.exchange is None:
            return [rows[:0]]
        sent = rows[torch.cat(reading.told)]
        received = [len(asked) for asked in reading.asked]
        sending = [len(told) for told in reading.told]
        return list(self.exchange.all_to_all(phase, sent, sending=sending, receiving=received).wait().split(received))

    def _reading(self, indptr: Tensor, nodes: Tensor) -> Reading:
        """From rows of own nodes whose entries are ids in the whole graph. Ghosts are numbered by server and row."""
        owner, row = self.part.owners.locate(nodes)
        most = max(self.part.owners.size(server) for server in range(self.servers)) + 1
        other = owner != self.server
        keys, place = (owner * most + row)[other].unique(return_inverse=True)
        local = row.clone()
        local[other] = self.num_own + place
        asked = [keys[(keys // most) == server] % most for server in range(self.servers)]
        return Reading(indptr.long(), local.to(torch.int32), asked, self.sent("ghost ids", asked))

    def sent(self, phase: str, parts: list[Tensor]) -> list[Tensor]:
        """What every server has for this one; `parts` is what this one has for each. Collective."""
        if self.exchange is None:
            return parts
        sending = [len(part) for part in parts]
        _, receiving = self.exchange.counts(phase, _Kind.setup, sending)
        received = self.exchange.all_to_all(phase, torch.cat(parts), sending=sending, receiving=receiving)
        return list(received.wait().split(receiving))

    def reversed(self, numbers: Tensor) -> Tensor:
        """Numbers of the entries of own rows, in the order of the entries of `backward`. Collective.  # [edges] -> [edges back]"""
        return self._reversed(self.part.indices.long(), self.part.indptr.diff(), numbers)[2]

    def _reversed(self, sources: Tensor, counts: Tensor, *numbers: Tensor) -> list[Tensor]:
        """Rows of the own nodes along reversed edges: edges go to the servers of their sources. In the order of targets' ids."""
        targets = torch.repeat_interleave(self.ids, counts)
        owner, row = self.part.owners.locate(sources)
        edges = torch.stack([row, targets, *numbers], dim=1)
        if self.exchange is not None:
            edges = torch.cat(self.sent("edges", [edges[owner == server] for server in range(self.servers)]))
        edges = edges[edges[:, 1].argsort(stable=True)]
        edges = edges[edges[:, 0].argsort(stable=True)]
        indptr = torch.zeros(self.num_own + 1, dtype=torch.int64)
        torch.cumsum(torch.bincount(edges[:, 0], minlength=self.num_own), 0, out=indptr[1:])
        return [indptr, *edges[:, 1:].unbind(1)]


def _bounds(indptr: Tensor, back: Tensor, intervals: int) -> Tensor:
    """Ranges of rows of about equal work: rows, and entries in both directions.  # -> [intervals + 1]"""
    rows = len(indptr) - 1
    if intervals < 1:
        raise ValueError(f"intervals must be at least 1, not {intervals}")
    work = indptr.long() + back + torch.arange(rows + 1)
    wanted = torch.arange(1, intervals) * int(work[-1]) // intervals
    inner = torch.searchsorted(work, wanted).clamp_max(rows)
    return torch.cat([torch.zeros(1, dtype=torch.int64), inner, torch.tensor([rows])])


def bytes_per_epoch(neighborhood: Neighborhood, widths: list[int], itemsize: int, *, back: list[int] | None = None) -> int:
    """What a server sends in an epoch: each own row to each server that reads it, forward and back, at every width.

    widths: of the layers' rows that are sent forward; `back`: of those that are sent back, by default the same.
    """
    sent = 0
    for reading, total in ((neighborhood.forward, sum(widths)), (neighborhood.backward, sum(widths if back is None else back))):
        sent += total * sum(len(rows) for server, rows in enumerate(reading.told) if server != neighborhood.server)
    return sent * itemsize
