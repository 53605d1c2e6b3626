"""The operators behind `aggregate`: the native kernels on the CPU, Triton's on a GPU, and their gradient over the transpose.

An operator takes tensors, lists of them and numbers. The first seven of them are those of a `Work`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import thread_count
from headrace.kernels._aggregate import gpu as _gpu
from headrace.kernels._aggregate.work import Work, row_share, sum_type
from headrace.kernels._direct import direct

_WORK, _TENSORS = 7, 10  # how many inputs are those of a `Work`, and how many come before the plans
_INPUTS = (
    "Tensor x, Tensor indptr, Tensor indices, Tensor? weight, Tensor? ids, Tensor? scale, Tensor? row_scale, "
    "Tensor? t_indptr, Tensor? t_indices, Tensor? t_permutation"
)
_FORWARD = f"({_INPUTS}, Tensor[] plan, Tensor[] t_plan, str launch, str t_launch, str reduce, int threads) -> (Tensor, Tensor)"
_BACKWARD = (
    f"(Tensor grad, {_INPUTS}, Tensor[] t_plan, str t_launch, Tensor where, str reduce, bool need_x, bool need_weight, "
    "int threads) -> (Tensor, Tensor)"
)


def _run(*inputs: Any) -> tuple[Tensor, Tensor]:
    plan, _, launch, _, reduce, threads = inputs[_TENSORS:]
    x, indptr, indices, weight, ids, scale, row_scale = inputs[:_WORK]
    x, weight = x.detach(), None if weight is None else weight.detach()
    if x.device.type != "cpu":
        work = Work(x, indptr, indices, weight, ids, scale, row_scale, reduce)
        for name, tensor in vars(work).items():
            if isinstance(tensor, Tensor) and tensor.device != x.device:
                raise ValueError(f"{name} is on {tensor.device}, x is on {x.device}: move them to one device")
        return _gpu.forward(work, launch, plan)
    rows, width = len(indptr) - 1, x.shape[1]
    if rows < 0:
        raise ValueError("indptr must hold at least one element")
    out = x.new_empty(rows, width)
    where = torch.empty(rows if reduce == "max" else 0, width, dtype=torch.int32)
    workers = thread_count(threads or None)
    try:
        _native.aggregate(
            x,
            indptr,
            indices,
            out,
            reduce,
            ids=ids,
            weight=weight,
            position=None,
            scale=scale,
            row_scale=row_scale,
            where=where if reduce == "max" else None,
            threads=workers,
        )
    except ValueError as error:
        message = str(error)
        if "out of range" in message:
            named = {"indices": (indices, len(x if ids is None else ids))}
            named |= {} if ids is None else {"ids": (ids, len(x))}
            message = what_is_wrong(named, workers) or message
        raise ValueError(message) from None
    return out, where


def what_is_wrong(indices: dict[str, tuple[Tensor, int]], threads: int) -> str | None:
    """Which of the indices, given with their bounds, is out of range. A kernel only says that one is: it checks while it reads."""
    for name, (values, bound) in indices.items():
        low, high = _native.id_range(values, threads)
        if len(values) and (low < 0 or high >= bound):
            return f"{name} holds values from {low} to {high}, but an index is out of range unless it is from 0 to {bound - 1}"
    return None


_aggregate = torch.library.custom_op("headrace::aggregate", _run, mutates_args=(), schema=_FORWARD)


@_aggregate.register_fake
def _(x, indptr, *inputs):  # type: ignore[no-untyped-def]
    rows, reduce = indptr.shape[0] - 1, inputs[-2]
    return x.new_empty(rows, x.shape[1]), x.new_empty(rows if reduce == "max" else 0, x.shape[1], dtype=torch.int32)


def _run_backward(grad: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
    t_plan, t_launch, where, reduce, need_x, need_weight, threads = inputs[_TENSORS:]
    t_indptr, t_indices, t_permutation = inputs[_WORK:_TENSORS]
    x, indptr, indices, weight, ids, scale, row_scale = inputs[:_WORK]
    columns = len(x if ids is None else ids)
    positions = weight is not None or reduce == "max"  # whether the transpose must know where its entries came from
    if t_indptr is None or t_indices is None or len(t_indptr) != columns + 1 or (positions and t_permutation is None):
        t_indptr = t_indices = t_permutation = None
    if x.device.type != "cpu":
        work = Work(x, indptr, indices, weight, ids, scale, row_scale, reduce)
        back = _gpu.Transpose(t_indptr, t_indices, t_permutation, t_launch, t_plan)
        return _gpu.backward(work, grad, where, back, need_x=need_x, need_weight=need_weight)
    entries, begin, end = len(indices), int(indptr[0]), int(indptr[-1])
    if end - begin < entries:  # a range of a graph's rows: its entries alone
        indptr, indices, weight = indptr - begin, indices[begin:end], None if weight is None else weight[begin:end]
        t_indptr = None
    threads = thread_count(threads or None)
    wide = sum_type(x.dtype)
    share = row_share(indptr, row_scale, reduce, wide)
    grad_x, grad_weight = x.new_empty(0), torch.empty(0, dtype=wide)
    if need_x:
        if t_indptr is None:
            transpose = _native.transpose_csr(indptr, indices, columns, positions=positions, threads=threads)
            t_indptr, t_indices, t_permutation = (None if a is None else torch.from_numpy(a) for a in transpose)
        grad_x = grad.new_empty(columns, grad.shape[1])
        if reduce == "max":
            _native.max_gradient(grad, t_indptr, t_indices, t_permutation, indptr, where, grad_x, weight=weight, threads=threads)
        else:
            _native.aggregate(
                grad,
                t_indptr,
                t_indices,
                grad_x,
                "sum",
                ids=None,
                weight=weight,
                position=None if weight is None else t_permutation,
                scale=share,
                row_scale=scale,
                where=None,
                threads=threads,
            )
        if ids is not None:  # ids may repeat: rows of one id add up
            grad_x = torch.zeros_like(x).index_add_(0, ids.long(), grad_x)
    if need_weight:
        grad_weight = torch.zeros(entries, dtype=wide) if end - begin < entries else torch.empty(entries, dtype=wide)
        _native.weight_gradient(
            x,
            indptr,
            indices,
            grad,
            grad_weight[begin:end],
            ids=ids,
            row_scale=share,
            where=where if reduce == "max" else None,
            threads=threads,
        )
        if scale is not None:
            grad_weight[begin:end] *= scale[indices.long()]
    return grad_x, grad_weight


_aggregate_backward = torch.library.custom_op("headrace::aggregate_backward", _run_backward, mutates_args=(), schema=_BACKWARD)


@_aggregate_backward.register_fake
def _(grad, x, indptr, indices, *inputs):  # type: ignore[no-untyped-def]
    need_x, need_weight = inputs[-3:-1]
    grad_x = torch.empty_like(x) if need_x else x.new_empty(0)
    return grad_x, x.new_empty(indices.shape[0] if need_weight else 0, dtype=sum_type(x.dtype))


def _remember(ctx, inputs, output):  # type: ignore[no-untyped-def]
    plan, t_plan, _, t_launch, reduce, threads = inputs[_TENSORS:]
    _, where = output
    ctx.mark_non_differentiable(where)
    ctx.save_for_backward(*inputs[:_TENSORS], where, *t_plan)
    ctx.t_launch, ctx.reduce, ctx.threads = t_launch, reduce, threads
    ctx.plans = len(plan), len(t_plan)


def _gradient(run: Callable[..., Any], *, lists: bool) -> Callable[..., Any]:
    """lists: whether a list of inputs takes a list of gradients, as an operator asks for and an `autograd.Function` refuses."""

    def backward(ctx, grad, _where):  # type: ignore[no-untyped-def]
        saved = [t if t is None else t.detach() for t in ctx.saved_tensors]
        where, t_plan = saved[_TENSORS], saved[_TENSORS + 1 :]
        need_x, need_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[3]
        how = t_plan, ctx.t_launch, where, ctx.reduce, need_x, need_weight, ctx.threads
        grad_x, grad_weight = run(grad.detach().contiguous(), *saved[:_TENSORS], *how)
        plans = ([None] * ctx.plans[0], [None] * ctx.plans[1]) if lists else (None, None)
        of_weight = grad_weight if need_weight else None
        return (grad_x if need_x else None, None, None, of_weight, *[None] * (_TENSORS - 4), *plans, *[None] * 4)

    return backward


_aggregate.register_autograd(_gradient(_aggregate_backward, lists=True), setup_context=_remember)
aggregate_rows = direct(_aggregate, _run, _remember, _gradient(_run_backward, lists=False))
