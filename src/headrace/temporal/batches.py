"""`EventBatches`: all of a batch that no weight changes: neighbors, negatives, distinct nodes, times of memory and mail."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.graph import EventStream, Graph
from headrace.sample import Block, NeighborSampler
from headrace.sample.negatives.events import EventNegatives
from headrace.temporal.batch import EventBatch

Ids = NDArray[np.int64]
Times = NDArray[Any]  # int64 or float64


def cut_events(stream: EventStream, begin: int, end: int, size: int, cut: Literal["size", "ties"] = "size") -> Tensor:
    """Where batches of about `size` events begin, and the end: with "ties", never between two events of one time.  # -> [n + 1]"""
    if size < 1:
        raise ValueError(f"batch_size must be at least 1, not {size}")
    starts = torch.arange(begin, end, size)
    if cut == "ties":
        first = torch.searchsorted(stream.time, stream.time[starts])  # the first event of each start's time
        later = torch.searchsorted(stream.time, stream.time[starts], right=True)
        starts = torch.where(first < starts, later, starts).clamp(begin, end).unique()
        starts = starts[starts < end]
    return torch.cat([starts, torch.tensor([end])])


class Asked(NamedTuple):
    """A batch, the epoch of its negatives, and the first event that its memory has seen."""

    batch: int
    epoch: int
    since: int = 0


