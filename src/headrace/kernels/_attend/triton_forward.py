"""Attention on a GPU: the softmax of a row's scores and the sum it weighs, in one pass over the entries.

Every lane of a tile keeps the largest score it has met, the sum of exp(score - largest) and the sum of rows weighed by them; when a
larger score comes, both sums shrink. A lane that is added to another, and a group of a long row to the next, go the same way.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels._attend.triton_entries import (
    GROUP,
    Cut,
    Draws,
    Tile,
    entries,
    factors,
    launch,
    leaky,
    positions,
    span,
    stream_key,
)


@triton.jit(
    do_not_specialize=["rows", "own_rows", "slots", "count", "key", "dropped", "seed_there"],
    do_not_specialize_on_alignment=["indptr", "indices", "begins", "seed"],
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
    seed_there,
    dropped,
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
    first_head = tl.program_id(1) * head_block
    head = first_head + tl.arange(0, head_block)
    channel = tl.arange(0, channel_block)
    within = head[:, None] * channels + channel[None, :]
    real = (head < heads)[:, None] & (channel < channels)[None, :]
    if pairs:
        near = tl.load(target + row * (heads * channels) + within, mask=real, other=0.0).to(number)[None, :, :]
        by = tl.load(attention + within, mask=real, other=0.0).to(number)[None, :, :]
    else:
        near_head = tl.load(target + row * heads + head, mask=head < heads, other=0.0).to(number)[None, :]
    if drops:
        key = stream_key(key, seed, seed_there)

    most = tl.full([lanes, head_block], float("-inf"), number)
    total = tl.zeros([lanes, head_block], number)
    sums = tl.zeros([lanes, head_block, channel_block], number)
    for at in range(first, last, lanes):
        if combine:
            part = at + tl.arange(0, lanes).to(tl.int64)
            there = (part < last)[:, None] & (head < heads)[None, :]
            begin = partial + part * (heads * (channels + 2))
            score = tl.load(begin[:, None] + head[None, :], mask=there, other=float("-inf"))
            many = tl.load(begin[:, None] + heads + head[None, :], mask=there, other=0.0)
            far = tl.load(
                begin[:, None, None] + 2 * heads + within[None, :, :], mask=there[:, :, None] & real[None, :, :], other=0.0
            )
            after = tl.maximum(most, score)
            base = tl.where(after == float("-inf"), 0.0, after)
            shrink, power = tl.exp(most - base), tl.exp(score - base)
            total = total * shrink + power * many
            sums = sums * shrink[:, :, None] + power[:, :, None] * far
            most = after
        else:
            entry, column, there = entries(indices, at, last, end, row, own_rows, lanes)
            begin = column * (heads * channels)
            far = tl.load(
                x + begin[:, None, None] + within[None, :, :], mask=there[:, None, None] & real[None, :, :], other=0.0
            ).to(number)
            named = there[:, None] & (head < heads)[None, :]
            if pairs:
                score = tl.sum(leaky(far + near, slope) * by, axis=2)
            else:
                score = leaky(tl.load(source + column[:, None] * heads + head[None, :], mask=named, other=0.0) + near_head, slope)
            score = tl.where(named, score, float("-inf"))
            after = tl.maximum(most, score)
            base = tl.where(after == float("-inf"), 0.0, after)  # a lane that has met nothing yet
            shrink, power = tl.exp(most - base), tl.exp(score - base)
            total = total * shrink + power
            most = after
            if drops:
                position = positions(indices, entry, there, end, row, count, False)
                power *= factors(key, position, first_head, dropped, kept, head_block, wide)
            sums = sums * shrink[:, :, None] + power[:, :, None] * far

    largest = tl.max(most, axis=0)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    shrink = tl.exp(most - base[None, :])
    total = tl.sum(total * shrink, axis=0)
    sums = tl.sum(sums * shrink[:, :, None], axis=0)
    if grouped:
        begin = partial + slot * (heads * (channels + 2))
        tl.store(begin + head, largest, mask=head < heads)
        tl.store(begin + heads + head, total, mask=head < heads)
        tl.store(begin + 2 * heads + within, sums, mask=real)
    else:
        scale = tl.where(last > first, 1.0 / total, 0.0)  # an empty row gives 0
        tl.store(peak + row * (2 * heads) + head, base, mask=head < heads)
        tl.store(peak + row * (2 * heads) + heads + head, scale, mask=head < heads)
        tl.store(out + row * (heads * channels) + within, (sums * scale[:, None]).to(out.dtype.element_ty), mask=real)


def attend(
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    *,
    source: Tensor | None,
    target: Tensor,
    attention: Tensor | None,
    slope: float,
    self_loops: bool,
    dropout: float,
    seed: int | Tensor,
    group: int = GROUP,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor]:
    """The output, and per row and head the largest score and 1 / the sum.  # [n, heads, c] -> [rows, heads, c], [rows, 2, heads]

    `group`: how many entries of a long row a program takes.
    """
    rows, heads, channels = len(indptr) - 1, x.shape[1], x.shape[2]
    number = torch.float64 if x.dtype == torch.float64 else torch.float32
    out, peak = x.new_empty(rows, heads, channels), x.new_empty(rows, 2, heads, dtype=number)
    if rows == 0:
        return out, peak
    tile = Tile.of(heads, channels) if tile is None else tile
    own_rows = rows if self_loops else 0
    cut = Cut.of(indptr, len(indices), own_rows, group)
    partial = x.new_empty(0 if cut is None else cut.slots * heads * (channels + 2), dtype=number)

    def run(programs: int, slots: int, *, combine: bool) -> None:
        attend_kernel[(programs, triton.cdiv(heads, tile.heads))](
            x,
            indptr,
            indices,
            target if source is None else source,
            target,
            target if attention is None else attention,
            out,
            peak,
            indptr if cut is None else cut.begins,
            partial,
            rows,
            own_rows,
            slots,
            len(indices),
            **Draws.of(dropout, seed).arguments(indptr),
            slope=slope,
            pairs=attention is not None,
            wide=number == torch.float64,
            combine=combine,
            group=group,
            **shape_of(heads, channels, tile),
        )

    launch(run, cut, rows)
    return out, peak


def shape_of(heads: int, channels: int, tile: Tile) -> dict[str, Any]:
    """Of a row and of a tile, as kernels take them."""
    blocks = {"lanes": tile.lanes, "head_block": tile.heads, "channel_block": tile.channels}
    return {"heads": heads, "channels": channels, **blocks, "num_warps": tile.warps}
