"""What the kernels of attention over events share: the rows of a tile of entries, in three parts, and how a launch is made.

A program takes the entries of a row and head, a tile of them at a time and in order, so the bits are always the same. A tile is
its rows of x, its rows of edge_x and the cosines of its times; it lives in registers. Sampled rows are short: a long one is one
program's work.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from headrace.kernels._attend.triton_entries import _draws
from headrace.kernels._attend_time.events import Events


@triton.jit  # type: ignore[untyped-decorator]
def parts_of(  # type: ignore[no-untyped-def]
    rows, begin, channels: tl.constexpr, edges: tl.constexpr, times: tl.constexpr,
    x_block: tl.constexpr, edge_block: tl.constexpr, time_block: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """The three parts of a row of [x || edge_x || times] that begins at `begin`, padded with zeros.  # -> [x], [edge], [time]"""
    number = tl.float64 if wide else tl.float32
    x, edge, time = tl.arange(0, x_block), tl.arange(0, edge_block), tl.arange(0, time_block)
    return (
        tl.load(rows + begin + x, mask=x < channels, other=0.0).to(number),
        tl.load(rows + begin + channels + edge, mask=edge < edges, other=0.0).to(number),
        tl.load(rows + begin + channels + edges + time, mask=time < times, other=0.0).to(number),
    )


@triton.jit  # type: ignore[untyped-decorator]
def store_parts(  # type: ignore[no-untyped-def]
    rows, begin, of_x, of_edge, of_time, channels: tl.constexpr, edges: tl.constexpr, times: tl.constexpr,
    x_block: tl.constexpr, edge_block: tl.constexpr, time_block: tl.constexpr,
):  # fmt: skip
    x, edge, time = tl.arange(0, x_block), tl.arange(0, edge_block), tl.arange(0, time_block)
    tl.store(rows + begin + x, of_x, mask=x < channels)
    tl.store(rows + begin + channels + edge, of_edge, mask=edge < edges)
    tl.store(rows + begin + channels + edges + time, of_time, mask=time < times)


@triton.jit  # type: ignore[untyped-decorator]
def far_parts(  # type: ignore[no-untyped-def]
    x, indices, edge_x, edge_id, entry, valid,
    channels: tl.constexpr, edges: tl.constexpr, by_id: tl.constexpr, x_block: tl.constexpr, edge_block: tl.constexpr,
    wide: tl.constexpr,
):  # fmt: skip
    """The rows of x and of edge_x of a tile of entries.  # [lanes] -> [lanes, x], [lanes, edge]"""
    number = tl.float64 if wide else tl.float32
    column, edge = tl.arange(0, x_block)[None, :], tl.arange(0, edge_block)[None, :]
    node = tl.load(indices + entry, mask=valid, other=0).to(tl.int64)
    of_x = tl.load(x + node[:, None] * channels + column, mask=valid[:, None] & (column < channels), other=0.0).to(number)
    row = entry
    if by_id:
        row = tl.load(edge_id + entry, mask=valid, other=0).to(tl.int64)
    of_edge = tl.load(edge_x + row[:, None] * edges + edge, mask=valid[:, None] & (edge < edges), other=0.0).to(number)
    return of_x, of_edge


@triton.jit  # type: ignore[untyped-decorator]
def angles(dt, weight, bias, entry, valid, times: tl.constexpr, time_block: tl.constexpr, wide: tl.constexpr):  # type: ignore[no-untyped-def]
    """The time differences of a tile, and the angles whose cosines are their encoding.  # [lanes] -> [lanes], [lanes, time]"""
    number = tl.float64 if wide else tl.float32
    time = tl.arange(0, time_block)
    past = tl.load(dt + entry, mask=valid, other=0.0).to(number)
    by = tl.load(weight + time, mask=time < times, other=0.0).to(number)
    phase = tl.load(bias + time, mask=time < times, other=0.0).to(number)
    return past, past[:, None] * by[None, :] + phase[None, :]


@triton.jit  # type: ignore[untyped-decorator]
def dots(of_x, of_edge, of_time, near_x, near_edge, near_time):  # type: ignore[no-untyped-def]
    """# [lanes, ...] x 3, [...] x 3 -> [lanes]"""
    dot = tl.sum(of_x * near_x[None, :], axis=1) + tl.sum(of_edge * near_edge[None, :], axis=1)
    return dot + tl.sum(of_time * near_time[None, :], axis=1)


def launch(kernel: Any, grid: tuple[int, ...], events: Events, **arguments: Any) -> None:
    """Launch a kernel with everything that `events` say; `arguments` are its own."""
    x, edge_x, indptr = events.x, events.edge_x, events.indptr
    edges = 0 if edge_x is None else edge_x.shape[1]
    channels, times = x.shape[1], len(events.time_weight)
    x_block, edge_block, time_block = (triton.next_power_of_2(max(width, 1)) for width in (channels, edges, times))
    widest = max(x_block, edge_block, time_block)
    kernel[grid](
        x=x,
        edge_x=x if edge_x is None else edge_x,
        edge_id=indptr if events.edge_id is None else events.edge_id,
        indices=events.indices,
        query=events.query,
        rows=len(indptr) - 1,
        **_draws(events, indptr),  # type: ignore[arg-type]
        slope=events.slope,
        wide=x.dtype == torch.float64,
        by_id=events.edge_id is not None,
        heads=events.query.shape[0],
        channels=channels,
        edges=edges,
        times=times,
        x_block=x_block,
        edge_block=edge_block,
        time_block=time_block,
        lanes=min(max(4096 // widest, 2), 16),
        num_warps=min(max(widest // 128, 1) * 4, 8),
        enable_fp_fusion=False,  # the angle of a large time is rounded as everywhere else
        **arguments,
    )
