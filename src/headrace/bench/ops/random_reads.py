"""The limit of a sampler on a GPU: random reads of single elements. Imports Triton, so it is imported where a GPU is measured."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.bench.measure import seconds_of


@triton.jit  # type: ignore[untyped-decorator]
def _read_kernel(x, at, out, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = i < count
    tl.store(out + i, tl.load(x + tl.load(at + i, mask=inside, other=0), mask=inside, other=0), mask=inside)


def random_read_rate(x: Tensor, *, repeats: int, count: int = 20_000_000) -> float:
    """Random single elements of `x` that a kernel reads per second, from GPU memory or over the bus."""
    at = torch.randint(0, len(x), (count,), device="cuda")
    out = torch.empty(count, dtype=x.dtype, device="cuda")
    grid = (triton.cdiv(count, 512),)
    return count / seconds_of(lambda: _read_kernel[grid](x, at, out, count, block=512), at.device, repeats=repeats)
