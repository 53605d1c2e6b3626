"""The pass of attention's gradient over rows, on a GPU: target, attention, and what the pass over columns needs to know of a row.

With the coefficient a of an entry, dropout's factor m and d = <grad, x>, the gradient of its score is a (m d - D), where D is the
row's sum of a m d. It is linear in D: so that a row is read once, sums with and without D are taken side by side. (D is also
<grad, out>, but the out of a short type was rounded, and the gradients of a row nearly cancel.)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels._attend.scores import Scores
from headrace.kernels._attend.triton_entries import (
    GROUP,
    Tile,
    entries,
    factors,
    far_rows,
    gradient_tile,
    head_tile,
    leaky,
    positions,
    rise,
    run,
    span,
    stream_key,
)

FACTS = 4  # of a row and head: the largest score, 1 / the sum, D, and GAT's target


@triton.jit(
    do_not_specialize=["rows", "own_rows", "slots", "count", "key", "dropped", "seed_on_device"],
    do_not_specialize_on_alignment=["indptr", "indices", "begins", "seed", "shift", "whole_rows"],
)  # type: ignore[untyped-decorator]
def rows_kernel(  # type: ignore[no-untyped-def]
    grad,
    x,
    indptr,
    indices,
    source,
    target,
    attention,
    peak,
    facts,
    grad_target,
    grad_attention,
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
    need_target: tl.constexpr,
    need_attention: tl.constexpr,
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
    row, first, last, end, slot, grouped = span(indptr, begins, rows, own_rows, slots, combine, group)
    if row < 0:
        return
    first_head, head, within, real_head, real = head_tile(heads, channels, head_block, channel_block)
    largest = tl.load(peak + row * (2 * heads) + head, mask=real_head, other=0.0)
    scale = tl.load(peak + row * (2 * heads) + heads + head, mask=real_head, other=0.0)
    out_grad = tl.load(grad + row * (heads * channels) + within, mask=real, other=0.0).to(number)
    if pairs:
        own_row = tl.load(target + row * (heads * channels) + within, mask=real, other=0.0).to(number)[None, :, :]
        by = tl.load(attention + within, mask=real, other=0.0).to(number)
    else:
        own_part = tl.load(target + row * heads + head, mask=real_head, other=0.0).to(number)
    if drops:
        key = stream_key(key, seed, seed_on_device)

    # Sums with D and without: of what leaky relu was taken of (GAT), of the rise of pairs, and of pairs.
    width = heads * (1 + 4 * channels) if pairs else 3 * heads
    dots = tl.zeros([lanes, head_block], number)
    with_d, without_d = dots, dots
    if pairs:
        rises = tl.zeros([lanes, head_block, channel_block], number)
        rise_dots, values, value_dots = rises, rises, rises
    for at in range(first, last, lanes):
        if combine:
            part = at + tl.arange(0, lanes).to(tl.int64)
            begin = (partial + part * width)[:, None] + head[None, :]
            valid = (part < last)[:, None] & real_head[None, :]
            dots += tl.load(begin, mask=valid, other=0.0)
            if pairs:
                begins_at = (partial + part * width + heads)[:, None, None] + within[None, :, :]
                all_valid = (part < last)[:, None, None] & real[None, :, :]
                step = heads * channels
                if need_target:
                    rise_dots += tl.load(begins_at, mask=all_valid, other=0.0)
                    rises += tl.load(begins_at + step, mask=all_valid, other=0.0)
                if need_attention:
                    value_dots += tl.load(begins_at + 2 * step, mask=all_valid, other=0.0)
                    values += tl.load(begins_at + 3 * step, mask=all_valid, other=0.0)
            elif need_target:
                without_d += tl.load(begin + heads, mask=valid, other=0.0)
                with_d += tl.load(begin + 2 * heads, mask=valid, other=0.0)
        else:
            entry, column, valid = entries(indices, at, last, end, row, own_rows, lanes)
            named = valid[:, None] & real_head[None, :]
            far = far_rows(x, column * (heads * channels), within, valid, real, number)
            if pairs:
                pair = far + own_row
                score = tl.sum(leaky(pair, slope) * by[None, :, :], axis=2)
            else:
                sum_of = tl.load(source + column[:, None] * heads + head[None, :], mask=named, other=0.0) + own_part[None, :]
                score = leaky(sum_of, slope)
            share = tl.where(named, tl.exp(score - largest[None, :]) * scale[None, :], 0.0)
            dot = tl.sum(far * out_grad[None, :, :], axis=2) * share
            if drops:
                position = positions(indices, entry, column, valid, end, row, own_rows, count, shift, whole_rows, placed, False)
                dot *= factors(key, position, first_head, dropped, kept, head_block, wide)
            dots += dot
            if pairs:
                up = rise(pair, slope)
                if need_target:
                    rise_dots += dot[:, :, None] * up
                    rises += share[:, :, None] * up
                if need_attention:
                    value_dots += dot[:, :, None] * (up * pair)
                    values += share[:, :, None] * (up * pair)
            elif need_target:
                up = rise(sum_of, slope)
                without_d += dot * up
                with_d += share * up

    delta = tl.sum(dots, axis=0)
    place = partial + slot * width
    if grouped:
        tl.store(place + head, delta, mask=real_head)
    else:
        fact = facts + (row * heads + head) * 4
        tl.store(fact, largest, mask=real_head)
        tl.store(fact + 1, scale, mask=real_head)
        tl.store(fact + 2, delta, mask=real_head)
        if not pairs:
            tl.store(fact + 3, own_part, mask=real_head)
    if pairs:
        at_row = row * (heads * channels) + within
        if need_target:
            one, other = tl.sum(rise_dots, axis=0), tl.sum(rises, axis=0)
            if grouped:
                tl.store(place + heads + within, one, mask=real)
                tl.store(place + heads + heads * channels + within, other, mask=real)
            else:
                to_target = (one - delta[:, None] * other) * by
                tl.store(grad_target + at_row, to_target.to(grad_target.dtype.element_ty), mask=real)
        if need_attention:
            one, other = tl.sum(value_dots, axis=0), tl.sum(values, axis=0)
            if grouped:
                tl.store(place + heads + 2 * heads * channels + within, one, mask=real)
                tl.store(place + heads + 3 * heads * channels + within, other, mask=real)
            else:
                tl.store(grad_attention + at_row, one - delta[:, None] * other, mask=real)
    elif need_target:
        one, other = tl.sum(without_d, axis=0), tl.sum(with_d, axis=0)
        if grouped:
            tl.store(place + heads + head, one, mask=real_head)
            tl.store(place + 2 * heads + head, other, mask=real_head)
        else:
            tl.store(grad_target + row * heads + head, one - delta * other, mask=real_head)


def row_gradients(
    grad: Tensor,
    peak: Tensor,
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    scores: Scores,
    *,
    grad_target: Tensor | None,
    grad_attention: Tensor | None,
    group: int = GROUP,
    tile: Tile | None = None,
) -> Tensor:
    """Fills in the gradients asked for and returns the facts of the rows.  # -> [rows, heads, FACTS]"""
    rows, (_, heads, channels) = len(indptr) - 1, x.shape
    facts = peak.new_empty(rows, heads, FACTS)
    # The attention's is summed over the rows afterwards, always in the same order.
    by_row = peak.new_empty(rows if grad_attention is not None else 0, heads, channels)
    if rows:
        run(
            rows_kernel,
            x,
            indptr,
            indices,
            scores,
            own_rows=rows if scores.self_loops else 0,
            sums=heads * (1 + 4 * channels) if scores.pairs else 3 * heads,
            group=group,
            tile=gradient_tile(heads, channels, scores) if tile is None else tile,
            grad=grad,
            peak=peak,
            facts=facts,
            grad_target=facts if grad_target is None else grad_target,
            grad_attention=by_row,
            need_target=grad_target is not None,
            need_attention=grad_attention is not None,
        )
    if grad_attention is not None:
        torch.sum(by_row, 0, out=grad_attention)
    return facts
