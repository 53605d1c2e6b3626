"""Dropout on a GPU: the mask that native/vector_dropout.cpp draws, from the same Philox counters."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace import _native
from headrace._arrays import signed

_DROPOUT = 4  # Purpose::dropout of native/philox.h


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
    seed_there: tl.constexpr,
    purpose: tl.constexpr,
    blocks: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64) * blocks + tl.arange(0, blocks)[:, None]
    lane = tl.arange(0, 8)[None, :]  # a block of four words serves eight elements
    at = block * 8 + lane
    there = at < count
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float64 if wide else tl.float32)
    if gated:
        kept = tl.load(gate + at, mask=there, other=0.0) > 0
    else:
        zero = (block * 0).to(tl.uint32)
        if seed_there:  # the key of the seed (stream_key of native/philox.h)
            nothing = tl.zeros([1], tl.uint32)
            k0, k1, _, _ = tl.philox(tl.load(key), nothing, nothing, nothing, nothing + purpose)
            key = tl.sum(k0.to(tl.int64) | (k1.to(tl.int64) << 32), axis=0)
        w0, w1, w2, w3 = tl.philox(key, (block & 0xFFFFFFFF).to(tl.uint32), (block >> 32).to(tl.uint32), zero, zero)
        word = tl.where(lane < 4, tl.where(lane < 2, w0, w1), tl.where(lane < 6, w2, w3))
        drawn = tl.where(lane % 2 == 0, word & 0xFFFF, word >> 16)
        kept = drawn >= dropped
        if relu:
            value = tl.where(value < 0, 0.0, value)
    scale = (tl.full([], 65536.0, tl.float64) / (65536 - dropped).to(tl.float64)).to(value.dtype)
    tl.store(out + at, tl.where(kept, value * scale, 0.0).to(out.dtype.element_ty), mask=there)


def dropout(x: Tensor, *, dropped: int, relu: bool, seed: int | Tensor, gate: Tensor | None) -> Tensor:
    """`x`, scaled up, with elements set to 0 whose draw of 16 bits is below `dropped`, or whose `gate` is not above 0.

    `seed` may lie on the device (int64, one element): a captured launch then draws anew whenever it is replayed.
    """
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel() == 0:
        return out
    key = seed if isinstance(seed, Tensor) else signed(_native.stream_key(seed, 0, 0, _DROPOUT))
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
        seed_there=isinstance(seed, Tensor),
        purpose=_DROPOUT,
        blocks=128,
    )
    return out
