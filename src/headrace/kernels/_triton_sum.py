"""Weighted sums of rows over a CSR, on a GPU: a program per row and block of columns, entries in order: always the same bits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ENTRIES = 8  # read at a time


@triton.jit  # type: ignore[untyped-decorator]
def _sum_kernel(  # type: ignore[no-untyped-def]
    x,
    indptr,
    indices,
    ids,
    weight,
    scale,
    out,
    width,
    by_id: tl.constexpr,
    weighted: tl.constexpr,
    scaled: tl.constexpr,
    mean: tl.constexpr,
    wide: tl.constexpr,
    entries: tl.constexpr,
    columns: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < width
    begin, end = tl.load(indptr + row), tl.load(indptr + row + 1)
    total = tl.zeros([columns], dtype=tl.float64 if wide else tl.float32)
    for first in range(begin, end, entries):
        entry = first + tl.arange(0, entries)
        there = entry < end
        source = tl.load(indices + entry, mask=there, other=0).to(tl.int64)
        if scaled:
            factor = tl.load(scale + source, mask=there, other=0.0).to(total.dtype)
        if by_id:
            source = tl.load(ids + source, mask=there, other=0).to(tl.int64)
        rows = tl.load(x + source[:, None] * width + column[None, :], mask=there[:, None] & inside[None, :], other=0.0)
        rows = rows.to(total.dtype)
        if weighted:
            rows *= tl.load(weight + entry, mask=there, other=0.0).to(total.dtype)[:, None]
        if scaled:
            rows *= factor[:, None]
        total += tl.sum(rows, axis=0)
    if mean:
        total /= tl.maximum(end - begin, 1).to(total.dtype)
    tl.store(out + row * width + column, total.to(out.dtype.element_ty), mask=inside)


def sum_rows(
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    weight: Tensor | None = None,
    *,
    ids: Tensor | None = None,
    scale: Tensor | None = None,
    mean: bool = False,
) -> Tensor:
    """sum over e in row v of weight[e] * scale[s] * x[s], s = indices[e], in fp32 (fp64 for fp64 rows).  # [n, d] -> [rows, d]

    With `ids`, source s is row `ids[s]` of `x`. `mean` divides by the number of entries.
    """
    rows, width = len(indptr) - 1, x.shape[1]
    out = x.new_empty(rows, width)
    if out.numel() == 0:
        return out
    columns = min(max(triton.next_power_of_2(width), 16), 128)
    grid = (rows, triton.cdiv(width, columns))
    _sum_kernel[grid](
        x,
        indptr,
        indices,
        indices if ids is None else ids,
        x if weight is None else weight,
        x if scale is None else scale,
        out,
        width,
        by_id=ids is not None,
        weighted=weight is not None,
        scaled=scale is not None,
        mean=mean,
        wide=x.dtype == torch.float64,
        entries=_ENTRIES,
        columns=columns,
        num_warps=2 if columns > 64 else 1,
    )
    return out
