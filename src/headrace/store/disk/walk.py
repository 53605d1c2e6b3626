"""`Walk`: one pass of an order of partitions through a buffer, step by step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from headrace.store.disk.buffer import PartitionBuffer


class PartitionOrder(Protocol):
    """What a buffer asks of an order of partitions; those of `headrace.pipeline.orders` comply."""

    @property
    def partitions(self) -> int: ...

    @property
    def states(self) -> Sequence[tuple[int, ...]]: ...

    @property
    def buckets(self) -> Sequence[Sequence[tuple[int, int]]]: ...


@dataclass(frozen=True)
class BufferStep:
    """The state of the buffer, and the buckets to train in it."""

    number: int
    state: tuple[int, ...]
    buckets: tuple[tuple[int, int], ...]


class Hold:
    """Partitions that stay until `release`, or the end of a `with` block, in whichever thread that is."""

    def __init__(self, buffer: PartitionBuffer, partitions: Iterable[int]) -> None:
        self._buffer, self._released = buffer, threading.Lock()
        self.partitions = buffer.hold(partitions)

    def release(self) -> None:
        """Let go; a second time does nothing."""
        if self._released.acquire(blocking=False):
            self._buffer.release(self.partitions)

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Walk:
    """Steps of an order, made by `Partitioned.walk`. Partitions are read ahead of the step that needs them.

    A step begins at once: only who holds a partition that is still on its way waits, and the partitions that the last step needed
    leave as soon as the batches that hold them are done. Take steps and holds in one thread; batches may be worked on and released
    in others. A thread must not wait for a hold while it keeps one of an earlier step: that slot may be the one it waits for.
    """

    def __init__(
        self, buffer: PartitionBuffer, order: PartitionOrder, *, begin: Callable[[], None], end: Callable[[], None]
    ) -> None:
        self._buffer, self._order, self._begin, self._end = buffer, order, begin, end
        self._steps = -1  # before the `with` block

    def __enter__(self) -> Walk:
        self._begin()
        self._steps = 0
        return self

    def __iter__(self) -> Iterator[BufferStep]:
        if self._steps:
            raise RuntimeError("steps are taken once, inside `with store.walk(order) as walk`: call walk(order) for another walk")
        for number, (state, buckets) in enumerate(zip(self._order.states, self._order.buckets, strict=True)):
            if number == 0:
                self._buffer.begin([tuple(state) for state in self._order.states])
            else:
                self._buffer.advance(number, tuple(state))
            self._steps = number + 1
            yield BufferStep(number, tuple(state), tuple(buckets))

    def hold(self, partitions: Iterable[int]) -> Hold:
        """Wait for partitions of this step, a bucket or more, and keep them while a batch uses their rows."""
        return Hold(self._buffer, partitions)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._buffer.end()
            else:
                with suppress(OSError, RuntimeError):  # the first error is the one to report
                    self._buffer.end()
        finally:
            self._end()


def check_order(order: PartitionOrder, partitions: int, capacity: int) -> None:
    """ValueError unless the order is one of these partitions and fits the buffer."""
    if order.partitions != partitions:
        raise ValueError(f"the order is for {order.partitions} partitions, the store has {partitions}")
    if not order.states or len(order.states) != len(order.buckets):
        raise ValueError(f"the order has {len(order.states)} states and {len(order.buckets)} groups of buckets: one each is needed")
    for number, (state, buckets) in enumerate(zip(order.states, order.buckets, strict=True)):
        inside = set(state)
        if len(state) > capacity or len(inside) != len(state) or not inside <= set(range(partitions)):
            raise ValueError(f"state {number} of the order is {tuple(state)}: it must be at most {capacity} different partitions")
        if any(not inside.issuperset(bucket) for bucket in buckets):
            raise ValueError(f"a bucket of step {number} needs a partition that is not in its state, {tuple(state)}")
