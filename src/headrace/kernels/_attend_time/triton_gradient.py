"""The gradients of attention over events on a GPU: a pass over rows for query and time encoding, one over columns for x.

With the coefficient a of an entry, dropout's factor m and d = <grad, f>, the gradient of its score is a (m d - D), D = <grad, out>.
The pass over rows leaves a m and that gradient for the one over columns: two numbers per entry and head.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels._attend.triton_entries import factors, rise, stream_key
from headrace.kernels._attend_time.events import Events
from headrace.kernels._attend_time.triton_events import angles, dots, far_parts, launch, parts_of, store_parts


@triton.jit(
    do_not_specialize=["rows", "key", "dropped", "seed_on_device"],
    do_not_specialize_on_alignment=["indptr", "indices", "edge_id", "dt", "seed"],
)  # type: ignore[untyped-decorator]
def rows_kernel(  # type: ignore[no-untyped-def]
    grad,
    out,
    score,
    peak,
    query,
    indptr,
    indices,
    dt,
    x,
    edge_x,
    edge_id,
    weight,
    bias,
    grad_query,
    by_row,
    coefficient,
    rows,
    key,
    seed,
    seed_on_device,
    dropped,
    kept: tl.constexpr,
    drops: tl.constexpr,
    slope: tl.constexpr,
    need_time: tl.constexpr,
    wide: tl.constexpr,
    by_id: tl.constexpr,
    heads: tl.constexpr,
    channels: tl.constexpr,
    edges: tl.constexpr,
    times: tl.constexpr,
    x_block: tl.constexpr,
    edge_block: tl.constexpr,
    time_block: tl.constexpr,
    lanes: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first, last = tl.load(indptr + row), tl.load(indptr + row + 1)
    own = (head * rows + row) * (channels + edges + times)
    grad_x, grad_edge, grad_time = parts_of(grad, own, channels, edges, times, x_block, edge_block, time_block, wide)
    out_x, out_edge, out_time = parts_of(out, own, channels, edges, times, x_block, edge_block, time_block, wide)
    _, _, near_time = parts_of(query, own, channels, edges, times, x_block, edge_block, time_block, wide)
    delta = tl.sum(grad_x * out_x, axis=0) + tl.sum(grad_edge * out_edge, axis=0) + tl.sum(grad_time * out_time, axis=0)
    largest, scale = tl.load(peak + row * (2 * heads) + head), tl.load(peak + row * (2 * heads) + heads + head)
    if drops:
        key = stream_key(key, seed, seed_on_device)
    sum_x, sum_edge, sum_time = grad_x * 0, grad_edge * 0, grad_time * 0
    to_weight, to_bias = grad_time * 0, grad_time * 0
    for at in range(first, last, lanes):
        entry = at + tl.arange(0, lanes).to(tl.int64)
        valid = entry < last
        of_x, of_edge = far_parts(x, indices, edge_x, edge_id, entry, valid, channels, edges, by_id, x_block, edge_block, wide)
        past, angle = angles(dt, weight, bias, entry, valid, times, time_block, wide)
        of_time = tl.cos(angle)
        scores = tl.load(score + entry * heads + head, mask=valid, other=0.0)
        share = tl.where(valid, tl.exp(scores - largest) * scale, 0.0)
        dot = dots(of_x, of_edge, of_time, grad_x, grad_edge, grad_time)
        weight_of = share
        if drops:
            keep = tl.sum(factors(key, entry, head, dropped, kept, 1, wide), axis=1)
            weight_of, dot = share * keep, dot * keep
        slant = share * (dot - delta) * rise(scores, slope)  # a score has the sign of what leaky relu was taken of
        tl.store(coefficient + entry * (2 * heads) + head, weight_of, mask=valid)
        tl.store(coefficient + entry * (2 * heads) + heads + head, slant, mask=valid)
        sum_x += tl.sum(of_x * slant[:, None], axis=0)
        sum_edge += tl.sum(of_edge * slant[:, None], axis=0)
        sum_time += tl.sum(of_time * slant[:, None], axis=0)
        if need_time:
            of_cosine = weight_of[:, None] * grad_time[None, :] + slant[:, None] * near_time[None, :]
            of_angle = of_cosine * tl.sin(angle)
            to_weight -= tl.sum(of_angle * past[:, None], axis=0)
            to_bias -= tl.sum(of_angle, axis=0)
    store_parts(grad_query, own, sum_x, sum_edge, sum_time, channels, edges, times, x_block, edge_block, time_block)
    if need_time:
        time = tl.arange(0, time_block)
        begin = by_row + (head * rows + row) * (2 * times)
        tl.store(begin + time, to_weight, mask=time < times)
        tl.store(begin + times + time, to_bias, mask=time < times)


@triton.jit(
    do_not_specialize=["rows", "key", "dropped", "seed_on_device"],
    do_not_specialize_on_alignment=["t_indptr", "t_rows", "t_position", "indices", "edge_id", "seed"],
)  # type: ignore[untyped-decorator]
def columns_kernel(  # type: ignore[no-untyped-def]
    grad,
    query,
    coefficient,
    t_indptr,
    t_rows,
    t_position,
    grad_x,
    x,
    edge_x,
    edge_id,
    indices,
    rows,
    key,
    seed,
    seed_on_device,
    dropped,
    kept: tl.constexpr,
    drops: tl.constexpr,
    slope: tl.constexpr,
    wide: tl.constexpr,
    by_id: tl.constexpr,
    heads: tl.constexpr,
    channels: tl.constexpr,
    edges: tl.constexpr,
    times: tl.constexpr,
    x_block: tl.constexpr,
    edge_block: tl.constexpr,
    time_block: tl.constexpr,
    lanes: tl.constexpr,
):
    number = tl.float64 if wide else tl.float32
    node = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, x_block)
    real = column < channels
    first, last = tl.load(t_indptr + node), tl.load(t_indptr + node + 1)
    sums = tl.zeros([x_block], number)
    for at in range(first, last, lanes):
        entry = at + tl.arange(0, lanes).to(tl.int64)
        valid = entry < last
        row = tl.load(t_rows + entry, mask=valid, other=0).to(tl.int64)
        position = tl.load(t_position + entry, mask=valid, other=0).to(tl.int64)
        for head in tl.static_range(heads):
            by = coefficient + position * (2 * heads) + head
            share, slant = tl.load(by, mask=valid, other=0.0), tl.load(by + heads, mask=valid, other=0.0)
            spot = ((head * rows + row) * (channels + edges + times))[:, None] + column[None, :]
            mask = valid[:, None] & real[None, :]
            sums += tl.sum(share[:, None] * tl.load(grad + spot, mask=mask, other=0.0), axis=0)
            sums += tl.sum(slant[:, None] * tl.load(query + spot, mask=mask, other=0.0), axis=0)
    tl.store(grad_x + node * channels + column, sums, mask=real)


def row_gradients(
    grad: Tensor,
    out: Tensor,
    score: Tensor,
    peak: Tensor,
    events: Events,
    *,
    grad_query: Tensor,
    grad_time: Tensor | None,
) -> Tensor:
    """Fills in the gradients asked for and returns the coefficients of the entries.  # -> [entries, 2, heads]"""
    heads, rows, _ = events.query.shape
    times = len(events.time_weight)
    coefficient = score.new_empty(len(events.indices), 2, heads)
    by_row = peak.new_empty(heads * rows if grad_time is not None else 0, 2, times)  # summed afterwards, always in the same order
    if rows:
        launch(
            rows_kernel,
            (rows, heads),
            events,
            indptr=events.indptr,
            dt=events.dt,
            weight=events.time_weight,
            bias=events.time_bias,
            grad=grad,
            out=out,
            score=score,
            peak=peak,
            grad_query=grad_query,
            by_row=by_row,
            coefficient=coefficient,
            need_time=grad_time is not None and times > 0,
        )
    if grad_time is not None:
        torch.sum(by_row, 0, out=grad_time)
    return coefficient


def column_gradients(
    grad: Tensor, coefficient: Tensor, events: Events, transpose: tuple[Tensor, Tensor, Tensor], grad_x: Tensor
) -> None:
    """Fills in grad_x, from the coefficients and the transpose: indptr, rows, where each entry was."""
    if grad_x.numel() == 0:
        return
    begins, rows, order = transpose
    launch(
        columns_kernel,
        (len(grad_x),),
        events,
        grad=grad,
        coefficient=coefficient,
        t_indptr=begins,
        t_rows=rows,
        t_position=order,
        grad_x=grad_x,
    )
