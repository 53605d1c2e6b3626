"""Attention on a GPU: the softmax of a row's scores and the sum it weighs, in one pass over the entries.

Every lane of a tile keeps the largest score it has met, the sum of exp(score - largest) and the sum of rows weighed by them; when a
larger score comes, both sums shrink. A lane that is added to another, and a group of a long row to the next, go the same way.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels._aggregate.work import sum_type
from headrace.kernels._attend.scores import Scores
from headrace.kernels._attend.triton_entries import (
    GROUP,
    Tile,
    entries,
    factors,
    far_rows,
    head_tile,
    leaky,
    positions,
    run,
    span,
    stream_key,
)


@triton.jit(
    do_not_specialize=["rows", "own_rows", "slots", "count", "key", "dropped", "seed_on_device"],
    do_not_specialize_on_alignment=["indptr", "indices", "begins", "seed", "shift", "whole_rows"],
)  # type: ignore[untyped-decorator]
def attend_kernel(  # type: ignore[no-untyped-def]
    x,
    indptr,
    indices,
    source,
    target,
    attention,
    out,
    peak,
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
    if pairs:
        own_row = tl.load(target + row * (heads * channels) + within, mask=real, other=0.0).to(number)[None, :, :]
        by = tl.load(attention + within, mask=real, other=0.0).to(number)[None, :, :]
    else:
        own_part = tl.load(target + row * heads + head, mask=real_head, other=0.0).to(number)[None, :]
    if drops:
        key = stream_key(key, seed, seed_on_device)

    most = tl.full([lanes, head_block], float("-inf"), number)
    total = tl.zeros([lanes, head_block], number)
    sums = tl.zeros([lanes, head_block, channel_block], number)
    for at in range(first, last, lanes):
        if combine:
            part = at + tl.arange(0, lanes).to(tl.int64)
            valid = (part < last)[:, None] & real_head[None, :]
            begin = partial + part * (heads * (channels + 2))
            score = tl.load(begin[:, None] + head[None, :], mask=valid, other=float("-inf"))
            many = tl.load(begin[:, None] + heads + head[None, :], mask=valid, other=0.0)
            far = tl.load(
                begin[:, None, None] + 2 * heads + within[None, :, :], mask=valid[:, :, None] & real[None, :, :], other=0.0
            )
        else:
            entry, column, valid = entries(indices, at, last, end, row, own_rows, lanes)
            far = far_rows(x, column * (heads * channels), within, valid, real, number)
            named = valid[:, None] & real_head[None, :]
            if pairs:
                score = tl.sum(leaky(far + own_row, slope) * by, axis=2)
            else:
                score = leaky(tl.load(source + column[:, None] * heads + head[None, :], mask=named, other=0.0) + own_part, slope)
            score = tl.where(named, score, float("-inf"))
        after = tl.maximum(most, score)
        base = tl.where(after == float("-inf"), 0.0, after)  # a lane that has met nothing yet
        shrink, power = tl.exp(most - base), tl.exp(score - base)
        if combine:
            total = total * shrink + power * many
        else:
            total = total * shrink + power
        most = after
        if drops and not combine:
            position = positions(indices, entry, column, valid, end, row, own_rows, count, shift, whole_rows, placed, False)
            power *= factors(key, position, first_head, dropped, kept, head_block, wide)
        sums = sums * shrink[:, :, None] + power[:, :, None] * far

    largest = tl.max(most, axis=0)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    shrink = tl.exp(most - base[None, :])
    total = tl.sum(total * shrink, axis=0)
    sums = tl.sum(sums * shrink[:, :, None], axis=0)
    if grouped:
        begin = partial + slot * (heads * (channels + 2))
        tl.store(begin + head, largest, mask=real_head)
        tl.store(begin + heads + head, total, mask=real_head)
        tl.store(begin + 2 * heads + within, sums, mask=real)
    else:
        scale = tl.where(last > first, 1.0 / total, 0.0)  # an empty row gives 0
        tl.store(peak + row * (2 * heads) + head, base, mask=real_head)
        tl.store(peak + row * (2 * heads) + heads + head, scale, mask=real_head)
        tl.store(out + row * (heads * channels) + within, (sums * scale[:, None]).to(out.dtype.element_ty), mask=real)


def attend(
    x: Tensor, indptr: Tensor, indices: Tensor, scores: Scores, *, group: int = GROUP, tile: Tile | None = None
) -> tuple[Tensor, Tensor]:
    """The output, and per row and head the largest score and 1 / the sum.  # [n, heads, c] -> [rows, heads, c], [rows, 2, heads]

    `group`: how many entries of a long row a program takes.
    """
    rows, (_, heads, channels) = len(indptr) - 1, x.shape
    out, peak = x.new_empty(rows, heads, channels), x.new_empty(rows, 2, heads, dtype=sum_type(x.dtype))
    if rows:
        run(
            attend_kernel,
            x,
            indptr,
            indices,
            scores,
            own_rows=rows if scores.self_loops else 0,
            sums=heads * (channels + 2),
            group=group,
            tile=Tile.of(heads, channels) if tile is None else tile,
            out=out,
            peak=peak,
        )
    return out, peak
