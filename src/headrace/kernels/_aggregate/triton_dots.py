"""The gradient of the weights of a CSR's entries, on a GPU: a sampled product of two dense matrices (SDDMM), in the CSR's order.

A program takes a run of entries, whichever rows they belong to: a hub is as many programs as it is long.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels._aggregate.work import Work, sum_type
from headrace.kernels._on_gpu import launching

_ENTRIES = 16


@triton.jit(do_not_specialize=["count", "rows", "sources", "rows_of_x"])  # type: ignore[untyped-decorator]
def dots_kernel(  # type: ignore[no-untyped-def]
    grad,
    x,
    indptr,
    owners,
    indices,
    ids,
    scale,
    row_scale,
    taken,
    out,
    count,
    rows,
    sources,
    rows_of_x,
    by_id: tl.constexpr,
    scaled: tl.constexpr,
    row_scaled: tl.constexpr,
    chosen: tl.constexpr,
    width: tl.constexpr,
    entries: tl.constexpr,
    columns: tl.constexpr,
):
    kind: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    entry = tl.program_id(0).to(tl.int64) * entries + tl.arange(0, entries)
    valid = entry < count
    row = tl.load(owners + entry, mask=valid, other=-1).to(tl.int64)
    valid = (row >= 0) & (row < rows)
    source = tl.load(indices + entry, mask=valid, other=-1).to(tl.int64)
    valid = valid & (source >= 0) & (source < sources)
    factor = tl.full([entries], 1.0, dtype=kind)
    if scaled:
        factor *= tl.load(scale + source, mask=valid, other=0.0)
    if row_scaled:
        factor *= tl.load(row_scale + row, mask=valid, other=0.0)
    if chosen:
        slot = (entry - tl.load(indptr + row, mask=valid, other=0)).to(tl.int32)
    if by_id:
        source = tl.load(ids + source, mask=valid, other=-1).to(tl.int64)
        valid = valid & (source >= 0) & (source < rows_of_x)
    total = tl.zeros([entries], dtype=kind)
    for first in tl.static_range(0, width, columns):
        column = first + tl.arange(0, columns)
        seen = valid[:, None] & (column < width)[None, :]
        place = (row * width)[:, None] + column[None, :]
        left = tl.load(grad + place, mask=seen, other=0.0).to(kind)
        if chosen:
            left = tl.where(tl.load(taken + place, mask=seen, other=-1) == slot[:, None], left, 0.0)
        right = tl.load(x + ((source * width)[:, None] + column[None, :]), mask=seen, other=0.0).to(kind)
        total += tl.sum(left * right, axis=1)
    tl.store(out + entry, total * factor, mask=entry < count)


def entry_dots(work: Work, grad: Tensor, owners: Tensor, taken: Tensor | None) -> Tensor:
    """row_scale[v] * scale[s] * <grad[v], x[s]> of every entry; `taken`: over the columns that max took from it.  # -> [entries]

    `owners` is the row of each entry; one outside of the rows gets 0.
    """
    x, count = work.x, len(work.indices)
    out = x.new_empty(count, dtype=sum_type(x.dtype))
    if count == 0:
        return out
    columns = min(max(triton.next_power_of_2(x.shape[1]), 16), 128)
    with launching(x.device):
        dots_kernel[(triton.cdiv(count, _ENTRIES),)](
            grad,
            x,
            work.indptr,
            owners,
            work.indices,
            work.indices if work.ids is None else work.ids,
            x if work.scale is None else work.scale,
            x if work.row_scale is None else work.row_scale,
            owners if taken is None else taken,
            out,
            count,
            work.rows,
            work.sources,
            len(x),
            by_id=work.ids is not None,
            scaled=work.scale is not None,
            row_scaled=work.row_scale is not None,
            chosen=taken is not None,
            width=x.shape[1],
            entries=_ENTRIES,
            columns=columns,
            num_warps=1 if columns <= 64 else 2,
        )
    return out
