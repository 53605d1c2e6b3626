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
    lane = tl.arange(0, 8)[None, :]  # a block of four words serves eight elements
    at = block * 8 + lane
    valid = at < count
    value = tl.load(x + at, mask=valid, other=0.0).to(tl.float64 if wide else tl.float32)
    if gated:
        kept = tl.load(gate + at, mask=valid, other=0.0) > 0
    else:
        zero = (block * 0).to(tl.uint32)
        if seed_on_device:
            key = key_of_seed(key, _DROPOUT)
        drawn = half_words(key, (block & 0xFFFFFFFF).to(tl.uint32), (block >> 32).to(tl.uint32), zero, lane)
        kept = drawn >= dropped
        if relu:
            value = tl.where(value < 0, 0.0, value)
    scale = (tl.full([], 65536.0, tl.float64) / (65536 - dropped).to(tl.float64)).to(value.dtype)
    tl.store(out + at, tl.where(kept, value * scale, 0.0).to(out.dtype.element_ty), mask=valid)


def dropout(x: Tensor, *, dropped: int, relu: bool, seed: int | Tensor, gate: Tensor | None) -> Tensor:
    """`x`, scaled up, with elements set to 0 whose draw of 16 bits is below `dropped`, or whose `gate` is not above 0.

    `seed` may lie on the device (int64, one element): a captured launch then draws anew whenever it is replayed.
    """
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel() == 0:
        return out
    key = seed if isinstance(seed, Tensor) else signed(_native.stream_key(seed, 0, 0, _native.Purpose.dropout))
    grid = (triton.cdiv(x.numel(), 8 * 128),)
    _dropout_kernel[grid](
        x,
        x if gate is None else gate.contiguous(),
        out,
        key,
        x.numel(),
        dropped,
        relu=relu,
        gated=gate is not None,
        wide=x.dtype == torch.float64,
        seed_on_device=isinstance(seed, Tensor),
        blocks=128,
    )
    return out
