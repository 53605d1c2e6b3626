"""`EventBatches`: all of a batch that no weight changes: neighbors, negatives, distinct nodes, times of memory and mail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from headrace.graph import EventStream, Graph
from headrace.sample import Block, NeighborSampler
from headrace.sample.negatives.events import EventNegatives
from headrace.temporal.batch import EventBatch


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
        stream = self.stream
        begin, end = int(self.cuts[index]), int(self.cuts[index + 1])
        group = index // self.group * self.group
        first, last = int(self.cuts[group]), int(self.cuts[min(group + self.group, self.num_batches)])
        src, dst, time = stream.src[begin:end].long(), stream.dst[begin:end].long(), stream.time[begin:end]
        negative = self.negatives.sample(begin, end, first, epoch=epoch, batch=index) if negatives else dst[:, None][:, :0]
        copies = 2 + negative.shape[1]
        roots = torch.cat([src, dst, negative.T.flatten()])
        bound = self._before(time)
        if self.in_batch == "hidden":
            bound = bound.clamp_max(first)
        nodes, blocks, dt, edge_id = self._neighborhood(roots, bound.repeat(copies), time.repeat(copies))
        distinct, row_of = _distinct(nodes)
        if memory:
            mail_event, has_mail, memory_time = self._mail(distinct, first, since)
        else:
            mail_event, has_mail = torch.zeros_like(distinct), torch.zeros(len(distinct), dtype=torch.bool)
            memory_time = stream.time[:1].expand(len(distinct))
        mail_dt = torch.where(has_mail, stream.time[mail_event] - memory_time, 0)
        known = torch.where(has_mail, stream.time[mail_event], memory_time)  # once the mail is in the memory
        age = time.repeat(copies) - known[row_of[: len(roots)]]
        return EventBatch(
            index,
            begin,
            end,
            distinct,
            row_of,
            blocks,
            dt,
            edge_id,
            has_mail,
            mail_event,
            mail_dt,
            age,
            *self._written(begin, end, first, last, distinct),
        )

    def _neighborhood(self, roots: Tensor, bound: Tensor, time: Tensor) -> tuple[Tensor, tuple[Block, ...], Tensor, Tensor]:
        """Nodes (roots, then a node per edge of each hop), blocks, time differences and event of every edge."""
        nodes, seeds = [roots], roots
        indptrs, dts, edges, before = [torch.zeros(1, dtype=torch.int64)], [], [], len(roots)
        blocks: list[Block] = []
        for hop, sampler in enumerate(self.samplers):
            if hop:
                bound = self._before(time)
            sample = sampler.sample(seeds, time=bound, edge_ids=True)
            assert sample.edge_id is not None
            edge_time = _taken(self.stream.time, sample.edge_id)
            dts.append(_repeated(time, sample.indptr.diff()) - edge_time)
            edges.append(sample.edge_id)
            indptrs.append(sample.indptr[1:] + indptrs[-1][-1])
            seeds, time = sample.nodes[len(seeds) :].long(), edge_time  # a neighbor per edge, as of the edge's own time
            nodes.append(seeds)
            before += len(seeds)
            blocks.append(Block(torch.cat(indptrs), torch.arange(len(roots), before), before))
        return torch.cat(nodes), tuple(blocks), torch.cat(dts), torch.cat(edges)

    def _before(self, time: Tensor) -> Tensor:
        """The first place of the stream that is not before each time."""
        return torch.from_numpy(np.searchsorted(self._time, time.numpy()))

    def _last_before(self, nodes: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
        """The last event of each node before place `bound` of the stream (0 where there is none), and whether there is one."""
        sample = self._latest.sample(nodes, time=bound, edge_ids=True)
        assert sample.edge_id is not None
        has = sample.indptr.diff() > 0
        event = torch.zeros(len(nodes), dtype=torch.int64)
        event[has] = sample.edge_id
        return event, has

    def _mail(self, nodes: Tensor, first: int, since: int) -> tuple[Tensor, Tensor, Tensor]:
        """Each node's event whose mail waits, whether there is one, and the time of its memory: that of the mail before."""
        event, has = self._last_before(nodes, torch.full_like(nodes, first))
        has &= event >= since
        event = torch.where(has, event, 0)
        start = self.starts[torch.from_numpy(np.searchsorted(self.starts.numpy(), event.numpy(), side="right")) - 1]
        earlier, had = self._last_before(nodes, start)
        had &= has & (earlier >= since)
        return event, has, self.stream.time[torch.where(had, earlier, 0)]

    def _written(self, begin: int, end: int, first: int, last: int, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Whose memory this batch writes: those whose last event of the group [first, last) is one of its own."""
        ends = torch.stack([self.stream.src[begin:last], self.stream.dst[begin:last]], dim=1).flatten().long()
        distinct, place = _distinct(ends)
        latest = np.empty(len(distinct), np.int64)
        latest[place.numpy()] = np.arange(len(ends))  # the last of a node's places stays
        size = end - begin
        latest = latest[latest < 2 * size]
        rows, other = (torch.from_numpy(np.searchsorted(nodes.numpy(), ends.numpy()[places])) for places in (latest, latest ^ 1))
        root = np.where(latest % 2 == 0, latest // 2 + size, latest // 2)
        return rows, other, torch.from_numpy(root)


# Torch would divide these few thousand numbers among threads, which the trainer beside needs.


def _distinct(ids: Tensor) -> tuple[Tensor, Tensor]:
    """`torch.unique(ids, return_inverse=True)`, by hashing."""
    encoded = pa.array(ids.numpy()).dictionary_encode()
    found = encoded.dictionary.to_numpy()
    order = found.argsort()
    rank = np.empty(len(found), np.int64)
    rank[order] = np.arange(len(found))
    return torch.from_numpy(found[order]), torch.from_numpy(rank[encoded.indices.to_numpy()])


def _taken(values: Tensor, places: Tensor) -> Tensor:
    return torch.from_numpy(values.numpy()[places.numpy()])


def _repeated(values: Tensor, counts: Tensor) -> Tensor:
    return torch.from_numpy(np.repeat(values.numpy(), counts.numpy()))
