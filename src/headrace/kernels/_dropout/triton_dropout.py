"""Dropout on a GPU: the mask that native/vector_dropout.cpp draws, from the same Philox counters."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace import _native
from headrace._arrays import signed
from headrace.kernels._triton_random import half_words, key_of_seed

_DROPOUT = tl.constexpr(int(_native.Purpose.dropout))
_BLOCKS = 128  # of eight elements, which a program takes


@triton.jit  # type: ignore[untyped-decorator]
def _draw(key, block, lane, seed_on_device: tl.constexpr):  # type: ignore[no-untyped-def]
    """16 bits for each of the eight elements that a block of four words serves.  # [n, 1], [1, 8] -> [n, 8]"""
    if seed_on_device:
        key = key_of_seed(key, _DROPOUT)
    return half_words(key, (block & 0xFFFFFFFF).to(tl.uint32), (block >> 32).to(tl.uint32), (block * 0).to(tl.uint32), lane)


@triton.jit  # type: ignore[untyped-decorator]
def _store(out, at, valid, value, kept, dropped):  # type: ignore[no-untyped-def]
    scale = (tl.full([], 65536.0, tl.float64) / (65536 - dropped).to(tl.float64)).to(value.dtype)
    tl.store(out + at, tl.where(kept, value * scale, 0.0).to(out.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=["key", "dropped"])  # type: ignore[untyped-decorator]
def _dropout_kernel(  # type: ignore[no-untyped-def]
    x,
    gate,
    out,
    key,
    count,
    dropped,
    relu: tl.constexpr,
    gated: tl.constexpr,
    wide: tl.constexpr,
    seed_on_device: tl.constexpr,
    blocks: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64) * blocks + tl.arange(0, blocks)[:, None]
    lane = tl.arange(0, 8)[None, :]
    at = block * 8 + lane
    valid = at < count
    value = tl.load(x + at, mask=valid, other=0.0).to(tl.float64 if wide else tl.float32)
    if gated:
        kept = tl.load(gate + at, mask=valid, other=0.0) > 0
    else:
        kept = _draw(key, block, lane, seed_on_device) >= dropped
        if relu:
            value = tl.where(value < 0, 0.0, value)
    _store(out, at, valid, value, kept, dropped)


@triton.jit(do_not_specialize=["key", "count", "width", "first", "stride", "row_blocks", "dropped"])  # type: ignore[untyped-decorator]
def _slice_kernel(  # type: ignore[no-untyped-def]
    x,
    rows,
    out,
    key,
    count,
    width,
    first,
    stride,
    row_blocks,
    dropped,
    by_number: tl.constexpr,
    relu: tl.constexpr,
    wide: tl.constexpr,
    seed_on_device: tl.constexpr,
    blocks: tl.constexpr,
):
    """A row of x is a run of positions, which may begin and end inside a block: it has up to `row_blocks` of them."""
    number = tl.program_id(0).to(tl.int64) * blocks + tl.arange(0, blocks)[:, None]
    row = number // row_blocks
    inside = row < count
    whole_row = row
    if by_number:
        whole_row = tl.load(rows + row, mask=inside, other=0)
    begin = first + stride * whole_row
    block = (begin >> 3) + number % row_blocks
    lane = tl.arange(0, 8)[None, :]
    column = block * 8 + lane - begin
    valid = inside & (column >= 0) & (column < width)
    at = row * width + column
    value = tl.load(x + at, mask=valid, other=0.0).to(tl.float64 if wide else tl.float32)
    if relu:
        value = tl.where(value < 0, 0.0, value)
    _store(out, at, valid, value, _draw(key, block, lane, seed_on_device) >= dropped, dropped)


def dropout(
    x: Tensor,
    *,
    dropped: int,
    relu: bool,
    seed: int | Tensor,
    gate: Tensor | None,
    rows: Tensor | None = None,
    first: int = 0,
    stride: int = 0,
) -> Tensor:
    """`x`, scaled up, with elements set to 0 whose draw of 16 bits is below `dropped`, or whose `gate` is not above 0.

    `seed` may lie on the device (int64, one element): a captured launch then draws anew whenever it is replayed. Element j of row
    i has the draw of position first + stride * rows[i] + j, rows[i] being i without `rows`; without rows and stride elements follow
    each other, from `first` on.
    """
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel() == 0:
        return out
    key = seed if isinstance(seed, Tensor) else signed(_native.stream_key(seed, 0, 0, _native.Purpose.dropout))
    how = {"relu": relu, "wide": x.dtype == torch.float64, "seed_on_device": isinstance(seed, Tensor), "blocks": _BLOCKS}
    if gate is not None or (rows is None and first == stride == 0):
        gates = x if gate is None else gate.contiguous()
        grid = (triton.cdiv(x.numel(), 8 * _BLOCKS),)
        _dropout_kernel[grid](x, gates, out, key, x.numel(), dropped, gated=gate is not None, **how)
        return out
    width = x.numel() if rows is None and stride == 0 else x.shape[1]
    count, row_blocks = x.numel() // width, (width + 14) // 8  # a row that begins with a block's last lane
    grid = (triton.cdiv(count * row_blocks, _BLOCKS),)
    numbers = out if rows is None else rows
    _slice_kernel[grid](x, numbers, out, key, count, width, first, stride, row_blocks, dropped, by_number=rows is not None, **how)
    return out
