"""The operators behind `aggregate`: the native kernels on the CPU, Triton's on a GPU, and their gradient over the transpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import thread_count
from headrace.kernels._aggregate import gpu as _gpu
from headrace.kernels._aggregate.work import Work
from headrace.kernels._direct import direct


def sum_type(dtype: torch.dtype) -> torch.dtype:
    """What sums of rows of a type are kept in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _run(
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    weight: Tensor | None,
    ids: Tensor | None,
    scale: Tensor | None,
    row_scale: Tensor | None,
    t_indptr: Tensor | None,
    t_indices: Tensor | None,
    t_permutation: Tensor | None,
    plan: Sequence[Tensor],
    t_plan: Sequence[Tensor],
    launch: str,
    t_launch: str,
    reduce: str,
    threads: int,
) -> tuple[Tensor, Tensor]:
    if x.device.type != "cpu":
        tensors = {"indptr": indptr, "indices": indices, "weight": weight, "ids": ids, "scale": scale, "row_scale": row_scale}
        for name, tensor in tensors.items():
            if tensor is not None and tensor.device != x.device:
                raise ValueError(f"{name} is on {tensor.device}, x is on {x.device}: move them to one device")
        work = Work(x.detach(), indptr, indices, None if weight is None else weight.detach(), ids, scale, row_scale, reduce)
        return _gpu.forward(work, launch, plan)
    rows = len(indptr) - 1
    if rows < 0:
        raise ValueError("indptr must hold at least one element")
    out = x.new_empty(rows, x.shape[1])
    where = torch.empty(rows if reduce == "max" else 0, x.shape[1], dtype=torch.int32)
    workers = thread_count(threads or None)
    try:
        _native.aggregate(
            x.detach(),
            indptr,
            indices,
            out,
            reduce,
            ids=ids,
            weight=None if weight is None else weight.detach(),
            position=None,
            scale=scale,
            row_scale=row_scale,
            where=where if reduce == "max" else None,
            threads=workers,
        )
    except ValueError as error:
        message = str(error)
        if "out of range" in message:
            message = _what_is_wrong(x, indices, ids, workers) or message
        raise ValueError(message) from None
    return out, where


def _what_is_wrong(x: Tensor, indices: Tensor, ids: Tensor | None, threads: int) -> str | None:
    """Which index is out of range. The kernel only says that one is: it checks while it reads."""
    named = [("indices", indices, len(x))] if ids is None else [("indices", indices, len(ids)), ("ids", ids, len(x))]
    for name, values, bound in named:
        low, high = _native.id_range(values, threads)
        if len(values) and (low < 0 or high >= bound):
            return f"{name} holds values from {low} to {high}, but an index is out of range unless it is from 0 to {bound - 1}"
    return None


_aggregate = torch.library.custom_op("headrace::aggregate", _run, mutates_args=())


@_aggregate.register_fake
def _(x, indptr, indices, weight, ids, scale, row_scale, t_indptr, t_indices, t_permutation, plan, t_plan, launch, t_launch, reduce, threads):  # type: ignore[no-untyped-def]  # fmt: skip  # noqa: E501
    rows = indptr.shape[0] - 1
    return x.new_empty(rows, x.shape[1]), x.new_empty(rows if reduce == "max" else 0, x.shape[1], dtype=torch.int32)


def _run_backward(
    grad: Tensor,
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    weight: Tensor | None,
    ids: Tensor | None,
    scale: Tensor | None,
    row_scale: Tensor | None,
    t_indptr: Tensor | None,
    t_indices: Tensor | None,
    t_permutation: Tensor | None,
    t_plan: Sequence[Tensor],
    t_launch: str,
    where: Tensor,
    reduce: str,
    need_x: bool,
    need_weight: bool,
    threads: int,
) -> tuple[Tensor, Tensor]:
    columns = x.shape[0] if ids is None else ids.shape[0]
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


def row_share(indptr: Tensor, row_scale: Tensor | None, reduce: str, wide: torch.dtype) -> Tensor | None:
    """What the gradient of each row is multiplied by before anything else: row_scale, over the entries for a mean.  # -> [rows]"""
    if reduce != "mean":
        return row_scale
    share = indptr.diff().clamp_min(1).to(wide).reciprocal()
    return share if row_scale is None else share * row_scale


_aggregate_backward = torch.library.custom_op("headrace::aggregate_backward", _run_backward, mutates_args=())


@_aggregate_backward.register_fake
def _(grad, x, indptr, indices, weight, ids, scale, row_scale, t_indptr, t_indices, t_permutation, t_plan, t_launch, where, reduce, need_x, need_weight, threads):  # type: ignore[no-untyped-def]  # fmt: skip  # noqa: E501
    grad_x = torch.empty_like(x) if need_x else x.new_empty(0)
    return grad_x, x.new_empty(indices.shape[0] if need_weight else 0, dtype=sum_type(x.dtype))


_TENSORS = 10  # how many inputs come before the plans


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
        grad_x, grad_weight = run(
            grad.detach().contiguous(),
            *saved[:_TENSORS],
            t_plan,
            ctx.t_launch,
            where,
            ctx.reduce,
            need_x,
            need_weight,
            ctx.threads,
        )
        plans = ([None] * ctx.plans[0], [None] * ctx.plans[1]) if lists else (None, None)
        factors_and_transpose = [None] * (_TENSORS - 4)
        return (
            grad_x if need_x else None,
            None,
            None,
            grad_weight if need_weight else None,
            *factors_and_transpose,
            *plans,
            *[None] * 4,
        )

    return backward


_aggregate.register_autograd(_gradient(_aggregate_backward, lists=True), setup_context=_remember)
aggregate_rows = direct(_aggregate, _run, _remember, _gradient(_run_backward, lists=False))
