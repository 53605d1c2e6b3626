"""The slots of a partition buffer: memory that a file is read into and written from as it is, and that rows are used in.

On the host a slot is page-aligned memory of its own, so the disk moves bytes into and out of it directly. On a GPU the bytes pass
through small pinned pieces, one being read or written while another is copied.
"""

from __future__ import annotations

import mmap
import queue
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from headrace._pinned import pin_in_place
from headrace.store.disk.access import PIECE, OpenFile
from headrace.store.disk.files import Layout
from headrace.store.pool import Buffers
from headrace.store.row_table import DeviceTable, HostTable

_HUGE = 8 << 20  # as in native/memory.h


class Slots(Protocol):
    """What the buffer asks of memory, on whichever device."""

    layout: Layout
    count: int
    device: torch.device

    @property
    def nbytes(self) -> int:
        return self.count * self.layout.file_bytes

    def load(self, file: OpenFile, slot: int) -> None: ...

    def store(self, file: OpenFile, slot: int) -> None: ...

    def table(self, slot_of: Mapping[int, int]) -> HostTable | DeviceTable:
        """Rows by id, of the partitions that are in slots."""
        ...

    def bytes_of(self, slot: int, begin: int, end: int) -> Tensor:
        """Some bytes of a slot, on the host: a view, or a copy."""
        ...

    def parts_of(self, slot: int) -> tuple[Tensor, Tensor]:
        """Views of a slot's rows and states.  # -> [rows_per_part, width], [rows_per_part, state]"""
        ...


class HostSlots(Slots):
    """Slots in main memory."""

    def __init__(self, layout: Layout, count: int, *, threads: int, pool: Buffers | None) -> None:
        self.layout, self.count, self.device = layout, count, torch.device("cpu")
        self._threads, self._pool = threads, pool
        self._maps = [aligned_memory(layout.file_bytes) for _ in range(count)]
        self._memory = [torch.frombuffer(m, dtype=torch.uint8) for m in self._maps]
        self._addresses = [memory.data_ptr() for memory in self._memory]

    def load(self, file: OpenFile, slot: int) -> None:
        file.read(0, memoryview(self._maps[slot])[: self.layout.file_bytes])

    def store(self, file: OpenFile, slot: int) -> None:
        file.write(0, memoryview(self._maps[slot])[: self.layout.file_bytes])

    def table(self, slot_of: Mapping[int, int]) -> HostTable:
        addresses = [0] * self.layout.partitions
        for partition, slot in slot_of.items():
            addresses[partition] = self._addresses[slot]
        bases = torch.tensor(addresses)
        states = torch.where(bases == 0, 0, bases + self.layout.state_offset)
        return HostTable(self.layout.shape, bases, states, self._threads, self._pool)

    def bytes_of(self, slot: int, begin: int, end: int) -> Tensor:
        return self._memory[slot][begin:end]

    def parts_of(self, slot: int) -> tuple[Tensor, Tensor]:
        rows, states = slot_views(self.layout, self._memory[slot].unsqueeze(0))
        return rows[0], states[0]


class DeviceSlots(Slots):
    """Slots in GPU memory, filled and written through `STAGES` pinned pieces for each file under way."""

    STAGES = 2

    def __init__(self, layout: Layout, count: int, device: torch.device, *, transfers: int) -> None:
        self.layout, self.count, self.device = layout, count, device
        self._memory = torch.empty(count, layout.file_bytes, dtype=torch.uint8, device=device)
        self._piece = min(PIECE, layout.file_bytes)
        self._staging: queue.SimpleQueue[list[_Stage]] = queue.SimpleQueue()
        for _ in range(transfers):
            self._staging.put([_Stage(self._piece) for _ in range(self.STAGES)])
        self._rows, self._states = slot_views(layout, self._memory)

    @contextmanager
    def _staged(self) -> Iterator[tuple[list[_Stage], torch.cuda.Stream]]:
        """Pinned pieces for one file, and a stream to copy on, whose work is over when the block is."""
        stages, stream = self._staging.get(), torch.cuda.Stream(self.device)
        try:
            yield stages, stream
        finally:
            stream.synchronize()
            self._staging.put(stages)

    def load(self, file: OpenFile, slot: int) -> None:
        with self._staged() as (stages, stream):
            for number, begin in enumerate(range(0, self.layout.file_bytes, self._piece)):
                stage, length = stages[number % self.STAGES], min(self._piece, self.layout.file_bytes - begin)
                stage.wait()
                file.read(begin, memoryview(stage.map)[:length])
                with torch.cuda.stream(stream):
                    self._memory[slot, begin : begin + length].copy_(stage.memory[:length], non_blocking=True)
                    stage.record(stream)

    def store(self, file: OpenFile, slot: int) -> None:
        size = self.layout.file_bytes

        def fetch(begin: int, stage: _Stage) -> None:
            length = min(self._piece, size - begin)
            with torch.cuda.stream(stream):
                stage.memory[:length].copy_(self._memory[slot, begin : begin + length], non_blocking=True)
                stage.record(stream)

        with self._staged() as (stages, stream):
            fetch(0, stages[0])
            for number, begin in enumerate(range(0, size, self._piece)):
                stage = stages[number % self.STAGES]
                if begin + self._piece < size:
                    fetch(begin + self._piece, stages[(number + 1) % self.STAGES])
                stage.wait()
                file.write(begin, memoryview(stage.map)[: min(self._piece, size - begin)])

    def table(self, slot_of: Mapping[int, int]) -> DeviceTable:
        where = [-1] * self.layout.partitions
        for partition, slot in slot_of.items():
            where[partition] = slot
        return DeviceTable(self.layout.shape, self._rows, self._states, torch.tensor(where, device=self.device))

    def bytes_of(self, slot: int, begin: int, end: int) -> Tensor:
        return self._memory[slot, begin:end].cpu()

    def parts_of(self, slot: int) -> tuple[Tensor, Tensor]:
        return self._rows[slot], self._states[slot]


def slot_views(layout: Layout, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and states where they lie in slots.  # [slots, bytes] -> [slots, rows_per_part, width], [slots, rows_per_part, state]"""
    shape, rows, words = layout.shape, memory.view(layout.shape.dtype), memory.view(torch.float32)
    count, long = len(memory), shape.rows_per_part
    states = words.as_strided((count, long, shape.state), (words.shape[1], shape.state, 1), layout.state_offset // 4)
    return rows.as_strided((count, long, shape.width), (rows.shape[1], shape.width, 1)), states


class _Stage:
    """A pinned piece of host memory, and the copy it takes part in."""

    def __init__(self, size: int) -> None:
        self.map = aligned_memory(size)
        self.memory = torch.frombuffer(self.map, dtype=torch.uint8)
        self._pinned = pin_in_place(self.memory, self, remedy="use device='cpu'")
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def record(self, stream: torch.cuda.Stream) -> None:
        self._copied.record(stream)

    def wait(self) -> None:
        self._copied.synchronize()


def aligned_memory(size: int) -> mmap.mmap:
    """Page-aligned memory, zero until it is written, on huge pages where it is large."""
    memory = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
