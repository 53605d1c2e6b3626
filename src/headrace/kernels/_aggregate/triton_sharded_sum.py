"""Sums over a CSR of rows that lie in several memories, on a GPU: `_triton_sum`'s tile with addresses from a table."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels._aggregate.launch import Launch
from headrace.kernels._aggregate.triton_sum import on
from headrace.kernels._gather.sharded import ShardTable
from headrace.kernels._gather.triton_gather import find


@triton.jit(do_not_specialize=["num_rows", "sources"])  # type: ignore[untyped-decorator]
def sharded_sum_kernel(  # type: ignore[no-untyped-def]
    location,
    begins,
    bases,
    indptr,
    indices,
    ids,
    scale,
    row_scale,
    out,
    num_rows,
    sources,
    by_table: tl.constexpr,
    row_bits: tl.constexpr,
    shards: tl.constexpr,
    stride: tl.constexpr,
    alignment: tl.constexpr,
    scaled: tl.constexpr,
    row_scaled: tl.constexpr,
    mean: tl.constexpr,
    width: tl.constexpr,
    entries: tl.constexpr,
    columns: tl.constexpr,
):
    kind: tl.constexpr = tl.float64 if out.dtype.element_ty == tl.float64 else tl.float32
    target = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < width
    begin, end = tl.load(indptr + target), tl.load(indptr + target + 1)
    total = tl.zeros([columns], dtype=kind)
    for first in range(begin, end, entries):
        entry = first + tl.arange(0, entries)
        source = tl.load(indices + entry, mask=entry < end, other=-1).to(tl.int64)
        there = (source >= 0) & (source < sources)
        row = tl.load(ids + source, mask=there, other=-1).to(tl.int64)
        address, _, found = find(row, there, location, begins, bases, num_rows, by_table, row_bits, shards, stride)
        # The compiler cannot know how addresses from a table are aligned, and without it reads element by element.
        place = tl.multiple_of(address.to(tl.pointer_type(out.dtype.element_ty), bitcast=True), alignment)
        value = tl.load(place[:, None] + column[None, :], mask=found[:, None] & inside[None, :], other=0.0).to(kind)
        if scaled:
            value *= tl.load(scale + source, mask=there, other=0.0).to(kind)[:, None]
        total += tl.sum(value, axis=0)
    if mean:
        total /= tl.maximum(end - begin, 1).to(kind)
    if row_scaled:
        total *= tl.load(row_scale + target).to(kind)
    tl.store(out + target * width + column, total.to(out.dtype.element_ty), mask=inside)


def sum_sharded_rows(
    table: ShardTable,
    indptr: Tensor,
    indices: Tensor,
    ids: Tensor,
    scale: Tensor | None,
    row_scale: Tensor | None,
    width: int,
    dtype: torch.dtype,
    mean: bool,
    launch: Launch,
) -> Tensor:
    """See `aggregate_sharded`."""
    out = torch.empty(max(len(indptr) - 1, 0), width, dtype=dtype, device=indptr.device)
    if out.numel() == 0:
        return out
    alignment = 16
    while table.stride % alignment or table.base_alignment % alignment:
        alignment //= 2
    with on(out.device):
        sharded_sum_kernel[len(out), triton.cdiv(width, launch.columns)](
            table.bases if table.location is None else table.location,
            table.bases if table.begins is None else table.begins,
            table.bases,
            indptr,
            indices,
            ids,
            out if scale is None else scale,
            out if row_scale is None else row_scale,
            out,
            table.num_rows,
            len(ids),
            by_table=table.location is not None,
            row_bits=table.row_bits,
            shards=len(table.bases),
            stride=table.stride,
            alignment=alignment,
            scaled=scale is not None,
            row_scaled=row_scale is not None,
            mean=mean,
            width=width,
            entries=launch.entries,
            columns=launch.columns,
            num_warps=launch.warps,
        )
    return out
