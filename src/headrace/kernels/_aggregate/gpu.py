"""Aggregation on a GPU: which kernel does which part of it, forwards and backwards.

The gradient of x is the same kernel over the transpose, which is given or made by a stable sort; that of a maximum too, of the
elements it took. Nothing is added with atomics, so that every result has the same bits twice, and nothing here waits for the
device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headrace.kernels._aggregate.launch import Launch, launch_for
from headrace.kernels._aggregate.work import Work, row_share, sum_type
from headrace.kernels._on_gpu import on_gpu


@dataclass(frozen=True, eq=False)
class Transpose:
    """The rows of a gradient, where they are known, and how they are launched."""

    indptr: Tensor | None = None
    indices: Tensor | None = None
    permutation: Tensor | None = None
    launch: str = ""
    plan: Sequence[Tensor] = ()


def forward(work: Work, launch: str = "", plan: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
    """The result, and of max which entry of its row each element came from."""
    how = _launch_of(work, launch)
    if work.reduce == "max":
        out: Tensor
        where: Tensor
        out, where = on_gpu("_aggregate.triton_max").max_rows(work, how, tuple(plan))
        return out, where
    return sum_rows(work, how, plan), work.x.new_empty((0, work.x.shape[1]), dtype=torch.int32)


def backward(work: Work, grad: Tensor, where: Tensor, back: Transpose, *, need_x: bool, need_weight: bool) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the weights; empty where not needed."""
    wide = sum_type(work.x.dtype)
    grad_x, grad_weight = work.x.new_empty(0), work.x.new_empty(0, dtype=wide)
    share = row_share(work.indptr, work.row_scale, work.reduce, wide)
    if need_x:
        grad_x = _gradient_of_x(work, grad, where, back, share)
    if need_weight:
        owners = entry_rows(work.indptr, len(work.indices))
        taken = where if work.reduce == "max" else None
        grad_weight = on_gpu("_aggregate.triton_dots").entry_dots(replace(work, row_scale=share), grad, owners, taken)
    return grad_x, grad_weight


def _gradient_of_x(work: Work, grad: Tensor, where: Tensor, back: Transpose, share: Tensor | None) -> Tensor:
    weight, scale, indices = work.weight, work.scale, work.indices
    if work.ids is not None:  # ids may repeat: the transpose is that of the rows of x themselves, which adds them up in order
        back = Transpose()
        if scale is not None:
            factor = scale[indices.long()]
            weight, scale = factor if weight is None else weight * factor, None
        indices = work.ids[indices.long()]
    begins, targets, order = back.indptr, back.indices, back.permutation
    if begins is None or targets is None:
        begins, targets, order = transposed(work.indptr, indices, len(work.x))
        back = Transpose()  # a plan is of the reverse that was given
    if weight is None and work.reduce != "max":
        order = None
    turned = Work(grad, begins, targets, weight=weight, scale=share, row_scale=scale, position=order)
    if work.reduce == "max":
        turned = replace(turned, taken=where, forward=work.indptr)
    return sum_rows(turned, _launch_of(turned, back.launch), back.plan)


def sum_rows(work: Work, launch: Launch, plan: Sequence[Tensor] = ()) -> Tensor:
    """The sum or mean; by rows where windows do not serve: with weights, in fp64, and where a factor would be rounded."""
    out: Tensor
    if launch.variant == "window":
        halves = work.x.dtype in (torch.float16, torch.bfloat16)
        if work.weight is None and work.taken is None and work.x.dtype != torch.float64 and not (halves and work.scale is not None):
            out = on_gpu("_aggregate.triton_window").window_rows(work, launch, tuple(plan))
            return out
        launch, plan = replace(_launch_of(work, ""), programs=launch.programs), ()
    out = on_gpu("_aggregate.triton_sum").sum_rows(work, launch, tuple(plan))
    return out


def _launch_of(work: Work, packed: str) -> Launch:
    """The launch given, or what follows from the sizes alone."""
    if packed:
        return Launch.unpacked(packed)
    return launch_for(mean_degree=work.mean_degree, width=work.x.shape[1], dtype=work.x.dtype)


def transposed(indptr: Tensor, indices: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """The transpose, and where each of its entries came from. Entries outside the rows (of a range of a graph's) come last and
    belong to none."""
    rows = entry_rows(indptr, len(indices))
    outside = (rows < 0) | (rows >= len(indptr) - 1)
    keys, order = torch.sort(torch.where(outside, columns, indices), stable=True)
    begins = torch.searchsorted(keys, torch.arange(columns + 1, device=keys.device, dtype=keys.dtype))
    return begins, rows[order], order


def entry_rows(indptr: Tensor, entries: int) -> Tensor:
    """The row of every entry; -1 or the number of rows for one outside.  # -> [entries]"""
    return torch.searchsorted(indptr, torch.arange(entries, device=indptr.device), right=True) - 1
