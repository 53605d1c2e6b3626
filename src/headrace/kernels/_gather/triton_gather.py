"""Rows by id on a GPU: out of one array, or out of several memories in one launch.

Rows are copied as bytes. The output is cut into chunks of the largest size up to 16 bytes that divides a row, and neighboring
threads take neighboring chunks, whichever rows they belong to: reads and writes are wide for any width, no thread idles on the
tail of a row, and every thread has several reads under way that depend on nothing but their ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels._gather.sharded import ShardTable
from headrace.kernels._on_gpu import launching

_UNITS = {4: torch.int32, 2: torch.int16, 1: torch.int8}
_LINE = 128  # bytes that memory and the bus move at once
_WARPS = 4


@triton.jit  # type: ignore[untyped-decorator]
def _cut(count, chunks: tl.constexpr, lanes: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which row of the output and which chunk of it: `lanes` places a row, of which the first `chunks` are taken."""
    first = tl.program_id(0).to(tl.int64) * block
    place = (first % lanes).to(tl.int32) + tl.arange(0, block)
    target = first // lanes + place // lanes
    column = place % lanes
    return target, column, (target < count) & (column < chunks)


@triton.jit(do_not_specialize=["num_rows", "count"])  # type: ignore[untyped-decorator]
def _gather_kernel(  # type: ignore[no-untyped-def]
    rows, ids, out, num_rows, count, per_chunk: tl.constexpr, chunks: tl.constexpr, lanes: tl.constexpr, block: tl.constexpr
):
    target, column, valid = _cut(count, chunks, lanes, block)
    row = tl.load(ids + target, mask=valid, other=-1).to(tl.int64)
    valid = valid & (row >= 0) & (row < num_rows)
    unit = column[:, None] * per_chunk + tl.arange(0, per_chunk)[None, :]
    value = tl.load(rows + (row * (chunks * per_chunk))[:, None] + unit, mask=valid[:, None])
    tl.store(out + (target * (chunks * per_chunk))[:, None] + unit, value, mask=valid[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def find(  # type: ignore[no-untyped-def]
    row, valid, location, begins, bases, num_rows, by_table: tl.constexpr, row_bits: tl.constexpr, shards: tl.constexpr, stride
):
    """The address of each row, its shard, and whether it is in any."""
    valid = valid & (row >= 0) & (row < num_rows)
    if by_table:
        entry = tl.load(location + row, mask=valid, other=-1).to(tl.int64)
        valid = valid & (entry >= 0)
        shard = tl.where(valid, entry >> row_bits, 0)
        inner = entry & ((1 << row_bits) - 1)
    else:
        shard = tl.zeros_like(row)
        begin = tl.zeros_like(row)
        for s in tl.static_range(1, shards):
            at = tl.load(begins + s)
            shard = tl.where(row >= at, s, shard)
            begin = tl.where(row >= at, at, begin)
        valid = valid & (row < tl.load(begins + shards))
        inner = row - begin
    base = tl.load(bases + shard, mask=valid, other=0)
    return base + tl.where(valid, inner, 0) * stride, shard, valid


@triton.jit(do_not_specialize=["num_rows", "count", "blocks", "programs"])  # type: ignore[untyped-decorator]
def _gather_sharded_kernel(  # type: ignore[no-untyped-def]
    location,
    begins,
    bases,
    ids,
    order,
    out,
    hits,
    num_rows,
    count,
    blocks,
    programs,
    by_table: tl.constexpr,
    row_bits: tl.constexpr,
    shards: tl.constexpr,
    stride: tl.constexpr,
    ordered: tl.constexpr,
    counted: tl.constexpr,
    unit_bytes: tl.constexpr,
    per_chunk: tl.constexpr,
    chunks: tl.constexpr,
    lanes: tl.constexpr,
    line: tl.constexpr,
    block: tl.constexpr,
):
    chunk_bytes: tl.constexpr = per_chunk * unit_bytes
    for number in range(tl.program_id(0), blocks, programs):
        first = tl.full([], block, tl.int64) * number
        place = (first % lanes).to(tl.int32) + tl.arange(0, block)
        target = first // lanes + place // lanes
        valid = target < count
        if ordered:
            target = tl.load(order + target, mask=valid, other=0)
        row = tl.load(ids + target, mask=valid, other=-1).to(tl.int64)
        address, shard, valid = find(row, valid, location, begins, bases, num_rows, by_table, row_bits, shards, stride)
        # Lanes stand on the lines of memory, not on the row's own: what a group of threads asks for at once is one request.
        column = place % lanes - ((address // chunk_bytes) % line).to(tl.int32)
        if counted:
            for s in tl.static_range(shards):
                hit_count = tl.sum((valid & (column == 0) & (shard == s)).to(tl.int64), axis=0)
                tl.atomic_add(hits + s, hit_count, sem="relaxed")
        valid = valid & (column >= 0) & (column < chunks)
        start = address + column * chunk_bytes
        # The compiler cannot know how addresses from a table are aligned, and without it reads unit by unit.
        source = tl.multiple_of(start.to(tl.pointer_type(out.dtype.element_ty), bitcast=True), chunk_bytes)
        unit = tl.arange(0, per_chunk)[None, :]
        value = tl.load(source[:, None] + unit, mask=valid[:, None])
        tl.store(out + (target * (chunks * per_chunk) + column * per_chunk)[:, None] + unit, value, mask=valid[:, None])


@triton.jit(do_not_specialize=["num_rows", "count"])  # type: ignore[untyped-decorator]
def _add_sharded_kernel(  # type: ignore[no-untyped-def]
    location,
    begins,
    bases,
    ids,
    delta,
    num_rows,
    count,
    by_table: tl.constexpr,
    row_bits: tl.constexpr,
    shards: tl.constexpr,
    stride: tl.constexpr,
    half: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    target, column, valid = _cut(count, width, width, block)
    row = tl.load(ids + target, mask=valid, other=-1).to(tl.int64)
    address, _, valid = find(row, valid, location, begins, bases, num_rows, by_table, row_bits, shards, stride)
    place = address.to(tl.pointer_type(delta.dtype.element_ty), bitcast=True) + column
    old = tl.load(place, mask=valid)
    more = tl.load(delta + target * width + column, mask=valid)
    if half:
        new = (old.to(tl.float32) + more.to(tl.float32)).to(delta.dtype.element_ty)
    else:
        new = old + more
    tl.store(place, new, mask=valid)


@dataclass(frozen=True)
class Cut:
    """How rows are cut: units of a type, so many in a chunk, chunks in a row, places for them, places in a program."""

    unit: int
    per_chunk: int
    chunks: int
    lanes: int
    line: int
    block: int

    @classmethod
    def of(cls, row_bytes: int, *alignments: int, on_lines: bool = False) -> Cut:
        """The widest that rows and addresses (all multiples of `alignments`) allow.

        `on_lines` gives a row places for all lines of memory that it may touch, wherever in a line it begins.
        """
        chunk = gcd(16, row_bytes, *alignments)
        unit = min(chunk, 4)
        chunks, line = row_bytes // chunk, _LINE // chunk if on_lines else 1
        latest = _LINE - gcd(_LINE, *alignments) if on_lines else 0  # where in a line a row may begin
        lanes = -(-(row_bytes + latest) // (line * chunk)) * line
        return cls(unit, chunk // unit, chunks, lanes, line, block=_WARPS * 32 * (4 if chunk == 16 else 8))

    def grid(self, count: int) -> tuple[int]:
        return (-(-count * self.lanes // self.block),)


def gather_rows(x: Tensor, ids: Tensor, out: Tensor, row_bytes: int) -> None:
    """out[i] = x[ids[i]], both contiguous, ids on their device. An id out of range reads and writes nothing."""
    count = len(ids)
    if count == 0 or row_bytes == 0 or len(x) == 0:
        return
    cut = Cut.of(row_bytes, *_alignment(x), *_alignment(out))
    with launching(x.device):
        _gather_kernel[cut.grid(count)](
            _units(x, cut.unit),
            ids,
            _units(out, cut.unit),
            len(x),
            count,
            per_chunk=cut.per_chunk,
            chunks=cut.chunks,
            lanes=cut.lanes,
            block=cut.block,
            num_warps=_WARPS,
        )


def gather_sharded_rows(
    table: ShardTable, ids: Tensor, out: Tensor, row_bytes: int, *, hits: Tensor | None, order: Tensor | None, programs: int | None
) -> None:
    """out[i] = the row of ids[i], wherever it lies; rows that lie in no shard are left as they are.

    `order` (int64) says in which order; `programs` bounds how many work at a time.
    """
    count = len(ids)
    if count == 0 or row_bytes == 0:
        return
    cut = Cut.of(row_bytes, table.stride, table.base_alignment, on_lines=True)
    aligned = Cut.of(row_bytes, table.stride, table.base_alignment, *_alignment(out), on_lines=True)
    cut = aligned if aligned.per_chunk * aligned.unit < cut.per_chunk * cut.unit else cut
    most = cut.grid(count)[0]
    programs = most if programs is None else min(programs, most)
    with launching(out.device):
        _gather_sharded_kernel[(programs,)](
            *_places(table),
            ids,
            ids if order is None else order,
            _units(out, cut.unit),
            table.bases if hits is None else hits,
            table.num_rows,
            count,
            most,
            programs,
            **_how_found(table),
            ordered=order is not None,
            counted=hits is not None,
            unit_bytes=cut.unit,
            per_chunk=cut.per_chunk,
            chunks=cut.chunks,
            lanes=cut.lanes,
            line=cut.line,
            block=cut.block,
            num_warps=_WARPS,
        )


def add_sharded_rows(table: ShardTable, ids: Tensor, delta: Tensor) -> None:
    """Add delta[i] to the row of ids[i], no id twice; rows that lie in no shard are left as they are."""
    count, width = len(ids), delta.shape[1]
    if count == 0 or width == 0:
        return
    block = _WARPS * 32 * 8
    with launching(delta.device):
        _add_sharded_kernel[(-(-count * width // block),)](
            *_places(table),
            ids,
            delta,
            table.num_rows,
            count,
            **_how_found(table),
            half=delta.dtype in (torch.float16, torch.bfloat16),
            width=width,
            block=block,
            num_warps=_WARPS,
        )


def _places(table: ShardTable) -> tuple[Tensor, Tensor, Tensor]:
    """Location, begins and bases: what `find` reads."""
    bases = table.bases
    return bases if table.location is None else table.location, bases if table.begins is None else table.begins, bases


def _how_found(table: ShardTable) -> dict[str, int]:
    by_table = table.location is not None
    return {"by_table": by_table, "row_bits": table.row_bits, "shards": len(table.bases), "stride": table.stride}


def _alignment(t: Tensor) -> tuple[int, int]:
    return t.data_ptr(), int(t.storage_offset()) * t.element_size()


def _units(t: Tensor, unit: int) -> Tensor:
    return t.detach().view(-1).view(torch.uint8).view(_UNITS[unit])
