"""Sums over windows of consecutive rows that read the neighbors they have in common once, on a GPU.

A window of 16 or 32 rows has a list of its distinct neighbors, each with a bit for every row that has it (TC-GNN, Wang et al.,
ATC'23, condenses windows so). The sum is a product: the bits as zeros and ones, [window x neighbors], times the neighbors' rows,
[neighbors x columns]. The product of a bit and a number is exact in every type, so this rounds as any other sum does. But zero
times infinity is not zero: a window whose sums are not all finite is done again, with such numbers taken out and put where they
belong.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels._aggregate.launch import Launch
from headrace.kernels._aggregate.work import Work
from headrace.kernels._on_gpu import launching


@triton.jit  # type: ignore[untyped-decorator]
def _tile(  # type: ignore[no-untyped-def]
    read, first, end, column, by_id: tl.constexpr, scaled: tl.constexpr, window: tl.constexpr, entries: tl.constexpr
):
    """Which rows of the window have the next neighbors, as ones, and the neighbors' rows. `read`: what of (see the kernel)."""
    x, rows_of_x, width, neighbors, bits, sources, ids, scale = read
    entry = first + tl.arange(0, entries)
    valid = entry < end
    source = tl.load(neighbors + entry, mask=valid, other=-1).to(tl.int64)
    has = tl.load(bits + entry, mask=valid, other=0)
    valid = (source >= 0) & (source < sources)
    if scaled:
        factor = tl.load(scale + source, mask=valid, other=0.0)
    if by_id:
        source = tl.load(ids + source, mask=valid, other=-1).to(tl.int64)
        valid = (source >= 0) & (source < rows_of_x)
    place = (source * width)[:, None] + column[None, :]
    value = tl.load(x + place, mask=valid[:, None] & (column < width)[None, :], other=0.0)
    if scaled:
        value *= factor[:, None]
    return ((has[None, :] >> tl.arange(0, window)[:, None]) & 1).to(value.dtype), value


@triton.jit  # type: ignore[untyped-decorator]
def _sum_window(  # type: ignore[no-untyped-def]
    number,
    column_block,
    of,
    begins,
    neighbors,
    bits,
    out,
    by_id: tl.constexpr,
    scaled: tl.constexpr,
    row_scaled: tl.constexpr,
    mean: tl.constexpr,
    width: tl.constexpr,
    window: tl.constexpr,
    entries: tl.constexpr,
    columns: tl.constexpr,
    stages: tl.constexpr,
):
    """The sums of one window, a block of columns of them."""
    x, indptr, ids, scale, row_scale, count, sources, rows_of_x = of
    inner = tl.arange(0, window)
    column = column_block * columns + tl.arange(0, columns)
    inside = column < width
    begin, end = tl.load(begins + number), tl.load(begins + number + 1)
    read = x, rows_of_x, width, neighbors, bits, sources, ids, scale
    total = tl.zeros([window, columns], dtype=tl.float32)
    for first in tl.range(begin, end, entries, num_stages=stages):
        ones, value = _tile(read, first, end, column, by_id, scaled, window, entries)
        total = tl.dot(ones, value, total, input_precision="ieee")
    infinity = float("inf")
    if tl.max(tl.max(tl.where(tl.abs(total) < infinity, 0, 1), axis=1), axis=0) > 0:
        total = tl.zeros([window, columns], dtype=tl.float32)
        for first in range(begin, end, entries):
            ones, value = _tile(read, first, end, column, by_id, scaled, window, entries)
            total = tl.dot(ones, tl.where(tl.abs(value) < infinity, value, 0.0).to(value.dtype), total, input_precision="ieee")
            up = tl.dot(ones, (value == infinity).to(value.dtype), input_precision="ieee") > 0
            down = tl.dot(ones, (value == -infinity).to(value.dtype), input_precision="ieee") > 0
            neither = tl.dot(ones, (value != value).to(value.dtype), input_precision="ieee") > 0
            total += tl.where(up, infinity, 0.0) + tl.where(down, -infinity, 0.0) + tl.where(neither, float("nan"), 0.0)
    row = number * window + inner
    valid = row < count
    if mean:
        degree = tl.load(indptr + row + 1, mask=valid, other=1) - tl.load(indptr + row, mask=valid, other=0)
        total /= tl.maximum(degree, 1).to(tl.float32)[:, None]
    if row_scaled:
        total *= tl.load(row_scale + row, mask=valid, other=0.0)[:, None]
    target = (row * width)[:, None] + column[None, :]
    tl.store(out + target, total.to(out.dtype.element_ty), mask=valid[:, None] & inside[None, :])


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["count", "sources", "rows_of_x", "windows", "blocks", "programs"]
)
def window_kernel(  # type: ignore[no-untyped-def]
    x,
    indptr,
    begins,
    neighbors,
    bits,
    ids,
    scale,
    row_scale,
    out,
    count,
    sources,
    rows_of_x,
    windows,
    blocks,
    programs,
    by_id: tl.constexpr,
    scaled: tl.constexpr,
    row_scaled: tl.constexpr,
    mean: tl.constexpr,
    width: tl.constexpr,
    window: tl.constexpr,
    entries: tl.constexpr,
    columns: tl.constexpr,
    stages: tl.constexpr,
    bounded: tl.constexpr,
):
    """`bounded`: so many `programs` do all `blocks`, of which `windows` have the same columns."""
    of = x, indptr, ids, scale, row_scale, count, sources, rows_of_x
    if bounded:
        for block in range(tl.program_id(0), blocks, programs):
            number, column_block = (block % windows).to(tl.int64), (block // windows).to(tl.int32)
            _sum_window(
                number, column_block, of, begins, neighbors, bits, out,
                by_id, scaled, row_scaled, mean, width, window, entries, columns, stages,
            )  # fmt: skip
    else:
        _sum_window(
            tl.program_id(0).to(tl.int64), tl.program_id(1), of, begins, neighbors, bits, out,
            by_id, scaled, row_scaled, mean, width, window, entries, columns, stages,
        )  # fmt: skip


def window_rows(work: Work, launch: Launch, plan: tuple[Tensor, ...]) -> Tensor:
    """The sum or mean of `work`, which has no weights, over the windows of `plan`.  # -> [rows, d]"""
    x = work.x
    out = x.new_empty(work.rows, x.shape[1])
    if out.numel() == 0:
        return out
    begins, neighbors, bits = plan
    windows, column_blocks = len(begins) - 1, triton.cdiv(x.shape[1], launch.columns)
    bounded = 0 < launch.programs < windows * column_blocks
    with launching(x.device):
        window_kernel[(launch.programs,) if bounded else (windows, column_blocks)](
            x,
            work.indptr,
            begins,
            neighbors,
            bits,
            neighbors if work.ids is None else work.ids,
            x if work.scale is None else work.scale,
            x if work.row_scale is None else work.row_scale,
            out,
            work.rows,
            work.sources,
            len(x),
            windows,
            windows * column_blocks,
            launch.programs,
            by_id=work.ids is not None,
            scaled=work.scale is not None,
            row_scaled=work.row_scale is not None,
            mean=work.reduce == "mean",
            width=x.shape[1],
            window=launch.window,
            entries=launch.entries,
            columns=launch.columns,
            stages=launch.stages,
            bounded=bounded,
            num_warps=launch.warps,
        )
    return out
