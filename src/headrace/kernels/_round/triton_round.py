"""Stochastic rounding to bfloat16 on a GPU, in one pass: the bits of `round_to_bfloat16_reference`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace._arrays import signed
from headrace.kernels._triton_random import half_words


@triton.jit(do_not_specialize=["key"])  # type: ignore[untyped-decorator]
def _round_kernel(values, ids, out, key, count, width, blocks, tile: tl.constexpr):  # type: ignore[no-untyped-def]
    """A block of four words serves eight columns of a row, of which there are `blocks` blocks."""
    block = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)[:, None]
    row, within = block // blocks, block % blocks
    lane = tl.arange(0, 8)[None, :]
    column = within * 8 + lane
    at = row * width + column
    valid = (row < count) & (column < width)
    node = tl.load(ids + row, mask=row < count, other=0).to(tl.int64)
    low, high = (node & 0xFFFFFFFF).to(tl.uint32), (node >> 32).to(tl.uint32)
    drawn = half_words(key, within.to(tl.uint32), low, high, lane)
    bits = tl.load(values + at, mask=valid, other=0.0).to(tl.uint32, bitcast=True)
    finite = (bits & 0x7F800000) != 0x7F800000
    quiet = tl.where((bits & 0x7FFFFF) != 0, bits | 0x400000, bits)
    kept = tl.where(finite, bits + drawn, quiet) >> 16
    tl.store(out + at, kept.to(tl.int16), mask=valid)


def round_rows(values: Tensor, ids: Tensor, *, key: int) -> Tensor:  # [k, d] float32, [k] -> [k, d] bfloat16
    """Every element rounded up or down by 16 bits drawn for (key, id, column)."""
    values, ids = values.contiguous(), ids.contiguous()
    out = torch.empty(values.shape, dtype=torch.int16, device=values.device)
    count, width = values.shape
    blocks = triton.cdiv(width, 8)
    if out.numel():
        _round_kernel[(triton.cdiv(count * blocks, 128),)](values, ids, out, signed(key), count, width, blocks, tile=128)
    return out.view(torch.bfloat16)
