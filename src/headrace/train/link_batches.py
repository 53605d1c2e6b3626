"""`EdgeBatches`: which edges come in which batch of an epoch, a function of (seed, epoch)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import thread_count
from headrace.pipeline.orders import Order
from headrace.train.link_options import LinkOptions

_SHUFFLE = 2  # Purpose::shuffle of native/philox.h


@dataclass(frozen=True)
class EdgeBatch:
    """Positions of a batch's edges. `step` counts states of the buffer; `ranges` are the ids that are resident."""

    index: int
    positions: Tensor
    step: int = 0
    ranges: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class EpochPlan:
    """The steps of an epoch: which edges are trained in each state of the buffer. Without partitions there is one of all edges."""

    batch_size: int
    order: Order | None
    edges: tuple[Tensor, ...]
    ranges: tuple[tuple[tuple[int, int], ...] | None, ...]

    @property
    def num_batches(self) -> int:
        return sum(-(-len(part) // self.batch_size) for part in self.edges)

    def batches(self, first: int = 0) -> Iterator[EdgeBatch]:
        """In order, from batch `first` on."""
        index = 0
        for step, (edges, ranges) in enumerate(zip(self.edges, self.ranges, strict=True)):
            for begin in range(0, len(edges), self.batch_size):
                if index >= first:
                    yield EdgeBatch(index, edges[begin : begin + self.batch_size], step, ranges)
                index += 1


class EdgeBatches:
    """Deals edges into batches.

    With partitions, an edge is in the bucket (partition of its head, partition of its tail). Buckets are trained by the order of
    partitions, those of one state of the buffer shuffled together, and each epoch starts with the state that the last one ended in.
    """

    def __init__(self, edges: Tensor, num_nodes: int, options: LinkOptions) -> None:
        """`edges` on a GPU are shuffled there, into the same order."""
        self.count, self.num_nodes, self.options, self.device = len(edges), num_nodes, options, edges.device
        self._last: tuple[int, Order] | None = None
        if options.partitions:
            self.rows_per_partition = max(-(-num_nodes // options.partitions), 1)
            head, tail = edges[:, 0].long() // self.rows_per_partition, edges[:, 2].long() // self.rows_per_partition
            bucket = head * options.partitions + tail
            self._by_bucket = bucket.argsort(stable=True)
            counts = torch.bincount(bucket, minlength=options.partitions**2)
            self._ends = counts.cumsum(0).tolist()

    def plan(self, epoch: int) -> EpochPlan:
        """What epoch `epoch` does."""
        threads = thread_count(self.options.threads)
        drawn = _native.random_words(self.options.seed, epoch, _SHUFFLE, self.count, threads)
        words = torch.from_numpy(drawn.view("int64")).to(self.device)
        if not self.options.partitions:
            return EpochPlan(self.options.batch_size, None, (words.argsort(stable=True),), (None,))
        order = self._order(epoch)
        parts, ranges = [], []
        for state, buckets in zip(order.states, order.buckets, strict=True):
            edges = torch.cat([self._bucket(i, j) for i, j in buckets] or [self._by_bucket[:0]])
            parts.append(edges[words[edges].argsort(stable=True)])
            ranges.append(tuple(self.rows_of(p) for p in sorted(state)))
        return EpochPlan(self.options.batch_size, order, tuple(parts), tuple(ranges))

    def rows_of(self, partition: int) -> tuple[int, int]:
        """The ids of a partition: from, to."""
        begin = min(partition * self.rows_per_partition, self.num_nodes)
        return begin, min(begin + self.rows_per_partition, self.num_nodes)

    def _bucket(self, i: int, j: int) -> Tensor:
        at = i * self.options.partitions + j
        return self._by_bucket[self._ends[at - 1] if at else 0 : self._ends[at]]

    def _order(self, epoch: int) -> Order:
        """Epochs hold on to the buffer, so an epoch's order follows from the one before."""
        at, order = self._last if self._last is not None and self._last[0] <= epoch else (0, cast(Order, self.options.order_of(0)))
        while at < epoch:
            at += 1
            seed = self.options.seed * 1_000_003 + at
            order = cast(Order, self.options.order_of(at)).starting_with(order.states[-1], seed)
        self._last = (at, order)
        return order
