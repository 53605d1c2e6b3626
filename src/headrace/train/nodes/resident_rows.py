"""`ResidentRows`: the features of resident partitions, one after the other in one table, read from a file in long runs."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from headrace.store import FileRows


@dataclass
class LoadUse:
    """What loading partitions took. `stall_seconds` are those that training waited."""

    bytes_read: int = 0
    loads: int = 0
    read_seconds: float = 0.0
    stall_seconds: float = 0.0


class ResidentRows:
    """Slots of `size` rows each. `load` brings partitions to their slots, `prefetch` begins with it and returns."""

    def __init__(self, features: FileRows, *, size: int, slots: int) -> None:
        self.features, self.size = features, size
        self.table = torch.empty(slots * size, features.shape[1], dtype=features.dtype)  # [slots * size, d]
        self.held: dict[int, int] = {}  # the partition in each slot that is filled
        self._use = LoadUse()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="headrace partitions")
        self._coming: Future[None] | None = None

    def load(self, places: dict[int, int]) -> None:
        """Have every partition in its slot."""
        self._settle()
        begin = perf_counter()
        self._read(places)
        self._use.stall_seconds += perf_counter() - begin

    def prefetch(self, places: dict[int, int], *, but: dict[int, int]) -> None:
        """Begin to read the partitions whose slots are not among those of `but`, which are in use."""
        used = set(but.values())
        free = {partition: slot for partition, slot in places.items() if slot not in used}
        self._coming = self._reader.submit(self._read, free)

    def close(self) -> None:
        """Wait for what is being read; what is held is forgotten."""
        self._reader.shutdown(cancel_futures=True)
        self._coming = None

    def taken(self) -> LoadUse:
        """What it took so far, once all that was begun is read; counts start again from zero."""
        self._settle()
        use, self._use = self._use, LoadUse()
        return use

    def _settle(self) -> None:
        begin = perf_counter()
        if self._coming is not None:
            coming, self._coming = self._coming, None
            coming.result()
        self._use.stall_seconds += perf_counter() - begin

    def _read(self, places: dict[int, int]) -> None:
        begin = perf_counter()
        for partition, slot in sorted(places.items()):
            if self.held.get(slot) == partition:
                continue
            self.held.pop(slot, None)
            first = partition * self.size
            ids = torch.arange(first, min(first + self.size, len(self.features)))
            self.features.read(ids, self._slot(slot, len(ids)))
            self.held[slot] = partition
            self._use.bytes_read += len(ids) * self.features.row_bytes
            self._use.loads += 1
        self._use.read_seconds += perf_counter() - begin

    def _slot(self, slot: int, rows: int) -> Tensor:
        return self.table[slot * self.size : slot * self.size + rows]
