"""What a GPU is measured with: its own clock, and the limits of its memory and of the bus."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor


def needs_gpu() -> torch.device:
    """The GPU, or an error that says what is missing."""
    if not torch.cuda.is_available():
        raise ValueError("this benchmark measures a GPU, and torch sees none here")
    return torch.device("cuda", torch.cuda.current_device())


def seconds_of(work: Callable[[], object], *, repeats: int, warmup: int = 2) -> float:
    """Median seconds of `work` by the GPU's clock."""
    for _ in range(warmup):
        work()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)) / 1e3)
    return statistics.median(times)


def copy_rate(source: torch.device, *, repeats: int) -> float:
    """Bytes per second of a large copy from page-locked host memory, or within GPU memory (bytes read; as many are written)."""
    size = 1 << 30
    here = torch.empty(size, dtype=torch.uint8, device=source, pin_memory=source.type == "cpu")
    there = torch.empty(size, dtype=torch.uint8, device="cuda")
    return size / seconds_of(lambda: there.copy_(here, non_blocking=True), repeats=repeats)


@triton.jit  # type: ignore[untyped-decorator]
def _read_kernel(x, at, out, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    there = i < count
    tl.store(out + i, tl.load(x + tl.load(at + i, mask=there, other=0), mask=there, other=0), mask=there)


def random_read_rate(x: Tensor, *, repeats: int, count: int = 20_000_000) -> float:
    """Random single elements of `x` that a kernel reads per second, from GPU memory or over the bus."""
    at = torch.randint(0, len(x), (count,), device="cuda")
    out = torch.empty(count, dtype=x.dtype, device="cuda")
    return count / seconds_of(lambda: _read_kernel[(triton.cdiv(count, 512),)](x, at, out, count, block=512), repeats=repeats)
