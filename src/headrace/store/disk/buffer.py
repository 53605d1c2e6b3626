"""Which partitions are in memory, who uses them, and the threads that bring them in and write them back.

A partition is, one after the other: *coming* (the order will need it), *loading* into a free slot, *here*, visible to `gather` and
`add_` from the step whose state names it on, *going* (the step is over, a batch still holds it), *leaving* (nobody can reach it; it
is written if it changed), and its slot is free again. One lock guards all of it, and is never held while bytes move.

A slot is reused when nobody reads it: calls note the generation of the table they use, a partition leaves by a new table without
it, and is written once no call uses an older one.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from headrace.pipeline.workers import Workers, free_in_child
from headrace.store.disk.moves import PartitionMoves
from headrace.store.disk.use import PartitionedUse
from headrace.store.row_table import DeviceTable, HostTable


class PartitionBuffer:
    """Slots, their partitions, and reader and writer threads, which run until `close`."""

    def __init__(self, moves: PartitionMoves, *, readers: int, writers: int) -> None:
        self.moves = moves
        self.state: tuple[int, ...] = ()  # of the step that is under way, or was last
        self._changed = free_in_child(threading.Condition())
        self._slot: dict[int, int] = {}  # of every partition that is in memory, loading ones not included
        self._free = list(range(moves.slots.count))
        self._coming: deque[tuple[int, int]] = deque()  # the step that needs it, and the partition
        self._loading: dict[int, int] = {}
        self._unwanted: set[int] = set()  # loading, though the walk went past them meanwhile
        self._visible: dict[int, int] = {}
        self._held: Counter[int] = Counter()
        self._going: set[int] = set()
        self._leaving: dict[int, int] = {}  # in the order in which they left: the first generation without the partition
        self._writing: set[int] = set()
        self._table: HostTable | DeviceTable | None = None  # made when it is first used: many partitions may come and go before
        self._generation = 0
        self._calls: Counter[int] = Counter()  # under way, by the generation they use
        self._adding, self._paused, self._closed = 0, False, False
        self._error: BaseException | None = None
        self._stalled, self._most = 0.0, 0
        self._workers = Workers("this partitioned store", self._stop)
        for work, count, name in ((self._read_on, readers, "headrace-reader"), (self._write_on, writers, "headrace-writer")):
            for _ in range(count):
                self._workers.start(work, name=name)

    def begin(self, states: Sequence[tuple[int, ...]]) -> None:
        """Begin an order: its first step, and what is to be read ahead for later ones."""
        self.end()  # of a walk that was broken off
        with self._changed:
            for number, (before, after) in enumerate(pairwise(states), start=1):
                self._coming.extend((number, p) for p in after if p not in before)
            self._move_to(0, states[0])

    def advance(self, number: int, state: tuple[int, ...]) -> None:
        """The next step. What it lacks of the last one leaves when nobody holds it."""
        with self._changed:
            self._check()
            self._move_to(number, state)

    def end(self) -> None:
        """Forget the rest of an order, and wait until what is in memory is the state of its last step."""
        with self._changed:
            self._check()
            self._coming.clear()
            self._expect(0, self.state)
            self._unwanted.update(set(self._loading) - set(self.state))
            for partition in [p for p in self._slot if p not in self._visible and self._is_here(p)]:
                self._depart(partition)
            self._wait_for(lambda: not (self._coming or self._loading or self._leaving or self._writing))

    def _move_to(self, number: int, state: tuple[int, ...]) -> None:
        before, self.state = {*self._visible, *self.state}, state
        self._going.difference_update(state)  # still held when it is needed again: it need not be loaded
        while self._coming and self._coming[0][0] <= number:
            self._coming.popleft()
        self._expect(number, state)
        for partition in (p for p in state if self._is_here(p)):
            self._visible[partition] = self._slot[partition]
        self._publish()
        for partition in sorted(before - set(state)):
            if partition in self._visible:
                self._going.add(partition)
                self._let_go(partition)
            elif partition in self._loading:
                self._unwanted.add(partition)

    def _expect(self, number: int, state: tuple[int, ...]) -> None:
        """Load before all else what a state lacks; most of it was read ahead."""
        self._unwanted.difference_update(state)
        lacking = [p for p in state if not self._is_here(p) and p not in self._loading]
        self._coming.extendleft((number, p) for p in reversed(lacking))
        self._changed.notify_all()

    def hold(self, partitions: Iterable[int]) -> tuple[int, ...]:
        """Wait until they are here, and keep them until `release`."""
        wanted = tuple(sorted(set(partitions)))
        with self._changed:
            for partition in wanted:
                if partition not in self.state:
                    raise ValueError(
                        f"partition {partition} is not in the state of this step, {self.state}: hold what its buckets need"
                    )
            if not all(p in self._visible for p in wanted):
                started = time.perf_counter()
                try:
                    self._wait_for(lambda: all(p in self._visible or p not in self.state for p in wanted))
                finally:
                    self._stalled += time.perf_counter() - started
                if not all(p in self._visible for p in wanted):
                    raise RuntimeError(f"the walk moved on while {wanted} were waited for: hold in the thread that takes the steps")
            self._check()
            self._held.update(wanted)
        return wanted

    def release(self, partitions: Iterable[int]) -> None:
        with self._changed:
            for partition in partitions:
                self._held[partition] -= 1
                self._let_go(partition)

    @contextmanager
    def call(self, *, adds: bool = False) -> Iterator[HostTable | DeviceTable]:
        """The table to use. Its slots are not reused meanwhile; adds wait while a checkpoint is written."""
        with self._changed:
            self._check()
            if adds:
                self._wait_for(lambda: not self._paused)
                self._adding += 1
            if self._table is None:
                self._table = self.moves.slots.table(self._visible)
            table, generation = self._table, self._generation
            self._calls[generation] += 1
        try:
            yield table
        finally:
            with self._changed:
                self._adding -= adds
                self._calls[generation] -= 1
                if not self._calls[generation]:
                    del self._calls[generation]
                if self._leaving or self._paused:
                    self._changed.notify_all()

    def checkpoint(self, commit: Callable[[], None]) -> None:
        """Write what changed, then call `commit`, while no row changes and no partition is written back."""
        with self._changed:
            self._check()
            self._wait_for(lambda: not self._paused)
            self._paused = True
        try:
            with self._changed:
                self._wait_for(lambda: not self._adding and not self._writing)
                slots = dict(self._slot)
            for partition, slot in sorted(slots.items()):
                self.moves.save(partition, slot)
            commit()
        finally:
            with self._changed:
                self._paused = False
                self._changed.notify_all()

    def slot_of(self, partition: int) -> int | None:
        with self._changed:
            self._check()
            return self._slot.get(partition)

    def use(self) -> PartitionedUse:
        with self._changed:
            return PartitionedUse(
                **self.moves.counts(),
                read_seconds=self.moves.reads.seconds(),
                write_seconds=self.moves.writes.seconds(),
                busy_seconds=self.moves.either.seconds(),
                stall_seconds=self._stalled,
                slot_bytes=self.moves.slots.nbytes,
                peak_bytes=self._most * self.moves.files.layout.file_bytes,
            )

    def close(self) -> None:
        """Stop the threads. Nothing is written."""
        self._stop()
        self._workers.join()
        self.moves.files.close()

    def _stop(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _read_on(self) -> None:
        while (load := self._next_load()) is not None:
            partition, slot = load
            try:
                self.moves.load(partition, slot)
            except BaseException as error:
                self._fail(error)
                return
            with self._changed:
                del self._loading[partition]
                self._slot[partition] = slot
                if partition in self._unwanted:
                    self._unwanted.discard(partition)
                    self._depart(partition)
                elif partition in self.state:
                    self._visible[partition] = slot
                    self._publish()
                self._changed.notify_all()

    def _next_load(self) -> tuple[int, int] | None:
        """What to load, in the order of need: what is needed sooner never waits for a slot that later ones took."""

        def ready() -> bool:
            if not self._coming or not self._free:
                return False
            return self._coming[0][1] not in self._slot and self._coming[0][1] not in self._loading

        with self._changed:
            if not self._comes(ready):
                return None
            partition, slot = self._coming.popleft()[1], self._free.pop()
            self._loading[partition] = slot
            self._most = max(self._most, self.moves.slots.count - len(self._free))
            return partition, slot

    def _write_on(self) -> None:
        while (partition := self._next_write()) is not None:
            try:
                self.moves.write_back(partition, self._slot[partition])
            except BaseException as error:
                self._fail(error)
                return
            with self._changed:
                self._writing.discard(partition)
                self._free.append(self._slot.pop(partition))
                self._changed.notify_all()

    def _next_write(self) -> int | None:
        def ready() -> bool:
            if not self._leaving or self._paused:
                return False
            return min(self._calls, default=self._generation) >= next(iter(self._leaving.values()))

        with self._changed:
            if not self._comes(ready):
                return None
            partition = next(iter(self._leaving))
            del self._leaving[partition]
            self._writing.add(partition)
            return partition

    def _comes(self, ready: Callable[[], bool]) -> bool:
        """Wait until a thread has something to do; False if it is to end."""
        self._changed.wait_for(lambda: ready() or self._closed or self._error)
        return not (self._closed or self._error)

    def _let_go(self, partition: int) -> None:
        if partition in self._going and self._held[partition] <= 0:
            self._going.discard(partition)
            self._depart(partition)

    def _depart(self, partition: int) -> None:
        """Take a partition out of the table; a writer does the rest."""
        if self._visible.pop(partition, None) is not None:
            self._publish()
        self._leaving[partition] = self._generation
        self._changed.notify_all()

    def _is_here(self, partition: int) -> bool:
        return partition in self._slot and partition not in self._leaving and partition not in self._writing

    def _publish(self) -> None:
        """Calls from now on see what is visible now."""
        self._table = None
        self._generation += 1

    def _wait_for(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._check()
            self._changed.wait()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _check(self) -> None:
        self._workers.check()
        if self._error is not None:
            if isinstance(self._error, OSError):
                raise OSError(self._error.errno, self._error.strerror) from self._error
            raise RuntimeError(f"moving partitions failed: {self._error!r}") from self._error
        if self._closed:
            raise RuntimeError("the store is closed: open it again")
