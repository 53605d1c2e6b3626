"""The pass of attention's gradient over columns, on a GPU: the rows of the transpose, for x and source."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels._attend.scores import Scores
from headrace.kernels._attend.triton_entries import (
    GROUP,
    Tile,
    entries,
    factors,
    gradient_tile,
    head_tile,
    leaky,
    positions,
    rise,
    run,
    span,
    stream_key,
)


@triton.jit(
    do_not_specialize=["rows", "own_rows", "slots", "count", "key", "dropped", "seed_on_device"],
    do_not_specialize_on_alignment=["indptr", "indices", "permutation", "begins", "seed", "shift", "whole_rows"],
)  # type: ignore[untyped-decorator]
def columns_kernel(  # type: ignore[no-untyped-def]
    grad,
    x,
    indptr,
    indices,
    permutation,
    source,
    target,
    attention,
    facts,
    grad_x,
    grad_source,
    begins,
    partial,
    rows,
    own_rows,
    slots,
    count,
    key,
    seed,
    seed_on_device,
    dropped,
    shift,
    whole_rows,
    placed: tl.constexpr,
    kept: tl.constexpr,
    drops: tl.constexpr,
    slope: tl.constexpr,
    pairs: tl.constexpr,
    need_x: tl.constexpr,
    need_source: tl.constexpr,
    wide: tl.constexpr,
    combine: tl.constexpr,
    group: tl.constexpr,
    heads: tl.constexpr,
    channels: tl.constexpr,
    lanes: tl.constexpr,
    head_block: tl.constexpr,
    channel_block: tl.constexpr,
):
    number = tl.float64 if wide else tl.float32
    node, first, last, end, slot, grouped = span(indptr, begins, rows, own_rows, slots, combine, group)
    if node < 0:
        return
    first_head, head, within, real_head, real = head_tile(heads, channels, head_block, channel_block)
    own_row = tl.load(x + node * (heads * channels) + within, mask=real, other=0.0).to(number)[None, :, :]
    if pairs:
        by = tl.load(attention + within, mask=real, other=0.0).to(number)[None, :, :]
    else:
        own_part = tl.load(source + node * heads + head, mask=real_head, other=0.0).to(number)[None, :]
    if drops:
        key = stream_key(key, seed, seed_on_device)

    width = heads * (channels + 1)
    sums = tl.zeros([lanes, head_block, channel_block], number)
    scores = tl.zeros([lanes, head_block], number)
    for at in range(first, last, lanes):
        if combine:
            part = at + tl.arange(0, lanes).to(tl.int64)
            begin = partial + part * width
            if need_source:
                scores += tl.load(begin[:, None] + head[None, :], mask=(part < last)[:, None] & real_head[None, :], other=0.0)
            if need_x:
                spot = begin[:, None, None] + heads + within[None, :, :]
                sums += tl.load(spot, mask=(part < last)[:, None, None] & real[None, :, :], other=0.0)
        else:
            entry, row, valid = entries(indices, at, last, end, node, own_rows, lanes)
            named = valid[:, None] & real_head[None, :]
            spot = (row * (heads * channels))[:, None, None] + within[None, :, :]
            mask = valid[:, None, None] & real[None, :, :]
            far_grad = tl.load(grad + spot, mask=mask, other=0.0).to(number)
            fact = facts + (row[:, None] * heads + head[None, :]) * 4
            largest = tl.load(fact, mask=named, other=0.0)
            scale = tl.load(fact + 1, mask=named, other=0.0)
            if pairs:
                pair = own_row + tl.load(target + spot, mask=mask, other=0.0).to(number)
                score = tl.sum(leaky(pair, slope) * by, axis=2)
            else:
                sum_of = own_part + tl.load(fact + 3, mask=named, other=0.0)
                score = leaky(sum_of, slope)
            share = tl.where(named, tl.exp(score - largest) * scale, 0.0)
            weight = share
            if drops:
                position = positions(permutation, entry, row, valid, end, node, own_rows, count, shift, whole_rows, placed, True)
                keep = factors(key, position, first_head, dropped, kept, head_block, wide)
                weight = share * keep
            if need_x:
                sums += weight[:, :, None] * far_grad
            if pairs or need_source:
                delta = tl.load(fact + 2, mask=named, other=0.0)
                slant = weight * tl.sum(far_grad * own_row, axis=2) - share * delta
                if pairs:
                    sums += slant[:, :, None] * (rise(pair, slope) * by)
                else:
                    scores += slant * rise(sum_of, slope)

    begin = partial + slot * width
    if need_source:
        score_sum = tl.sum(scores, axis=0)
        if grouped:
            tl.store(begin + head, score_sum, mask=real_head)
        else:
            tl.store(grad_source + node * heads + head, score_sum, mask=real_head)
    if need_x:
        row_sum = tl.sum(sums, axis=0)
        if grouped:
            tl.store(begin + heads + within, row_sum, mask=real)
        else:
            tl.store(grad_x + node * (heads * channels) + within, row_sum.to(grad_x.dtype.element_ty), mask=real)


def column_gradients(
    grad: Tensor,
    facts: Tensor,
    x: Tensor,
    transpose: tuple[Tensor, Tensor, Tensor],
    scores: Scores,
    *,
    grad_x: Tensor | None,
    grad_source: Tensor | None,
    group: int = GROUP,
    tile: Tile | None = None,
) -> None:
    """Fills in the gradients asked for, from the `facts` of the rows and the transpose: indptr, rows, where each entry was."""
    columns, heads, channels = x.shape
    indptr, indices, permutation = transpose
    if columns:
        run(
            columns_kernel,
            x,
            indptr,
            indices,
            scores,
            own_rows=len(grad) if scores.self_loops else 0,
            sums=heads * (channels + 1),
            group=group,
            tile=gradient_tile(heads, channels, scores) if tile is None else tile,
            grad=grad,
            permutation=permutation,
            facts=facts,
            grad_x=facts if grad_x is None else grad_x,
            grad_source=facts if grad_source is None else grad_source,
            need_x=grad_x is not None,
            need_source=grad_source is not None,
        )
