"""`EventNegatives`: destinations that an event might have had, and had not."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from headrace import _native
from headrace.graph import EventStream
from headrace.sample.sampler import check_batch, check_seed

_BLOCK = 1 << 20  # events that are looked at together
EventNegative = Literal["uniform", "historical", "inductive"]


class EventNegatives:
    """Draws `amount` other destinations for every event of a batch: a function of (seed, epoch, batch).

    uniform: any destination of the stream. historical: one that the event's source met before the batch. inductive: the
    destination of an event between the end of training and the batch. Where a source has met nobody, or there is no such event,
    the draw is uniform. The source stays, and a draw may be the true destination, as one in as many is: ties count half.

    >>> import headrace as hr
    >>> stream = hr.EventStream([0, 1, 0], [2, 3, 4], [1, 2, 3])
    >>> hr.sample.EventNegatives(stream, amount=4).sample(0, 3).shape
    torch.Size([3, 4])
    """

    def __init__(
        self, stream: EventStream, *, amount: int = 1, kind: EventNegative = "uniform", train_end: int = 0, seed: int = 0
    ) -> None:
        if amount < 1:
            raise ValueError(f"amount must be at least 1, not {amount}")
        if kind not in ("uniform", "historical", "inductive"):
            raise ValueError(f"negatives must be uniform, historical or inductive, not {kind!r}")
        check_seed(seed)
        self.stream, self.amount, self.kind, self.train_end, self.seed = stream, amount, kind, train_end, seed
        self.destinations = _distinct(stream)
        if len(self.destinations) < 2:
            raise ValueError("all events have one destination: there are no others to draw")

    def sample(self, begin: int, end: int, before: int | None = None, *, epoch: int = 0, batch: int = 0) -> Tensor:
        """Destinations for events `begin` to `end`, whose batch sees events before place `before`.  # -> [events, amount]"""
        check_batch(epoch, batch)
        count, before = end - begin, begin if before is None else before
        key = _native.stream_key(self.seed, epoch, batch, _native.Purpose.negative)
        words = torch.from_numpy(_native.random_words(key, 0, _native.Purpose.negative, 2 * count * self.amount, 1).view("int64"))
        first, second = ((half >> 1 & (2**62 - 1)).view(count, self.amount) for half in words.view(2, -1))
        drawn: Tensor = self.destinations[first % len(self.destinations)]
        if self.kind == "uniform":
            return drawn
        if self.kind == "inductive":
            known = before - self.train_end
            return drawn if known < 1 else self.stream.dst[self.train_end + second % known].long()
        graph = self.stream.graph()
        assert graph.edge_id is not None
        src = self.stream.src[begin:end].long()
        starts, ends = graph.indptr[src], graph.indptr[src + 1]
        past = _events_before(graph.edge_id, starts, ends, before)[:, None]
        met = graph.indices[(starts[:, None] + second % past.clamp_min(1)).clamp_max(graph.num_edges - 1)].long()
        return torch.where(past > 0, met, drawn)


def _distinct(stream: EventStream) -> Tensor:
    """All destinations in order, with a mark per node and a block of events in memory: a stream may lie on disk."""
    seen = torch.zeros(stream.num_nodes, dtype=torch.bool)
    for block in stream.dst.split(_BLOCK):
        seen[block.long()] = True
    return seen.nonzero().flatten()


def _events_before(event: Tensor, starts: Tensor, ends: Tensor, before: int) -> Tensor:
    """How many of `event[start:end]`, which rise, are below `before`: all rows are bisected together.  # [n] x 2 -> [n]"""
    low, high = starts.clone(), ends.clone()
    while bool((low < high).any()):
        middle = (low + high) // 2
        below = (low < high) & (event[middle.clamp_max(len(event) - 1)] < before)
        low, high = torch.where(below, middle + 1, low), torch.where(below, high, torch.minimum(middle, high))
    return low - starts
