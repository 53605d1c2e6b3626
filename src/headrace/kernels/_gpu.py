"""Aggregation on a GPU. Sums and means are a Triton kernel, and their gradient the same over the transpose, which a stable sort
makes: entries are added in order. The maximum and the gradient of weights go through the entries a bounded number at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.kernels._on_gpu import on_gpu


@dataclass(frozen=True, eq=False)
class Work:
    """What is aggregated: `aggregate`'s arguments, as tensors of one device."""

    x: Tensor
    indptr: Tensor
    indices: Tensor
    weight: Tensor | None
    ids: Tensor | None
    scale: Tensor | None
    row_scale: Tensor | None
    reduce: str


@dataclass(frozen=True, eq=False)
class Transpose:
    """The rows of a gradient, where they are known, and how they are launched."""

    indptr: Tensor | None
    indices: Tensor | None
    permutation: Tensor | None
    launch: str
    plan: Sequence[Tensor]


def forward(work: Work, launch: str, plan: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The result, and of max which entry of its row each element came from."""
    x, ids = work.x, work.ids
    if work.reduce == "max":
        return max_rows(x if ids is None else x[ids.long()], work.indptr, work.indices, work.weight)
    out = sum_rows(x, work.indptr, work.indices, work.weight, ids=ids, scale=work.scale, mean=work.reduce == "mean")
    if work.row_scale is not None:
        out.mul_(work.row_scale.unsqueeze(1))
    return out, x.new_empty((0, x.shape[1]), dtype=torch.int32)


def backward(work: Work, grad: Tensor, where: Tensor, back: Transpose, *, need_x: bool, need_weight: bool) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the weights; empty where not needed."""
    x, indptr, indices, weight, ids = work.x, work.indptr, work.indices, work.weight, work.ids
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    columns = x.shape[0] if ids is None else ids.shape[0]
    grad_x, grad_weight = x.new_empty(0), x.new_empty(0, dtype=wide)
    share = work.row_scale
    if work.reduce == "mean":
        each = indptr.diff().clamp_min(1).to(wide).reciprocal()
        share = each if share is None else each * share
    if need_x:
        if work.reduce == "max":
            grad_x = max_gradient(grad, indptr, indices, where, weight, columns)
        else:
            begins, targets, order = back.indptr, back.indices, back.permutation
            if begins is None or targets is None:
                begins, targets, order = transposed(indptr, indices, columns)
            grad_x = sum_rows(grad, begins, targets, None if weight is None else weight[order], scale=share)
            if work.scale is not None:
                grad_x.mul_(work.scale.unsqueeze(1))
        if ids is not None:
            grad_x = torch.zeros_like(x).index_add_(0, ids.long(), grad_x)
    if need_weight:
        rows = x if ids is None else x[ids.long()]
        part = grad if share is None else grad * share.unsqueeze(1).to(grad.dtype)
        grad_weight = weight_gradient(rows, indptr, indices, part, where if work.reduce == "max" else None)
        if work.scale is not None:
            grad_weight *= work.scale[indices.long()]
    return grad_x, grad_weight


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
