"""Aggregation on a GPU. Sums and means are a Triton kernel, and their gradient the same over the transpose, which a stable sort
makes: entries are added in order. The maximum and the gradient of weights go through the entries a bounded number at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.kernels._on_gpu import on_gpu

_ENTRIES = 1 << 22  # gathered at a time, where rows must be


def sum_rows(x: Tensor, indptr: Tensor, indices: Tensor, weight: Tensor | None = None, **how: Any) -> Tensor:
    """`_triton_sum.sum_rows`."""
    rows: Tensor = on_gpu("sum").sum_rows(x.contiguous(), indptr, indices, weight, **how)
    return rows


def transposed(indptr: Tensor, indices: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """The transpose, and where each of its entries came from. Entries outside the rows (of a range of a graph's) come last and
    belong to none. Nothing here waits for the device."""
    rows = entry_rows(indptr, len(indices))
    outside = (rows < 0) | (rows >= len(indptr) - 1)
    keys, order = torch.sort(torch.where(outside, columns, indices), stable=True)
    begins = torch.searchsorted(keys, torch.arange(columns + 1, device=keys.device, dtype=keys.dtype))
    return begins, rows[order], order


def max_rows(x: Tensor, indptr: Tensor, indices: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """The maximum over the entries of each row, 0 in an empty one, and which entry of its row it is.  # -> [rows, d] twice"""
    best = x.new_zeros(len(indptr) - 1, x.shape[1])
    where = torch.full(best.shape, -1, dtype=torch.int32, device=x.device)
    degrees = indptr.diff()
    for slot in range(int(degrees.max()) if len(degrees) else 0):
        has = (degrees > slot).nonzero().flatten()
        entry = indptr[has] + slot
        value = x[indices[entry].long()]
        if weight is not None:
            value = value * weight[entry].unsqueeze(1).to(x.dtype)
        better = (value > best[has]) | (value.isnan() & ~best[has].isnan()) if slot else torch.ones_like(value, dtype=torch.bool)
        best[has] = torch.where(better, value, best[has])
        where[has] = torch.where(better, slot, where[has])
    return best, where


def weight_gradient(x: Tensor, indptr: Tensor, indices: Tensor, grad: Tensor, where: Tensor | None) -> Tensor:
    """<grad[v], x[indices[e]]> of every entry, over the columns max took from it if `where` is given.  # -> [entries]"""
    out = torch.zeros(len(indices), dtype=torch.float64 if x.dtype == torch.float64 else torch.float32, device=x.device)
    if len(indptr) < 2:
        return out
    rows = entry_rows(indptr, len(indices))
    inside = (rows >= 0) & (rows < len(indptr) - 1)
    rows = rows.clamp(0, len(indptr) - 2)
    slots = torch.arange(len(indices), device=x.device) - indptr[rows]
    for begin in range(0, len(indices), _ENTRIES):
        part = slice(begin, begin + _ENTRIES)
        product = x[indices[part].long()].to(out.dtype) * grad[rows[part]].to(out.dtype)
        if where is not None:
            product = torch.where(where[rows[part]] == slots[part].unsqueeze(1), product, 0)
        out[part] = torch.where(inside[part], product.sum(dim=1), 0)
    return out


def max_gradient(grad: Tensor, indptr: Tensor, indices: Tensor, where: Tensor, weight: Tensor | None, columns: int) -> Tensor:
    """The gradient of `max_rows`: each element goes to the entry it came from.  # [rows, d] -> [columns, d]"""
    row, column = (where >= 0).nonzero(as_tuple=True)
    entry = indptr[row] + where[row, column]
    value = grad[row, column]
    if weight is not None:
        value = value * weight[entry].to(grad.dtype)
    out = grad.new_zeros(columns, grad.shape[1])
    return out.index_put_((indices[entry].long(), column), value, accumulate=True)


def entry_rows(indptr: Tensor, entries: int) -> Tensor:
    """The row of every entry; -1 or the number of rows for one outside.  # -> [entries]"""
    return torch.searchsorted(indptr, torch.arange(entries, device=indptr.device), right=True) - 1
