"""Rows by id: `out[i] = x[ids[i]]`, any row width and type.

A gather moves every byte once, so it is as fast as memory allows when many rows are on their way at a time: the native
kernel requests rows ahead and writes large outputs past the caches. A fresh output costs more than the gather (page faults),
so callers in a loop pass `out=`, usually from a `headrace.store.BufferPool`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids, thread_argument, thread_count


def gather(x: Tensor, ids: Tensor, *, out: Tensor | None = None, threads: int | None = None) -> Tensor:
    """Rows `ids` of `x`, written into `out` if it is given.  # [n, ...], [k] -> [k, ...]

    Differentiable in `x` unless `out` is given.
    """
    if x.dim() == 0:
        raise ValueError("x must have rows: it is a single number")
    if not x.is_contiguous():
        raise ValueError("x must be contiguous: call .contiguous() once, not for every gather")
    ids = as_ids(ids, "ids")
    if out is None:
        rows: Tensor = _gather(x, ids, thread_argument(threads))
        return rows
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError("out= keeps no gradient, and x requires one: use gather without out, or torch.no_grad()")
    if out.shape != (len(ids), *x.shape[1:]) or out.dtype != x.dtype or not out.is_contiguous():
        raise ValueError(
            f"out must be contiguous, {x.dtype}, of shape {(len(ids), *x.shape[1:])}; it is {out.dtype}, {tuple(out.shape)}"
        )
    _run(x, ids, out, thread_argument(threads))
    return out


def gather_reference(x: Tensor, ids: Tensor) -> Tensor:
    """The same in plain torch."""
    return x[ids.long()]


def _run(x: Tensor, ids: Tensor, out: Tensor, threads: int) -> None:  # 0 threads: all, found out here and not while compiling
    workers = thread_count(threads or None)
    if x.device.type != "cpu":
        raise ValueError(f"x is on {x.device}; this kernel runs on CPU tensors")
    if x.shape[1:].numel() == 0:  # rows of no elements: only their number matters
        x, out = x.new_empty((len(x), 0), dtype=torch.uint8), out.new_empty((len(out), 0), dtype=torch.uint8)
    if x.dtype in (torch.bool, torch.uint16, torch.uint32, torch.uint64) or x.dtype.is_complex:  # same bytes
        x, out = _bytes(x), _bytes(out)
    try:
        _native.gather(x.detach(), ids, out, workers)
    except ValueError as error:
        low, high = _native.id_range(ids, workers)
        raise IndexError(f"ids from {low} to {high} for {len(x)} rows: {error}") from None


def _bytes(t: Tensor) -> Tensor:
    return t.detach().view(torch.uint8) if t.dim() > 1 else t.detach().unsqueeze(1).view(torch.uint8)


@torch.library.custom_op("headrace::gather", mutates_args=())
def _gather(x: Tensor, ids: Tensor, threads: int) -> Tensor:
    out = x.new_empty((len(ids), *x.shape[1:]))
    _run(x, ids, out, threads)
    return out


@_gather.register_fake
def _(x: Tensor, ids: Tensor, threads: int) -> Tensor:
    return x.new_empty((ids.shape[0], *x.shape[1:]))


def _remember(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    x, ids, _ = inputs
    ctx.save_for_backward(ids)
    ctx.rows = x.shape[0]  # type: ignore[attr-defined]


def _backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None]:
    (ids,) = ctx.saved_tensors  # type: ignore[attr-defined]
    into = grad.new_zeros((ctx.rows, *grad.shape[1:]))  # type: ignore[attr-defined]
    return into.index_add(0, ids, grad), None, None


_gather.register_autograd(_backward, setup_context=_remember)
