"""Partitions front to back in bounded memory: written when a store is made, read for evaluation and export."""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Iterator

import torch
from torch import Tensor

from headrace.store.disk.access import DiskAccess
from headrace.store.disk.buffer import PartitionBuffer
from headrace.store.disk.files import Layout, PartitionFiles
from headrace.store.disk.moves import PartitionMoves
from headrace.store.disk.slots import aligned_memory
from headrace.store.raw_rows import piece_rows
from headrace.store.trained import Initial, initial_rows

_BLOCK = 16 << 20  # bytes written at a time


def write_initial(files: PartitionFiles, partition: int, init: Initial, disk: DiskAccess, *, threads: int | None) -> int:
    """Write a partition's first version; its checksum, or 0 where none are kept."""
    layout = files.layout
    block = min(max(_BLOCK, layout.align), layout.file_bytes)
    block -= block % layout.align
    memory = aligned_memory(block)
    buffer = torch.frombuffer(memory, dtype=torch.uint8)
    at, filled, checksum = 0, 0, 0
    with disk.open(files.next_file(partition), write=True) as file:
        for piece in _contents(layout, partition, init, threads):
            while len(piece):
                step = min(len(piece), block - filled)
                buffer[filled : filled + step] = piece[:step]
                piece, filled = piece[step:], filled + step
                if filled == block or at + filled == layout.file_bytes:
                    file.write(at, memoryview(memory)[:filled])
                    if files.checksummed:
                        checksum = zlib.crc32(memoryview(memory)[:filled], checksum)
                    at, filled = at + filled, 0
    return checksum


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
    """Pieces of all rows in order, from slots where they are in memory."""
    layout = moves.files.layout
    step = min(rows or piece_rows(4 * layout.shape.width), max(layout.shape.rows_per_part, 1))
    memory = aligned_memory(step * layout.row_bytes + 2 * layout.align)
    for partition in range(layout.partitions):
        begin, end = layout.rows_of(partition)
        for first in range(begin, end, step):
            last = min(first + step, end)
            slice_ = (first - begin) * layout.row_bytes, (last - begin) * layout.row_bytes
            with buffer.call():  # adds may go on; slots stay, for nothing walks
                slot = buffer.slot_of(partition)
                if slot is not None:
                    moves.turns.settle()
                    data = moves.slots.bytes_of(slot, *slice_)
                else:
                    data = _read(moves.files, partition, moves.disk, memory, slice_)
                piece = data.view(layout.shape.dtype).view(last - first, layout.shape.width).to(torch.float32, copy=True)
            yield first, piece


def _read(files: PartitionFiles, partition: int, disk: DiskAccess, memory: mmap.mmap, piece: tuple[int, int]) -> Tensor:
    """Some bytes of a file, through whole blocks of it."""
    align, (begin, end) = files.layout.align, piece
    from_, to = begin - begin % align, -(-end // align) * align
    if to > from_:
        with disk.open(files.file(partition)) as file:
            file.read(from_, memoryview(memory)[: to - from_])
    return torch.frombuffer(memory, dtype=torch.uint8)[begin - from_ : end - from_]
