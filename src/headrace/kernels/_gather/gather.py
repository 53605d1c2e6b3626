"""Rows by id: `out[i] = x[ids[i]]`, any row width and type.

A gather moves every byte once, so it is as fast as memory allows when many rows are on their way at a time: the native
kernel requests rows ahead and writes large outputs past the caches. A fresh output costs more than the gather (page faults),
so callers in a loop pass `out=`, usually from a `headrace.store.BufferPool`. Rows on a GPU are copied by a Triton kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids_near, check_apart, check_ids, thread_argument, thread_count
from headrace.kernels._aggregate import gpu as _gpu
from headrace.kernels._aggregate.work import Work
from headrace.kernels._direct import direct
from headrace.kernels._on_gpu import on_gpu


def gather(x: Tensor, ids: Tensor, *, out: Tensor | None = None, threads: int | None = None, check: bool = True) -> Tensor:
    """Rows `ids` of `x`, written into `out` if it is given.  # [n, ...], [k] -> [k, ...]

    `out` must share no memory with `x` and `ids`.
    Differentiable in `x` unless `out` is given. To look at ids on a GPU the host waits for them; `check=False`, for ids that are
    known to be good, does not, and an id out of range then leaves its row unwritten. On the CPU ids are always checked.
    """
    if x.dim() == 0:
        raise ValueError("x must have rows: it is a single number")
    if not x.is_contiguous():
        raise ValueError("x must be contiguous: call .contiguous() once, not for every gather")
    ids = as_ids_near(ids, "ids", x.device)
    if out is None:
        rows: Tensor = _call(x, ids, thread_argument(threads), check)
        return rows
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError("out= keeps no gradient, and x requires one: use gather without out, or torch.no_grad()")
    if out.shape != (len(ids), *x.shape[1:]) or out.dtype != x.dtype or not out.is_contiguous():
        raise ValueError(
            f"out must be contiguous, {x.dtype}, of shape {(len(ids), *x.shape[1:])}; it is {out.dtype}, {tuple(out.shape)}"
        )
    if out.device != x.device:
        raise ValueError(f"out is on {out.device}, x is on {x.device}: they must be on one device")
    _run(x, ids, out, thread_argument(threads), check)
    return out


def gather_reference(x: Tensor, ids: Tensor) -> Tensor:
    """The same in plain torch."""
    return x[ids.long()]


def _run(x: Tensor, ids: Tensor, out: Tensor, threads: int, check: bool) -> None:
    workers = thread_count(threads or None)  # 0 stands for all threads: how many is read when the op runs, not when traced
    if x.device.type == "cuda":
        check_apart(out, x=x, ids=ids)
        return _run_on_gpu(x, ids, out, check)
    if x.device.type != "cpu":
        raise ValueError(f"x is on {x.device}; rows are gathered on the CPU or on a CUDA GPU")
    if x.shape[1:].numel() == 0:  # rows of no elements: only their number matters
        x, out = x.new_empty((len(x), 0), dtype=torch.uint8), out.new_empty((len(out), 0), dtype=torch.uint8)
    if x.dtype in (torch.bool, torch.uint16, torch.uint32, torch.uint64) or x.dtype.is_complex:  # same bytes
        x, out = _bytes(x), _bytes(out)
    try:
        _native.gather(x.detach(), ids, out, workers)
    except ValueError:
        check_ids(ids, len(x))
        raise


def _run_on_gpu(x: Tensor, ids: Tensor, out: Tensor, check: bool) -> None:
    if check or ids.device.type == "cpu":  # ids on the CPU are seen without waiting
        check_ids(ids, len(x))
    row_bytes = x.shape[1:].numel() * x.element_size()
    on_gpu("_gather.triton_gather").gather_rows(x.detach(), ids.to(x.device, non_blocking=True), out, row_bytes)


def _bytes(t: Tensor) -> Tensor:
    return t.detach().view(torch.uint8) if t.dim() > 1 else t.detach().unsqueeze(1).view(torch.uint8)


def _made(x: Tensor, ids: Tensor, threads: int, check: bool = True) -> Tensor:
    out = x.new_empty((len(ids), *x.shape[1:]))
    _run(x, ids, out, threads, check)
    return out


_gather = torch.library.custom_op("headrace::gather", _made, mutates_args=())


@_gather.register_fake
def _(x: Tensor, ids: Tensor, threads: int, check: bool = True) -> Tensor:
    return x.new_empty((ids.shape[0], *x.shape[1:]))


def _remember(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, Tensor, int, bool], output: Tensor) -> None:
    x, ids, _, _ = inputs
    ctx.save_for_backward(ids)
    ctx.rows = x.shape[0]  # type: ignore[attr-defined]


def _sum_by_id(ids: Tensor, grad: Tensor, rows: int) -> Tensor:
    """Rows of one id added up in order, so that the bits are always the same: adding them in place would not be."""
    entry = torch.arange(len(ids) + 1, device=ids.device)
    begins, sources, _ = _gpu.transposed(entry, ids, rows)
    flat = grad.reshape(len(ids), grad.shape[1:].numel())
    return _gpu.forward(Work(flat.contiguous(), begins, sources))[0].reshape(rows, *grad.shape[1:])


_gather_backward = torch.library.custom_op("headrace::gather_backward", _sum_by_id, mutates_args=())


@_gather_backward.register_fake
def _(ids: Tensor, grad: Tensor, rows: int) -> Tensor:
    return grad.new_empty((rows, *grad.shape[1:]))


def _gradient(sum_by_id: Callable[..., Any]) -> Callable[..., Any]:
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (ids,) = ctx.saved_tensors
        again = torch.is_grad_enabled() and grad.requires_grad  # our kernels have no gradient
        if grad.device.type == "cpu" or grad.is_complex() or again:
            into = grad.new_zeros((ctx.rows, *grad.shape[1:])).index_add(0, ids.to(grad.device), grad)
        else:
            into = sum_by_id(ids.to(grad.device), grad, ctx.rows)
        return into, None, None, None

    return backward


_gather.register_autograd(_gradient(_gather_backward), setup_context=_remember)
_call = direct(_gather, _made, _remember, _gradient(_sum_by_id), twice=True)