class EventBatches:
    """Makes batches of a stream that was cut at `cuts`: each is a function of (seed, epoch, batch) alone.

    An event sees what was strictly before its time and, with `in_batch` "hidden", before its batch (`group` batches that share a
    memory count as one). That is never decided by position: events of one time do not see one another.
    """

    def __init__(
        self,
        stream: EventStream,
        cuts: Tensor,
        negatives: EventNegatives,
        *,
        neighbors: Sequence[int] = (10,),
        in_batch: Literal["hidden", "visible"] = "hidden",
        group: int = 1,
        threads: int | None = None,
    ) -> None:
        self.stream, self.cuts, self.negatives, self.in_batch, self.group = stream, cuts, negatives, in_batch, group
        self.starts = torch.cat([cuts[:-1][::group], cuts[-1:]])  # of groups
        graph = stream.graph()
        assert graph.edge_id is not None
        # By places in the stream in place of times: "before event n" is what both rules of visibility come to.
        ordered = Graph(graph.indptr, graph.indices, time=graph.edge_id, edge_id=graph.edge_id)
        # A hop each: what an edge's neighbor sees ends before the edge's time, not at its place among events of that time.
        self.samplers = [self._sampler(ordered, fanout, threads) for fanout in neighbors]
        self._latest = self._sampler(ordered, 1, threads)
        self._time = stream.time.numpy()

    @staticmethod
    def _sampler(graph: Graph, fanout: int, threads: int | None) -> NeighborSampler:
        return NeighborSampler(graph, [fanout], temporal="last", hop_time="edge", threads=threads)

    @property
    def num_batches(self) -> int:
        return len(self.cuts) - 1

    def make(self, index: int, epoch: int, *, since: int = 0, memory: bool = True, negatives: bool = True) -> EventBatch:
        """Batch `index` with the negatives of epoch `epoch`, for a memory that has seen events from `since` on."""
        return self.make_all([Asked(index, epoch, since)], memory=memory, negatives=negatives)[0]

    def make_all(self, asked: Sequence[Asked], *, memory: bool = True, negatives: bool = True) -> list[EventBatch]:
        """Some batches, each as `make` makes it: what is small takes as long for all of them as for one."""
        stream = self.stream
        spans = [self._span(each) for each in asked]
        roots, times = [], []
        for each, span in zip(asked, spans, strict=True):
            src, dst, time = (part[span.begin : span.end].numpy() for part in (stream.src, stream.dst, stream.time))
            others: list[Any] = []
            if negatives:
                drawn = self.negatives.sample(span.begin, span.end, span.first, epoch=each.epoch, batch=each.batch)
                others = [drawn.T.flatten().numpy()]
            roots.append(np.concatenate([src, dst, *others]).astype(np.int64, copy=False))
            times.append(np.tile(time, len(roots[-1]) // max(len(time), 1)))
        counts = np.array([len(part) for part in roots])
        all_times = np.concatenate(times)
        bound = self._before(all_times)
        if self.in_batch == "hidden":
            bound = np.minimum(bound, np.repeat([span.first for span in spans], counts))
        found = self._neighborhoods(np.concatenate(roots), bound, all_times, counts)
        rows, ends, distinct = _distinct_of_each([part.nodes for part in found], stream.num_nodes)
        begins = np.concatenate([[0], ends[:-1]])
        mail_event, has_mail = np.zeros(len(distinct), np.int64), np.zeros(len(distinct), bool)
        memory_time = np.broadcast_to(self._time[:1], len(distinct))
        if memory:
            lengths = ends - begins
            first, since = (np.repeat(of, lengths) for of in ([span.first for span in spans], [each.since for each in asked]))
            mail_event, has_mail, memory_time = self._mail(distinct, first, since)
        known = np.where(has_mail, self._time[mail_event], memory_time)  # once the mail is in the memory
        mail_dt = np.where(has_mail, known - memory_time, 0)
        made = []
        for number, (each, span) in enumerate(zip(asked, spans, strict=True)):
            own, part, row_of = slice(begins[number], ends[number]), found[number], rows[number]
            nodes = distinct[own]
            age = times[number] - known[own][row_of[: counts[number]]]
            arrays = {"nodes": nodes, "row_of": row_of, "dt": part.dt, "edge_id": part.edge_id, "age": age}
            arrays |= {"has_mail": has_mail[own], "mail_event": mail_event[own], "mail_dt": mail_dt[own]}
            arrays |= zip(("written", "other", "other_root"), self._written(span, nodes), strict=True)
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            made.append(EventBatch(each.batch, span.begin, span.end, blocks=part.blocks, **tensors))
        return made

    def _span(self, asked: Asked) -> _Span:
        index = asked.batch
        group = index // self.group * self.group
        last = min(group + self.group, self.num_batches)
        return _Span(*(int(self.cuts[at]) for at in (index, index + 1, group, last)))

    def _neighborhoods(self, roots: Ids, bound: Ids, time: Times, counts: Ids) -> list[_Neighborhood]:
        """Of the roots of each batch: nodes (roots, then a node per edge of each hop), blocks, time differences and events."""
        starts = _starts(counts)
        nodes: list[list[Ids]] = [[] for _ in counts]
        dts: list[list[Times]] = [[] for _ in counts]
        edges: list[list[Ids]] = [[] for _ in counts]
        degrees: list[list[Ids]] = [[] for _ in counts]
        seeds = roots
        for batch, (begin, end) in enumerate(pairwise(starts)):
            nodes[batch].append(roots[begin:end])
        for hop, sampler in enumerate(self.samplers):
            if hop:
                bound = self._before(time)
            sample = sampler.sample(torch.from_numpy(seeds), time=torch.from_numpy(bound), edge_ids=True)
            assert sample.edge_id is not None
            edge_id, indptr = sample.edge_id.numpy(), sample.indptr.numpy()
            edge_time, degree = self._time[edge_id], np.diff(indptr)
            dt = np.repeat(time, degree) - edge_time
            # A neighbor per edge, as of the edge's own time.
            seeds, time = sample.nodes.numpy()[len(seeds) :].astype(np.int64, copy=False), edge_time
            ends = indptr[starts]
            for batch, ((row, last_row), (begin, end)) in enumerate(zip(pairwise(starts), pairwise(ends), strict=True)):
                nodes[batch].append(seeds[begin:end])
                dts[batch].append(dt[begin:end])
                edges[batch].append(edge_id[begin:end])
                degrees[batch].append(degree[row:last_row])
            starts = ends
        return [_Neighborhood.of(*parts) for parts in zip(nodes, degrees, dts, edges, strict=True)]

    def _before(self, time: Times) -> Ids:
        """The first place of the stream that is not before each time."""
        return np.searchsorted(self._time, time)

    def _last_before(self, nodes: Ids, bound: Ids) -> tuple[Ids, NDArray[np.bool_]]:
        """The last event of each node before place `bound` of the stream (0 where there is none), and whether there is one."""
        sample = self._latest.sample(torch.from_numpy(nodes), time=torch.from_numpy(bound), edge_ids=True)
        assert sample.edge_id is not None
        has = np.diff(sample.indptr.numpy()) > 0
        event = np.zeros(len(nodes), np.int64)
        event[has] = sample.edge_id.numpy()
        return event, has

    def _mail(self, nodes: Ids, first: Ids, since: Ids) -> tuple[Ids, NDArray[np.bool_], Times]:
        """Each node's event whose mail waits, whether there is one, and the time of its memory: that of the mail before."""
        event, has = self._last_before(nodes, first)
        has &= event >= since
        event = np.where(has, event, 0)
        starts = self.starts.numpy()
        earlier, had = self._last_before(nodes, starts[np.searchsorted(starts, event, side="right") - 1])
        had &= has & (earlier >= since)
        return event, has, self._time[np.where(had, earlier, 0)]

    def _written(self, span: _Span, nodes: Ids) -> tuple[Ids, Ids, Ids]:
        """Whose memory this batch writes: those whose last event of the group is one of its own."""
        src, dst = (part[span.begin : span.last].numpy() for part in (self.stream.src, self.stream.dst))
        ends = np.stack([src, dst], axis=1).ravel()
        order = ends.argsort(kind="stable")
        ordered = ends[order]
        latest = order[np.append(ordered[1:] != ordered[:-1], True)]  # the last of each node's places, by node
        size = span.end - span.begin
        latest = latest[latest < 2 * size]
        rows, other = (np.searchsorted(nodes, ends[places]) for places in (latest, latest ^ 1))
        return rows, other, np.where(latest % 2 == 0, latest // 2 + size, latest // 2)


class _Span(NamedTuple):
    """Where a batch and its group lie in the stream."""

    begin: int
    end: int
    first: int
    last: int


class _Neighborhood(NamedTuple):
    """What one batch was sampled."""

    nodes: Ids
    blocks: tuple[Block, ...]
    dt: Times
    edge_id: Ids

    @classmethod
    def of(cls, nodes: list[Ids], degrees: list[Ids], dts: list[Times], edges: list[Ids]) -> _Neighborhood:
        """From the parts that each hop gave."""
        roots = len(nodes[0])
        indptr = torch.from_numpy(_starts(np.concatenate(degrees)))
        known, blocks, row = roots, [], 0
        indices = torch.arange(roots, roots + sum(map(len, edges)))
        for degree, found in zip(degrees, edges, strict=True):
            row, known = row + len(degree), known + len(found)
            blocks.append(Block(indptr[: row + 1], indices[: known - roots], known))
        return cls(np.concatenate(nodes), tuple(blocks), np.concatenate(dts), np.concatenate(edges))


def _starts(counts: Ids) -> Ids:
    """Where each of some ranges begins that follow one another, and the end.  # [n] -> [n + 1]"""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def _distinct_of_each(parts: Sequence[Ids], nodes: int) -> tuple[list[Ids], Ids, Ids]:
    """`np.unique(part, return_inverse=True)` of each, by hashing all together: the inverses, where ids end, and the ids."""
    keys = np.concatenate([part + batch * nodes if batch else part for batch, part in enumerate(parts)])
    encoded = pa.array(keys).dictionary_encode()
    found = encoded.dictionary.to_numpy()
    order = found.argsort()
    rank = np.empty(len(found), np.int64)
    rank[order] = np.arange(len(found))
    ids, inverse = found[order], rank[encoded.indices.to_numpy()]
    ends = np.searchsorted(ids, np.arange(1, len(parts) + 1) * nodes)
    rows = []
    begin = 0
    for batch, part in enumerate(parts):
        rows.append(inverse[begin : begin + len(part)])
        begin += len(part)
        if batch:
            rows[-1] = rows[-1] - ends[batch - 1]
            ids[ends[batch - 1] : ends[batch]] -= batch * nodes
    return rows, ends, ids
