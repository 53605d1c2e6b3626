"""Bytes between partition files and slots: what is read, what is written because it changed, and how long it took."""

from __future__ import annotations

import errno
import threading
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

from headrace.pipeline.stream import InTurn
from headrace.store.disk.access import PIECE, DiskAccess
from headrace.store.disk.checksums import PartitionChecksum
from headrace.store.disk.files import NO_SUMS, PartitionFiles, Sums, damaged
from headrace.store.disk.slots import Slots
from headrace.store.disk.use import BusyClock


class PartitionMoves:
    """Loads and writes whole partitions; knows which ones changed since they were written."""

    def __init__(self, files: PartitionFiles, slots: Slots, disk: DiskAccess) -> None:
        self.files, self.slots, self.disk = files, slots, disk
        self.turns = InTurn(slots.device)
        self.reads, self.writes, self.either = BusyClock(), BusyClock(), BusyClock()
        with self.turns:  # so that streams of later turns see the zeros
            self._touched = torch.zeros(files.layout.partitions, dtype=torch.uint8, device=slots.device)
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def load(self, partition: int, slot: int) -> None:
        """Read a partition into a slot."""
        path = self.files.file(partition)
        if self._move(path, slot, write=False) != self.files.checksums[partition]:
            raise OSError(errno.EIO, damaged(path))
        self._count(loads=1, bytes_read=self.files.layout.file_bytes)

    def write_back(self, partition: int, slot: int) -> None:
        """Write a partition that leaves, if it changed."""
        if self._write(partition, slot):
            self._count(write_backs=1, bytes_written=self.files.layout.file_bytes)

    def save(self, partition: int, slot: int) -> None:
        """Write a partition for a checkpoint, if it changed."""
        if self._write(partition, slot):
            self._count(checkpoint_writes=1, checkpoint_bytes=self.files.layout.file_bytes)

    def touch(self, touched: Tensor) -> None:
        """Note which partitions an add changed; within a turn.  # [partitions] uint8"""
        torch.maximum(self._touched, touched, out=self._touched)

    def counts(self) -> dict[str, int]:
        names = ("loads", "write_backs", "bytes_read", "bytes_written", "checkpoint_writes", "checkpoint_bytes")
        with self._lock:
            return {name: self._counts[name] for name in names}

    def _write(self, partition: int, slot: int) -> bool:
        self.turns.settle()
        with self.turns:
            changed = bool(self._touched[partition])
        if changed:
            path = self.files.next_file(partition)
            self.files.written(partition, self._move(path, slot, write=True))
            with self.turns:
                self._touched[partition] = 0
        return changed

    def _move(self, path: Path, slot: int, *, write: bool) -> Sums:
        """Write a slot to a file, or read it; returns the checksums of its bytes, or zeros where none are kept."""
        move, clock = (self.slots.store, self.writes) if write else (self.slots.load, self.reads)
        # A slot on the host stays as it is while its checksum is taken; the pieces that lead to a GPU are used again.
        ahead = self.slots.device.type == "cpu" and self.files.layout.file_bytes > PIECE
        with PartitionChecksum(self.files.layout, ahead=ahead) if self.files.checksummed else nullcontext() as checksum:
            passed = None if checksum is None else checksum.update
            with clock.busy(), self.either.busy(), self.disk.open(path, write=write, passed=passed) as file:
                move(file, slot)
            return NO_SUMS if checksum is None else checksum.sums()

    def _count(self, **amounts: int) -> None:
        with self._lock:
            self._counts.update(amounts)
