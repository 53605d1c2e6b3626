"""Sums of rows over a CSR, on a GPU: a program per row (or group of a heavy row) and block of columns.

A program reads a tile of several neighbors by a block of columns at a time: their ids are one read and their rows many that wait
for nothing else, where a loop over single ids would wait for each. Blocks of columns are the outer axis of the grid, so that all
rows are done with one slice of x before the next. One warp is best on an H200: with more, the sum over a tile has to pass
through shared memory. Sums are kept in fp32 (fp64 for fp64 rows), every element is written once and by one program, and the
order of the additions depends on the launch alone: always the same bits.
"""

from __future__ import annotations

from dataclasses import replace

import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels._aggregate.launch import Launch
from headrace.kernels._aggregate.work import Work, sum_type
from headrace.kernels._on_gpu import launching


@triton.jit  # type: ignore[untyped-decorator]
def _sum_block(  # type: ignore[no-untyped-def]
    row_block,
    column_block,
    read,
    weights,
    factors,
    choice,
    out,
    sizes,
    by_id: tl.constexpr,
    weighted: tl.constexpr,
    placed: tl.constexpr,
    scaled: tl.constexpr,
    row_scaled: tl.constexpr,
    chosen: tl.constexpr,
    mean: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
    entries: tl.constexpr,
    columns: tl.constexpr,
    stages: tl.constexpr,
):
    """The sums of one block of rows, a block of columns of them (see the kernel)."""
    x, begins, ends, indices, ids = read
    weight, position = weights
    scale, row_scale = factors
    taken, forward = choice
    sources, rows_of_x, count, limit = sizes
    kind: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    row = row_block * rows + tl.arange(0, rows)
    column = column_block * columns + tl.arange(0, columns)
    inside = column < width
    valid = row < count
    begin = tl.load(begins + row, mask=valid, other=0)
    end = tl.load(ends + row, mask=valid, other=0)
    valid = valid & ((limit < 0) | (end - begin <= limit))
    end = tl.where(valid, end, begin)
    most = tl.max(end - begin, axis=0)
    total = tl.zeros([rows, columns], dtype=kind)
    for first in tl.range(0, most, entries, num_stages=stages):
        entry = begin[:, None] + (first + tl.arange(0, entries))[None, :]
        named = entry < end[:, None]
        source = tl.load(indices + entry, mask=named, other=-1).to(tl.int64)
        named = (source >= 0) & (source < sources)
        if weighted or chosen:
            at = entry
            if placed:
                at = tl.load(position + entry, mask=named, other=0).to(tl.int64)
        if chosen:
            slot = (at - tl.load(forward + source, mask=named, other=0)).to(tl.int32)
        if scaled:
            factor = tl.load(scale + source, mask=named, other=0.0).to(kind)
        if by_id:
            source = tl.load(ids + source, mask=named, other=-1).to(tl.int64)
            named = (source >= 0) & (source < rows_of_x)
        place = (source * width)[:, :, None] + column[None, None, :]
        seen = named[:, :, None] & inside[None, None, :]
        value = tl.load(x + place, mask=seen, other=0.0).to(kind)
        if chosen:  # not as a mask of the read, which would then be element by element
            value = tl.where(tl.load(taken + place, mask=seen, other=-1) == slot[:, :, None], value, 0.0)
        if weighted:
            value *= tl.load(weight + at, mask=named, other=0.0).to(kind)[:, :, None]
        if scaled:
            value *= factor[:, :, None]
        total += tl.sum(value, axis=1)
    if mean:
        total /= tl.maximum(end - begin, 1).to(kind)[:, None]
    if row_scaled:
        total *= tl.load(row_scale + row, mask=valid, other=0.0).to(kind)[:, None]
    target = (row * width)[:, None] + column[None, :]
    tl.store(out + target, total.to(out.dtype.element_ty), mask=valid[:, None] & inside[None, :])


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["sources", "rows_of_x", "count", "limit", "row_blocks", "blocks", "programs"]
)
def sum_kernel(  # type: ignore[no-untyped-def]
    x,
    begins,
    ends,
    indices,
    ids,
    weight,
    position,
    scale,
    row_scale,
    taken,
    forward,
    out,
    sources,
    rows_of_x,
    count,
    limit,
    row_blocks,
    blocks,
    programs,
    by_id: tl.constexpr,
    weighted: tl.constexpr,
    placed: tl.constexpr,
    scaled: tl.constexpr,
    row_scaled: tl.constexpr,
    chosen: tl.constexpr,
    mean: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
    entries: tl.constexpr,
    columns: tl.constexpr,
    stages: tl.constexpr,
    bounded: tl.constexpr,
):
    """out[v] = row_scale[v] * sum over e from begins[v] to ends[v] of weight * scale[s] * x[s], s = indices[e].

    `placed`: the weight of entry e is weight[position[e]]. `chosen`: an element counts where taken[s] is position[e] - forward[s],
    which is the gradient of a maximum. `limit`: rows of more entries are left alone, unless it is negative. `rows` at a time share
    a program. `bounded`: so many `programs` do all `blocks`, of which `row_blocks` have the same columns.
    """
    read, weights, factors, choice = (x, begins, ends, indices, ids), (weight, position), (scale, row_scale), (taken, forward)
    sizes = sources, rows_of_x, count, limit
    if bounded:
        for number in range(tl.program_id(0), blocks, programs):
            row_block, column_block = (number % row_blocks).to(tl.int64), (number // row_blocks).to(tl.int32)
            _sum_block(
                row_block, column_block, read, weights, factors, choice, out, sizes,
                by_id, weighted, placed, scaled, row_scaled, chosen, mean, width, rows, entries, columns, stages,
            )  # fmt: skip
    else:
        _sum_block(
            tl.program_id(0).to(tl.int64), tl.program_id(1), read, weights, factors, choice, out, sizes,
            by_id, weighted, placed, scaled, row_scaled, chosen, mean, width, rows, entries, columns, stages,
        )  # fmt: skip


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def add_groups_kernel(  # type: ignore[no-untyped-def]
    parts,
    heavy,
    firsts,
    degrees_begin,
    row_scale,
    out,
    count,
    row_scaled: tl.constexpr,
    mean: tl.constexpr,
    width: tl.constexpr,
    entries: tl.constexpr,
    columns: tl.constexpr,
):
    """out[heavy[h]] = the sum of its groups, in order."""
    number = tl.program_id(0).to(tl.int64)
    row = tl.load(heavy + number)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < width
    begin, end = tl.load(firsts + number), tl.load(firsts + number + 1)
    total = tl.zeros([columns], dtype=parts.dtype.element_ty)
    for first in range(begin, end, entries):
        group = first + tl.arange(0, entries)
        place = (group * width)[:, None] + column[None, :]
        total += tl.sum(tl.load(parts + place, mask=(group < end)[:, None] & inside[None, :], other=0.0), axis=0)
    if mean:
        total /= (tl.load(degrees_begin + row + 1) - tl.load(degrees_begin + row)).to(total.dtype)
    if row_scaled:
        total *= tl.load(row_scale + row).to(total.dtype)
    tl.store(out + row * width + column, total.to(out.dtype.element_ty), mask=inside)


def sum_rows(work: Work, launch: Launch, plan: tuple[Tensor, ...] = ()) -> Tensor:
    """The sum or mean of `work`, by the launch "row", or "split" with the groups of its heavy rows.  # -> [rows, d]"""
    out = work.x.new_empty(work.rows, work.x.shape[1])
    if out.numel() == 0:
        return out
    split = launch.variant == "split" and len(plan[0]) > 0
    if split:
        heavy, firsts, begins, ends = plan
        parts = out.new_empty(len(begins), out.shape[1], dtype=sum_type(out.dtype))
        groups = replace(launch, rows=1, entries=max(launch.entries, 8))  # they are long, and one is enough for a program
        _launch(replace(work, row_scale=None, reduce="sum"), begins, ends, parts, groups)
    _launch(work, work.indptr[:-1], work.indptr[1:], out, launch, limit=launch.group if split else -1)
    if split:
        with launching(out.device):
            add_groups_kernel[len(heavy), triton.cdiv(out.shape[1], launch.columns)](
                parts,
                heavy,
                firsts,
                work.indptr,
                parts if work.row_scale is None else work.row_scale,
                out,
                len(heavy),
                row_scaled=work.row_scale is not None,
                mean=work.reduce == "mean",
                width=out.shape[1],
                entries=8,
                columns=launch.columns,
                num_warps=1,
            )
    return out


def _launch(work: Work, begins: Tensor, ends: Tensor, out: Tensor, launch: Launch, *, limit: int = -1) -> None:
    x, count, width = work.x, len(begins), work.x.shape[1]
    rows = launch.rows
    plain = work.weight is None and work.ids is None and work.taken is None
    row_blocks, column_blocks = triton.cdiv(count, rows), triton.cdiv(width, launch.columns)
    bounded = 0 < launch.programs < row_blocks * column_blocks
    with launching(x.device):
        sum_kernel[(launch.programs,) if bounded else (row_blocks, column_blocks)](
            x,
            begins,
            ends,
            work.indices,
            work.indices if work.ids is None else work.ids,
            x if work.weight is None else work.weight,
            work.indices if work.position is None else work.position,
            x if work.scale is None else work.scale,
            x if work.row_scale is None else work.row_scale,
            work.indices if work.taken is None else work.taken,
            work.indptr if work.forward is None else work.forward,
            out,
            work.sources,
            x.shape[0],
            count,
            limit,
            row_blocks,
            row_blocks * column_blocks,
            launch.programs,
            by_id=work.ids is not None,
            weighted=work.weight is not None,
            placed=work.position is not None,
            scaled=work.scale is not None,
            row_scaled=work.row_scale is not None,
            chosen=work.taken is not None,
            mean=work.reduce == "mean",
            width=width,
            rows=rows,
            entries=launch.entries,
            columns=launch.columns,
            stages=launch.stages if plain else 1,  # a pipeline of all that is read besides is more code than gain
            bounded=bounded,
            num_warps=launch.warps,
        )
