"""The pass of attention's gradient over columns, on a GPU: the rows of the transpose, for x and source."""

from __future__ import annotations

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
    rise,
    span,
    stream_key,
)
from headrace.kernels._attend.triton_forward import shape_of


@triton.jit(
    do_not_specialize=["columns", "rows", "own_rows", "slots", "count", "key", "dropped", "seed_there"],
    do_not_specialize_on_alignment=["indptr", "indices", "permutation", "begins", "seed"],
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
    columns,
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
    node, first, last, end, slot, grouped = span(indptr, begins, columns, own_rows, slots, combine, group)
    if node < 0:
        return
    first_head = tl.program_id(1) * head_block
    head = first_head + tl.arange(0, head_block)
    channel = tl.arange(0, channel_block)
    within = head[:, None] * channels + channel[None, :]
    real_head = head < heads
    real = real_head[:, None] & (channel < channels)[None, :]
    near = tl.load(x + node * (heads * channels) + within, mask=real, other=0.0).to(number)[None, :, :]
    if pairs:
        by = tl.load(attention + within, mask=real, other=0.0).to(number)[None, :, :]
    else:
        near_head = tl.load(source + node * heads + head, mask=real_head, other=0.0).to(number)[None, :]
    if drops:
        key = stream_key(key, seed, seed_there)

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
            entry, row, there = entries(indices, at, last, end, node, own_rows, lanes)
            named = there[:, None] & real_head[None, :]
            spot = (row * (heads * channels))[:, None, None] + within[None, :, :]
            mask = there[:, None, None] & real[None, :, :]
            far_grad = tl.load(grad + spot, mask=mask, other=0.0).to(number)
            fact = facts + (row[:, None] * heads + head[None, :]) * 4
            largest = tl.load(fact, mask=named, other=0.0)
            scale = tl.load(fact + 1, mask=named, other=0.0)
            if pairs:
                pair = near + tl.load(target + spot, mask=mask, other=0.0).to(number)
                score = tl.sum(leaky(pair, slope) * by, axis=2)
            else:
                sum_of = near_head + tl.load(fact + 3, mask=named, other=0.0)
                score = leaky(sum_of, slope)
            share = tl.where(named, tl.exp(score - largest) * scale, 0.0)
            weight = share
            if drops:
                position = positions(permutation, entry, there, end, node, count, True)
                keep = factors(key, position, first_head, dropped, kept, head_block, wide)
                weight = share * keep
            if need_x:
                sums += weight[:, :, None] * far_grad
            if pairs or need_source:
                delta = tl.load(fact + 2, mask=named, other=0.0)
                slant = weight * tl.sum(far_grad * near, axis=2) - share * delta
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
        found = tl.sum(sums, axis=0)
        if grouped:
            tl.store(begin + heads + within, found, mask=real)
        else:
            tl.store(grad_x + node * (heads * channels) + within, found.to(grad_x.dtype.element_ty), mask=real)


def column_gradients(
    grad: Tensor,
    facts: Tensor,
    x: Tensor,
    transpose: tuple[Tensor, Tensor, Tensor],
    *,
    source: Tensor | None,
    target: Tensor,
    attention: Tensor | None,
    grad_x: Tensor | None,
    grad_source: Tensor | None,
    slope: float,
    self_loops: bool,
    dropout: float,
    seed: int | Tensor,
    group: int = GROUP,
    tile: Tile | None = None,
) -> None:
    """Fills in the gradients asked for, from the `facts` of the rows and the transpose: indptr, rows, where each entry was."""
    columns, heads, channels = x.shape
    if columns == 0:
        return
    indptr, indices, permutation = transpose
    rows = len(grad)
    tile = Tile.of(heads, channels, numbers=512 if attention is not None else 1024) if tile is None else tile
    own_rows = rows if self_loops else 0
    cut = Cut.of(indptr, len(indices), own_rows, group)
    partial = facts.new_empty(0 if cut is None else cut.slots * heads * (channels + 1))

    def run(programs: int, slots: int, *, combine: bool) -> None:
        columns_kernel[(programs, triton.cdiv(heads, tile.heads))](
            grad,
            x,
            indptr,
            indices,
            permutation,
            target if source is None else source,
            target,
            target if attention is None else attention,
            facts,
            facts if grad_x is None else grad_x,
            facts if grad_source is None else grad_source,
            indptr if cut is None else cut.begins,
            partial,
            columns,
            rows,
            own_rows,
            slots,
            len(indices),
            **Draws.of(dropout, seed).arguments(indptr),
            slope=slope,
            pairs=attention is not None,
            need_x=grad_x is not None,
            need_source=grad_source is not None,
            wide=facts.dtype == torch.float64,
            combine=combine,
            group=group,
            **shape_of(heads, channels, tile),
        )

    launch(run, cut, columns)
