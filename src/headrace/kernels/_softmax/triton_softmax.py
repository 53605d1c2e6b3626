"""Softmax of rows on a GPU: a row is read once from memory and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096  # columns at a time


@triton.jit(do_not_specialize=["share"])  # type: ignore[untyped-decorator]
def _softmax_kernel(scores, own, loss, to_own, share, width, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    mine = tl.load(own + row)
    lane = tl.arange(0, block)
    highest, total = mine, mine * 0 + 1.0
    for first in range(0, width, block):
        at = first + lane
        score = tl.load(scores + row * width + at, mask=at < width, other=float("-inf"))
        higher = tl.maximum(highest, tl.max(score, axis=0))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(score - higher), axis=0)
        highest = higher
    scale = share / total
    for first in range(0, width, block):  # from the cache
        at = first + lane
        score = tl.load(scores + row * width + at, mask=at < width, other=float("-inf"))
        tl.store(scores + row * width + at, tl.exp(score - highest) * scale, mask=at < width)
    tl.store(loss + row, tl.log(total) + highest - mine)
    tl.store(to_own + row, (tl.exp(mine - highest) / total - 1.0) * share)


def softmax_rows_(scores: Tensor, own: Tensor, *, share: float) -> tuple[Tensor, Tensor]:  # [r, n], [r] -> [r], [r]
    """See `headrace.kernels.softmax_rows_`."""
    rows, width = scores.shape
    own = own.contiguous()
    loss, to_own = torch.empty_like(own), torch.empty_like(own)
    if rows:
        block = min(triton.next_power_of_2(max(width, 1)), _BLOCK)
        _softmax_kernel[(rows,)](scores, own, loss, to_own, share, width, block=block, num_warps=max(min(block // 256, 8), 1))
    return loss, to_own
