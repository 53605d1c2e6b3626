"""Bytes between partition files and slots: what is read, what is written because it changed, and how long it took."""

from __future__ import annotations

import errno
import threading
import zlib
from collections import Counter

import torch
from torch import Tensor

from headrace.pipeline.stream import InTurn
from headrace.store.disk.access import DiskAccess
from headrace.store.disk.files import PartitionFiles
from headrace.store.disk.slots import Slots
from headrace.store.disk.use import BusyClock

_PIECE = 16 << 20  # bytes whose checksum is taken at a time


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
        with self.reads.busy(), self.either.busy(), self.disk.open(path) as file:
            self.slots.load(file, slot)
        if self.files.checksummed and self._checksum(slot) != self.files.checksums[partition]:
            raise OSError(errno.EIO, f"{path} is damaged: its checksum is not the one that was written")
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
            with self.writes.busy(), self.either.busy(), self.disk.open(path, write=True) as file:
                self.slots.store(file, slot)
            self.files.written(partition, self._checksum(slot) if self.files.checksummed else 0)
            with self.turns:
                self._touched[partition] = 0
        return changed

    def _checksum(self, slot: int) -> int:
        checksum, size = 0, self.files.layout.file_bytes
        for begin in range(0, size, _PIECE):
            piece = self.slots.bytes_of(slot, begin, min(begin + _PIECE, size))
            checksum = zlib.crc32(piece.numpy().data, checksum)
        return checksum

    def _count(self, **amounts: int) -> None:
        with self._lock:
            self._counts.update(amounts)
