"""A transpose by a stable sort, in plain torch: on a GPU, where the native one cannot read."""

from __future__ import annotations

import torch
from torch import Tensor


def transposed(indptr: Tensor, indices: Tensor, columns: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """`indptr` and `indices` of the transpose, and the position each of its entries came from: the bits of the native one.

    Rows ascend by the other end, and equal entries keep their order. Positions are int32 while they fit. There are as many columns
    as rows unless `columns` says otherwise.
    """
    keys, position = torch.sort(indices, stable=True)
    bounds = len(indptr) if columns is None else columns + 1
    begins = torch.searchsorted(keys, torch.arange(bounds, dtype=keys.dtype, device=keys.device))
    rows = torch.arange(len(indptr) - 1, dtype=indices.dtype, device=indices.device)
    targets = torch.repeat_interleave(rows, indptr.diff(), output_size=len(indices))[position]
    return begins, targets, position.to(torch.int32) if len(indices) <= torch.iinfo(torch.int32).max else position
