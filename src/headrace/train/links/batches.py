"""`EdgeBatches`: which edges come in which batch of an epoch, a function of (seed, epoch)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from typing import cast

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import thread_count
from headrace.pipeline.orders import Bucket, Order
from headrace.train.links.edges import BucketedEdges, buckets_of, rows_per_partition
from headrace.train.links.options import LinkOptions


@dataclass(frozen=True)
class EdgeBatch:
    """Positions of a batch's edges. `step` counts states of the buffer; `ranges` are the ids that are resident."""

    index: int
    positions: Tensor
    step: int = 0
    ranges: tuple[tuple[int, int], ...] | None = None
    resident: Callable[[], Tensor] | None = None  # positions of all edges between resident ids


@dataclass(frozen=True)
class EpochPlan:
    """The steps of an epoch: which edges are trained in each state of the buffer. Without partitions there is one of all edges.

    Edges of a step are found and shuffled when it is reached, so a plan takes the memory of one step.
    """

    batch_size: int
    order: Order | None
    counts: tuple[int, ...]  # edges of each step
    ranges: tuple[tuple[tuple[int, int], ...] | None, ...]
    edges_of: Callable[[int], Tensor]  # of a step, in the order they are trained in
    resident_of: Callable[[int], Tensor] | None = None  # in a step, all edges between resident partitions

    @property
    def num_batches(self) -> int:
        return sum(-(-count // self.batch_size) for count in self.counts)

    def batches(self, first: int = 0) -> Iterator[EdgeBatch]:
        """In order, from batch `first` on."""
        index = 0
        for step, (count, ranges) in enumerate(zip(self.counts, self.ranges, strict=True)):
            batches = -(-count // self.batch_size)
            if index + batches > first:
                edges = self.edges_of(step)
                resident = None if self.resident_of is None else partial(self.resident_of, step)
                if edges.is_cuda:  # batches may be numbered on another stream
                    torch.cuda.current_stream(edges.device).synchronize()
                for number in range(max(first - index, 0), batches):
                    begin = number * self.batch_size
                    yield EdgeBatch(index + number, edges[begin : begin + self.batch_size], step, ranges, resident)
            index += batches


class EdgeBatches:
    """Deals edges into batches.

    With partitions, an edge is in the bucket (partition of its head, partition of its tail). Buckets are trained by the order of
    partitions, those of one state of the buffer shuffled together, and each epoch starts with the state that the last one ended in.
    """

    def __init__(self, edges: Tensor, num_nodes: int, options: LinkOptions, *, file: BucketedEdges | None = None) -> None:
        """`edges` on a GPU are shuffled there, into the same order. With a `file` they are its edges, sorted by bucket already."""
        self.count, self.num_nodes, self.options, self.device = len(edges), num_nodes, options, edges.device
        self._last: tuple[int, Order] | None = None
        self._by_bucket: Tensor | None = None
        self._file = file
        if options.partitions:
            self.rows_per_partition = rows_per_partition(num_nodes, options.partitions)
            if file is None:
                bucket = buckets_of(edges, self.rows_per_partition, options.partitions)
                self._by_bucket = bucket.argsort(stable=True)
                self._ends = tuple(torch.bincount(bucket, minlength=options.partitions**2).cumsum(0).tolist())
            else:
                self._ends = file.ends

    def plan(self, epoch: int) -> EpochPlan:
        """The plan of an epoch: its batches and the order of its edges."""
        size = self.options.batch_size
        if not self.options.partitions:
            return EpochPlan(size, None, (self.count,), (None,), lambda _: self._shuffled(self.options.seed, epoch, self.count))
        order = self._order(epoch)
        counts = tuple(sum(end - begin for begin, end in map(self._bucket, buckets)) for buckets in order.buckets)
        ranges = tuple(tuple(self.rows_of(p) for p in sorted(state)) for state in order.states)

        def edges_of(step: int) -> Tensor:
            if self._file is not None:
                self._file.read_ahead(map(self._bucket, chain(*order.buckets[step : step + 2])))
            seed = (self.options.seed * 1_000_003 + step + 1) % 2**64  # a shuffle of its own
            return self._edges(order.buckets[step])[self._shuffled(seed, epoch, counts[step])]

        def resident_of(step: int) -> Tensor:
            resident = sorted(order.states[step])
            if self._file is not None:
                self._file.read_ahead(map(self._bucket, product(resident, resident)))
            return self._edges(product(resident, resident))

        return EpochPlan(size, order, counts, ranges, edges_of, resident_of)

    def rows_of(self, partition: int) -> tuple[int, int]:
        """The ids of a partition: from, to."""
        begin = min(partition * self.rows_per_partition, self.num_nodes)
        return begin, min(begin + self.rows_per_partition, self.num_nodes)

    def edges_of_partition(self, partition: int) -> tuple[Tensor, Tensor]:  # -> [a], [b]
        """Positions of the edges whose head is in a partition, and of those whose tail is."""
        others = range(self.options.partitions)
        return self._edges((partition, other) for other in others), self._edges((other, partition) for other in others)

    def _shuffled(self, seed: int, epoch: int, count: int) -> Tensor:  # -> [count]
        drawn = _native.random_words(seed, epoch, _native.Purpose.shuffle, count, thread_count(self.options.threads))
        return torch.from_numpy(drawn.view("int64")).to(self.device).argsort(stable=True)

    def _edges(self, buckets: Iterable[Bucket]) -> Tensor:
        """Positions of the edges of some buckets."""
        parts = [torch.arange(*self._bucket(bucket), device=self.device) for bucket in buckets]
        at = torch.cat([torch.arange(0, device=self.device), *parts])
        return at if self._by_bucket is None else self._by_bucket[at]

    def _bucket(self, bucket: Bucket) -> tuple[int, int]:
        at = bucket[0] * self.options.partitions + bucket[1]
        return self._ends[at - 1] if at else 0, self._ends[at]

    def _order(self, epoch: int) -> Order:
        """Epochs hold on to the buffer, so an epoch's order follows from the one before."""
        at, order = self._last if self._last is not None and self._last[0] <= epoch else (0, cast(Order, self.options.order_of(0)))
        while at < epoch:
            at += 1
            seed = self.options.seed * 1_000_003 + at
            order = cast(Order, self.options.order_of(at)).starting_with(order.states[-1], seed)
        self._last = (at, order)
        return order
