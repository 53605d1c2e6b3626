"""Partitions front to back in bounded memory: written when a store is made, read for evaluation and export."""

from __future__ import annotations

import errno
import mmap
from collections.abc import Iterator

import torch
from torch import Tensor

from headrace.store.disk.access import DiskAccess
from headrace.store.disk.buffer import PartitionBuffer
from headrace.store.disk.checksums import PartitionChecksum
from headrace.store.disk.files import NO_SUMS, Layout, PartitionFiles, Sums, damaged
from headrace.store.disk.moves import PartitionMoves
from headrace.store.disk.slots import aligned_memory
from headrace.store.raw_rows import piece_rows
from headrace.store.trained import Initial, initial_rows

_BLOCK = 16 << 20  # bytes written at a time
_LEAST = 1 << 20  # bytes that may be read at a time, however few rows are asked for


def write_initial(files: PartitionFiles, partition: int, init: Initial, disk: DiskAccess, *, threads: int | None) -> Sums:
    """Write a partition's first version; returns its checksums, or zeros where none are kept."""
    layout = files.layout
    block = min(max(_BLOCK, layout.align), layout.file_bytes)
    block -= block % layout.align
    memory = aligned_memory(block)
    buffer = torch.frombuffer(memory, dtype=torch.uint8)
    at = filled = 0
    checksum = PartitionChecksum(layout) if files.checksummed else None
    passed = None if checksum is None else checksum.update
    with disk.open(files.next_file(partition), write=True, passed=passed) as file:
        for piece in _contents(layout, partition, init, threads):
            while len(piece):
                step = min(len(piece), block - filled)
                buffer[filled : filled + step] = piece[:step]
                piece, filled = piece[step:], filled + step
                if filled == block or at + filled == layout.file_bytes:
                    file.write(at, memoryview(memory)[:filled])
                    at, filled = at + filled, 0
    return NO_SUMS if checksum is None else checksum.sums()


def _contents(layout: Layout, partition: int, init: Initial, threads: int | None) -> Iterator[Tensor]:
    """The bytes of a new partition's file, from front to back."""
    begin, end = layout.rows_of(partition)
    for first in range(begin, end, step := piece_rows(4 * layout.shape.width)):
        rows = initial_rows(init, first, min(first + step, end), layout.shape.width, threads=threads)
        yield rows.to(layout.shape.dtype).contiguous().view(-1).view(torch.uint8)
    left = layout.file_bytes - (end - begin) * layout.row_bytes
    nothing = torch.zeros(min(left, _BLOCK), dtype=torch.uint8)
    while left:
        yield nothing[:left]
        left -= min(left, _BLOCK)


def scan_rows(moves: PartitionMoves, buffer: PartitionBuffer, rows: int | None) -> Iterator[tuple[int, Tensor]]:
    """Pieces of all rows in order, from slots where they are in memory.

    The checksum of a partition that is read from its file is known after its last piece: do not use what came before an error.
    """
    layout = moves.files.layout
    step = min(rows or piece_rows(4 * layout.shape.width), max(layout.shape.rows_per_part, 1))
    memory = aligned_memory(max(step * layout.row_bytes, _LEAST) + 2 * layout.align)
    for partition in range(layout.partitions):
        begin, end = layout.rows_of(partition)
        checksum = PartitionChecksum(layout) if moves.files.checksummed else None
        for first in range(begin, end, step):
            last = min(first + step, end)
            slice_ = (first - begin) * layout.row_bytes, (last - begin) * layout.row_bytes
            with buffer.call():  # adds may go on; slots stay, for nothing walks
                slot = buffer.slot_of(partition)
                if slot is not None:
                    checksum = None
                    moves.turns.settle()
                    data = moves.slots.bytes_of(slot, *slice_)
                else:
                    data = _read(moves.files, partition, moves.disk, memory, slice_)
                    if checksum is not None:
                        checksum.update(data.numpy().data)
                piece = data.view(layout.shape.dtype).view(last - first, layout.shape.width).to(torch.float32, copy=True)
            yield first, piece
        if checksum is not None and end > begin:
            _compare(moves, partition, checksum, memory, (end - begin) * layout.row_bytes)


def _compare(moves: PartitionMoves, partition: int, checksum: PartitionChecksum, memory: mmap.mmap, done: int) -> None:
    """Read what follows the rows of a partition, up to its states, and compare the checksum."""
    layout = moves.files.layout
    step = len(memory) - 2 * layout.align
    for begin in range(done, layout.state_offset, step):
        piece = _read(moves.files, partition, moves.disk, memory, (begin, min(begin + step, layout.state_offset)))
        checksum.update(piece.numpy().data)
    if checksum.sums()[0] != moves.files.checksums[partition][0]:
        raise OSError(errno.EIO, damaged(moves.files.file(partition)))


def _read(files: PartitionFiles, partition: int, disk: DiskAccess, memory: mmap.mmap, piece: tuple[int, int]) -> Tensor:
    """Some bytes of a file, through whole blocks of it."""
    align, (begin, end) = files.layout.align, piece
    from_, to = begin - begin % align, -(-end // align) * align
    if to > from_:
        with disk.open(files.file(partition)) as file:
            file.read(from_, memoryview(memory)[: to - from_])
    return torch.frombuffer(memory, dtype=torch.uint8)[begin - from_ : end - from_]
