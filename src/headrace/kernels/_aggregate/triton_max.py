"""The maximum of rows over a CSR, and which entry of its row each element came from, on a GPU.

Numbers are compared as integers in the same order, NaN above all others as in torch, and -0 equal to 0: so the first entry that
reaches the maximum is a minimum over whole numbers. Heavy rows are cut as sums are, and their groups compared in order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels._aggregate.launch import Launch
from headrace.kernels._aggregate.work import Work, sum_type
from headrace.kernels._on_gpu import launching


@triton.jit  # type: ignore[untyped-decorator]
def _key(value):  # type: ignore[no-untyped-def]
    """An integer as large as the number is."""
    whole: tl.constexpr = tl.int64 if value.dtype == tl.float64 else tl.int32
    most: tl.constexpr = 0x7FFFFFFFFFFFFFFF if value.dtype == tl.float64 else 0x7FFFFFFF
    bits = (value + 0.0).to(whole, bitcast=True)  # -0 becomes 0
    return tl.where(value != value, most, tl.where(bits < 0, bits ^ most, bits))


@triton.jit  # type: ignore[untyped-decorator]
def _number(key):  # type: ignore[no-untyped-def]
    """The number of a key."""
    kind: tl.constexpr = tl.float64 if key.dtype == tl.int64 else tl.float32
    most: tl.constexpr = 0x7FFFFFFFFFFFFFFF if key.dtype == tl.int64 else 0x7FFFFFFF
    return tl.where(key < 0, key ^ most, key).to(kind, bitcast=True)


@triton.jit(do_not_specialize=["sources", "rows_of_x", "limit"])  # type: ignore[untyped-decorator]
def max_kernel(  # type: ignore[no-untyped-def]
    x,
    begins,
    ends,
    indices,
    ids,
    weight,
    out,
    where,
    sources,
    rows_of_x,
    limit,
    by_id: tl.constexpr,
    weighted: tl.constexpr,
    width: tl.constexpr,
    entries: tl.constexpr,
    columns: tl.constexpr,
    stages: tl.constexpr,
):
    kind: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    whole: tl.constexpr = tl.int64 if x.dtype.element_ty == tl.float64 else tl.int32
    none: tl.constexpr = -(2**63) if x.dtype.element_ty == tl.float64 else -(2**31)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < width
    begin, end = tl.load(begins + row), tl.load(ends + row)
    mine = (limit < 0) | (end - begin <= limit)
    inside = inside & mine
    end = tl.where(mine, end, begin)
    best = tl.full([columns], none, dtype=whole)
    which = tl.full([columns], -1, dtype=tl.int32)
    for first in tl.range(begin, end, entries, num_stages=stages):
        entry = first + tl.arange(0, entries)
        valid = entry < end
        source = tl.load(indices + entry, mask=valid, other=-1).to(tl.int64)
        valid = (source >= 0) & (source < sources)
        if by_id:
            source = tl.load(ids + source, mask=valid, other=-1).to(tl.int64)
            valid = (source >= 0) & (source < rows_of_x)
        seen = valid[:, None] & inside[None, :]
        value = tl.load(x + ((source * width)[:, None] + column[None, :]), mask=seen, other=0.0).to(kind)
        if weighted:
            value *= tl.load(weight + entry, mask=valid, other=0.0).to(kind)[:, None]
        key = tl.where(seen, _key(value), none)
        largest = tl.max(key, axis=0)
        slot = (entry - begin).to(tl.int32)
        earliest = tl.min(tl.where(key == largest[None, :], slot[:, None], 0x7FFFFFFF), axis=0)
        better = largest > best
        best = tl.where(better, largest, best)
        which = tl.where(better, earliest, which)
    value = tl.where(which < 0, 0.0, _number(best))
    place = row * width + column
    tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)
    tl.store(where + place, which, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def largest_group_kernel(  # type: ignore[no-untyped-def]
    parts, slots, heavy, firsts, out, where, group: tl.constexpr, width: tl.constexpr, columns: tl.constexpr
):
    """The largest of a heavy row's groups, the first of equal ones."""
    number = tl.program_id(0).to(tl.int64)
    row = tl.load(heavy + number)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < width
    begin, end = tl.load(firsts + number), tl.load(firsts + number + 1)
    best = tl.load(parts + begin * width + column, mask=inside, other=0.0)
    which = tl.load(slots + begin * width + column, mask=inside, other=-1)
    for part in range(begin + 1, end):
        value = tl.load(parts + part * width + column, mask=inside, other=0.0)
        slot = tl.load(slots + part * width + column, mask=inside, other=-1)
        better = (slot >= 0) & ((which < 0) | (_key(value) > _key(best)))
        best = tl.where(better, value, best)
        which = tl.where(better, slot + ((part - begin) * group).to(tl.int32), which)
    tl.store(out + row * width + column, best.to(out.dtype.element_ty), mask=inside)
    tl.store(where + row * width + column, which, mask=inside)


def max_rows(work: Work, launch: Launch, plan: tuple[Tensor, ...] = ()) -> tuple[Tensor, Tensor]:
    """The maximum over the entries of each row, 0 in an empty one, and which entry of its row it is.  # -> [rows, d] twice"""
    x = work.x
    out = x.new_empty(work.rows, x.shape[1])
    where = torch.empty(out.shape, dtype=torch.int32, device=x.device)
    if out.numel() == 0:
        return out, where
    split = launch.variant == "split" and len(plan[0]) > 0
    if split:
        heavy, firsts, begins, ends = plan
        parts = out.new_empty(len(begins), x.shape[1], dtype=sum_type(x.dtype))
        slots = where.new_empty(parts.shape)
        _launch(work, begins, ends, parts, slots, launch)
    _launch(work, work.indptr[:-1], work.indptr[1:], out, where, launch, limit=launch.group if split else -1)
    if split:
        with launching(x.device):
            largest_group_kernel[len(heavy), triton.cdiv(x.shape[1], launch.columns)](
                parts, slots, heavy, firsts, out, where, group=launch.group, width=x.shape[1], columns=launch.columns, num_warps=1
            )
    return out, where


def _launch(work: Work, begins: Tensor, ends: Tensor, out: Tensor, where: Tensor, launch: Launch, *, limit: int = -1) -> None:
    x = work.x
    with launching(x.device):
        max_kernel[len(begins), triton.cdiv(x.shape[1], launch.columns)](
            x,
            begins,
            ends,
            work.indices,
            work.indices if work.ids is None else work.ids,
            x if work.weight is None else work.weight,
            out,
            where,
            work.sources,
            x.shape[0],
            limit,
            by_id=work.ids is not None,
            weighted=work.weight is not None,
            width=x.shape[1],
            entries=launch.entries,
            columns=launch.columns,
            stages=launch.stages,
            num_warps=launch.warps,
        )
