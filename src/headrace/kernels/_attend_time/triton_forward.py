"""Attention over events on a GPU: scores, softmax and weighed sum of a row in one pass over its entries."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels._attend.triton_entries import factors, leaky, stream_key
from headrace.kernels._attend_time.events import Events
from headrace.kernels._attend_time.triton_events import angles, dots, far_parts, launch, parts_of, store_parts


@triton.jit(
    do_not_specialize=["rows", "key", "dropped", "seed_on_device"],
    do_not_specialize_on_alignment=["indptr", "indices", "edge_id", "dt", "seed"],
)  # type: ignore[untyped-decorator]
def forward_kernel(  # type: ignore[no-untyped-def]
    query,
    indptr,
    indices,
    dt,
    x,
    edge_x,
    edge_id,
    weight,
    bias,
    out,
    score,
    peak,
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
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first, last = tl.load(indptr + row), tl.load(indptr + row + 1)
    own = (head * rows + row) * (channels + edges + times)
    near_x, near_edge, near_time = parts_of(query, own, channels, edges, times, x_block, edge_block, time_block, wide)
    if drops:
        key = stream_key(key, seed, seed_on_device)
    largest, total = tl.full([], float("-inf"), number), tl.full([], 0.0, number)
    sum_x, sum_edge, sum_time = near_x * 0, near_edge * 0, near_time * 0
    for at in range(first, last, lanes):
        entry = at + tl.arange(0, lanes).to(tl.int64)
        valid = entry < last
        of_x, of_edge = far_parts(x, indices, edge_x, edge_id, entry, valid, channels, edges, by_id, x_block, edge_block, wide)
        _, angle = angles(dt, weight, bias, entry, valid, times, time_block, wide)
        of_time = tl.cos(angle)
        scores = leaky(dots(of_x, of_edge, of_time, near_x, near_edge, near_time), slope)
        tl.store(score + entry * heads + head, scores, mask=valid)
        scores = tl.where(valid, scores, float("-inf"))
        after = tl.maximum(largest, tl.max(scores, axis=0))
        shrink, power = tl.exp(largest - after), tl.exp(scores - after)
        largest = after
        total = total * shrink + tl.sum(power, axis=0)
        if drops:
            power *= tl.sum(factors(key, entry, head, dropped, kept, 1, wide), axis=1)
        sum_x = sum_x * shrink + tl.sum(of_x * power[:, None], axis=0)
        sum_edge = sum_edge * shrink + tl.sum(of_edge * power[:, None], axis=0)
        sum_time = sum_time * shrink + tl.sum(of_time * power[:, None], axis=0)
    some = last > first  # an empty row gives 0
    scale = tl.where(some, 1.0 / tl.where(some, total, 1.0), 0.0)
    tl.store(peak + row * (2 * heads) + head, tl.where(some, largest, 0.0))
    tl.store(peak + row * (2 * heads) + heads + head, scale)
    store_parts(
        out, own, sum_x * scale, sum_edge * scale, sum_time * scale, channels, edges, times, x_block, edge_block, time_block
    )


def attend_time(events: Events, out: Tensor, score: Tensor, peak: Tensor) -> None:
    """Fills in all three."""
    heads, rows, _ = events.query.shape
    if rows:
        launch(
            forward_kernel,
            (rows, heads),
            events,
            indptr=events.indptr,
            dt=events.dt,
            weight=events.time_weight,
            bias=events.time_bias,
            out=out,
            score=score,
            peak=peak,
        )
