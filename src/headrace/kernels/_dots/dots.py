"""Dot products of the rows at the two ends of every entry of a CSR, without building either side (SDDMM).

    out[e] = <left[v], x[indices[e]]>   for e in indptr[v] .. indptr[v + 1]

It is what a weighted sum over neighbors has as the gradient of its weights, and is run by the same kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace._arrays import thread_argument
from headrace.kernels._aggregate.ops import _run_backward
from headrace.kernels._aggregate.work import sum_type


def dots(left: Tensor, x: Tensor, indptr: Tensor, indices: Tensor, *, threads: int | None = None) -> Tensor:
    """The product of row v of `left` and row `indices[e]` of `x` for every entry e of row v.  # [rows, d], [n, d] -> [entries]

    Products of bf16 and fp16 rows are kept in fp32. Records no gradient.
    """
    if left.dim() != 2 or x.dim() != 2 or left.shape[1] != x.shape[1]:
        raise ValueError(f"left and x must be rows of one width, not of shapes {tuple(left.shape)} and {tuple(x.shape)}")
    if indptr.dtype != torch.int64 or len(indptr) != len(left) + 1:
        raise ValueError(f"indptr must be int64 with {len(left) + 1} elements for {len(left)} rows of left, not {len(indptr)}")
    if left.dtype != x.dtype:
        raise ValueError(f"left and x must have one type, not {left.dtype} and {x.dtype}")
    rows = left.detach().contiguous(), x.detach().contiguous(), indptr.contiguous(), indices.contiguous()
    plain = (None,) * 4  # no weight, ids, scale or scale of rows
    unknown: tuple[Any, ...] = (None, None, None, [], "")  # of the reverse, which only a gradient of x needs
    ends = indptr.new_empty(0), "sum", False, True, thread_argument(threads)  # the gradient of weights, and none of x
    _, products = _run_backward(*rows, *plain, *unknown, *ends)
    return products


def dots_reference(left: Tensor, x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """The same in plain torch."""
    wide = sum_type(x.dtype)
    rows = torch.repeat_interleave(torch.arange(len(left), device=left.device), indptr.diff())
    return (left.to(wide)[rows] * x.to(wide)[indices.long()]).sum(-1)
