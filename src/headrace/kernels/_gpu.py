"""Aggregation on a GPU. Sums and means are a Triton kernel, and their gradient the same over the transpose, which a stable sort
makes: entries are added in order. The maximum and the gradient of weights go through the entries a bounded number at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ENTRIES = 1 << 22  # gathered at a time, where rows must be


def sum_rows(x: Tensor, indptr: Tensor, indices: Tensor, weight: Tensor | None) -> Tensor:
    """sum over e in row v of weight[e] * x[indices[e]].  # [n, d] -> [rows, d]"""
    from headrace.kernels import _triton_sum  # not needed, and perhaps not there, without a GPU

    return _triton_sum.sum_rows(x.contiguous(), indptr, indices, weight)


def transposed(indptr: Tensor, indices: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """The transpose, and where each of its entries came from."""
    order = torch.argsort(indices, stable=True)
    counts = torch.bincount(indices, minlength=columns)
    begins = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    return begins, entry_rows(indptr)[order], order


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
    rows = entry_rows(indptr)
    slots = torch.arange(len(indices), device=x.device) - indptr[rows]
    out = torch.empty(len(indices), dtype=torch.float64 if x.dtype == torch.float64 else torch.float32, device=x.device)
    for begin in range(0, len(indices), _ENTRIES):
        part = slice(begin, begin + _ENTRIES)
        product = x[indices[part].long()].to(out.dtype) * grad[rows[part]].to(out.dtype)
        if where is not None:
            product = torch.where(where[rows[part]] == slots[part].unsqueeze(1), product, 0)
        out[part] = product.sum(dim=1)
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


def entry_rows(indptr: Tensor) -> Tensor:
    """The row of every entry.  # -> [entries]"""
    return torch.repeat_interleave(torch.arange(len(indptr) - 1, device=indptr.device), indptr.diff())
