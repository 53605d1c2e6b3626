"""What a partition buffer did: bytes, loads, and where time went."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class PartitionedUse:
    """Counts since the store was opened. An epoch's are the difference of two.

    An order of L loads reads L S / p bytes and, if all partitions change, writes as many: 2 L S / p, padding included in S. What
    checkpoints write is counted apart.
    """

    loads: int
    write_backs: int
    bytes_read: int
    bytes_written: int
    read_seconds: float  # in which at least one read was under way
    write_seconds: float
    busy_seconds: float  # in which at least one read or write was under way
    stall_seconds: float  # waited by those who asked for a partition that was not there yet, summed over threads
    checkpoint_writes: int
    checkpoint_bytes: int
    slot_bytes: int  # memory of all slots
    peak_bytes: int  # of the most slots that were in use at a time

    def __sub__(self, before: PartitionedUse) -> PartitionedUse:
        """The counts since `before`; memory as it is now."""
        counts = {name: getattr(self, name) - getattr(before, name) for name in self.__dataclass_fields__}
        return PartitionedUse(**{**counts, "slot_bytes": self.slot_bytes, "peak_bytes": self.peak_bytes})


class BusyClock:
    """Seconds in which at least one of several threads was at work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running, self._since, self._total = 0, 0.0, 0.0

    @contextmanager
    def busy(self) -> Iterator[None]:
        with self._lock:
            if self._running == 0:
                self._since = time.perf_counter()
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if self._running == 0:
                    self._total += time.perf_counter() - self._since

    def seconds(self) -> float:
        with self._lock:
            return self._total + (time.perf_counter() - self._since if self._running else 0.0)
