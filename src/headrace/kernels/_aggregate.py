"""Sum, mean or max of neighbours' rows over a CSR, without ever building the messages.

    out[v] = reduce over e in indptr[v] .. indptr[v + 1] of  weight[e] * x[ids[indices[e]]]

Traffic is `4 E + 8 N + N d s + (E / rho) d s` bytes for E entries, N rows of d elements of s bytes, and a reuse rho between 1
and E / N: the kernel reads each neighbour's row once, where it lies, several rows ahead. Sums are kept in fp32 for bf16 and
fp16 rows. Neighbours are added in order and every row has one writer, in the gradient too (it runs over the transpose), so the
result has the same bits for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import thread_argument, thread_count
from headrace.kernels import _gpu
from headrace.kernels._direct import direct

Reduce = Literal["sum", "mean", "max"]


class Rows(Protocol):
    """Anything in compressed rows: a `Graph`, a `Block`. `permutation` is needed only of a reverse."""

    indptr: Tensor
    indices: Tensor
    permutation: Tensor | None


def aggregate(
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    *,
    reduce: Reduce = "sum",
    weight: Tensor | None = None,
    ids: Tensor | None = None,
    reverse: Rows | None = None,
    threads: int | None = None,
) -> Tensor:
    """Reduce the rows of `x` over the entries of each CSR row.  # [n, ...] -> [rows, ...]

    `ids` reads rows by global id straight from a feature array (`x[ids[indices[e]]]`): gather and aggregate in one, with no
    copy of the rows. An empty row gives 0. `mean` divides by the number of entries, weighted or not. The gradient of `max`
    goes to the first entry that reaches it. Differentiable in `x` and `weight`; `reverse` (a graph's cached
    `graph.reverse()`) saves the gradient making its own transpose.
    """
    if reduce not in ("sum", "mean", "max"):
        raise ValueError(f"reduce must be 'sum', 'mean' or 'max', not {reduce!r}")
    if x.dim() == 0:
        raise ValueError("x must have rows: it is a single number")
    if indptr.dtype != torch.int64:
        raise ValueError(f"indptr must be int64, not {indptr.dtype}")
    if weight is not None:
        weight = weight.to(_sum_type(x.dtype)).contiguous()
    if reverse is not None and len(reverse.indices) != len(indices):
        raise ValueError(f"reverse has {len(reverse.indices)} entries, the rows have {len(indices)}: it is of another graph")
    transposed = (None, None, None) if reverse is None else (reverse.indptr, reverse.indices, reverse.permutation)
    out: Tensor
    out, _ = _call(
        x.reshape(x.shape[0], prod(x.shape[1:])).contiguous(),
        indptr.contiguous(),
        indices.contiguous(),
        weight,
        ids if ids is None else ids.contiguous(),
        *transposed,
        reduce,
        thread_argument(threads),
    )
    return out.reshape(out.shape[0], *x.shape[1:])


def aggregate_reference(
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    *,
    reduce: Reduce = "sum",
    weight: Tensor | None = None,
    ids: Tensor | None = None,
) -> Tensor:
    """The same in plain torch, messages and all: what the kernels are tested against."""
    rows = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())
    sources = indices.long() if ids is None else ids.long()[indices.long()]
    wide = _sum_type(x.dtype)
    messages = x.to(wide)[sources]
    if weight is not None:
        messages = messages * weight.to(wide).view(-1, *[1] * (x.dim() - 1))
    shape = (len(indptr) - 1, *x.shape[1:])
    if reduce == "max":
        index = rows.view(-1, *[1] * (x.dim() - 1)).expand_as(messages)
        best = torch.zeros(shape, dtype=wide).scatter_reduce(0, index, messages.detach(), "amax", include_self=False)
        entry = torch.arange(len(sources)).view_as(rows.view(-1, *[1] * (x.dim() - 1))).expand_as(messages)
        found, most = messages.detach(), best[rows]
        reached = torch.where((found == most) | (found.isnan() & most.isnan()), entry, len(sources))
        first = torch.full(shape, len(sources)).scatter_reduce(0, index, reached, "amin", include_self=True)
        padded = torch.cat([messages, messages.new_zeros(1, *x.shape[1:])])
        return padded.gather(0, first).to(x.dtype)
    out = torch.zeros(shape, dtype=wide).index_add(0, rows, messages)
    if reduce == "mean":
        out = out / indptr.diff().clamp_min(1).view(-1, *[1] * (x.dim() - 1))
    return out.to(x.dtype)


def _sum_type(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _run(
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    weight: Tensor | None,
    ids: Tensor | None,
    t_indptr: Tensor | None,
    t_indices: Tensor | None,
    t_permutation: Tensor | None,
    reduce: str,
    threads: int,
) -> tuple[Tensor, Tensor]:
    if x.device.type != "cpu":
        return _elsewhere(x, indptr, indices, weight, ids, reduce)
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
            scale=None,
            where=where if reduce == "max" else None,
            threads=workers,
        )
    except ValueError as error:
        message = str(error)
        if "out of range" in message:
            message = _what_is_wrong(x, indices, ids, workers) or message
        raise ValueError(message) from None
    return out, where


def _elsewhere(
    x: Tensor, indptr: Tensor, indices: Tensor, weight: Tensor | None, ids: Tensor | None, reduce: str
) -> tuple[Tensor, Tensor]:
    """On another device than the CPU."""
    given = {"indptr": indptr, "indices": indices, "weight": weight, "ids": ids}
    for name, tensor in given.items():
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{name} is on {tensor.device}, x is on {x.device}: move them to one device")
    if reduce == "max":
        return _gpu.max_rows(x.detach() if ids is None else x.detach()[ids.long()], indptr, indices, weight)
    out = _gpu.sum_rows(x.detach(), indptr, indices, weight, ids=ids, mean=reduce == "mean")
    return out, x.new_empty((0, x.shape[1]), dtype=torch.int32)


def _backward_elsewhere(
    grad: Tensor,
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    weight: Tensor | None,
    ids: Tensor | None,
    where: Tensor,
    reduce: str,
    need_x: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor]:
    wide = _sum_type(x.dtype)
    columns = x.shape[0] if ids is None else ids.shape[0]
    grad_x, grad_weight = x.new_empty(0), x.new_empty(0, dtype=wide)
    if need_x:
        if reduce == "max":
            grad_x = _gpu.max_gradient(grad, indptr, indices, where, weight, columns)
        else:
            begins, targets, order = _gpu.transposed(indptr, indices, columns)
            scale = indptr.diff().clamp_min(1).to(wide).reciprocal() if reduce == "mean" else None
            grad_x = _gpu.sum_rows(grad, begins, targets, None if weight is None else weight[order], scale=scale)
        if ids is not None:
            grad_x = torch.zeros_like(x).index_add_(0, ids.long(), grad_x)
    if need_weight:
        rows = x if ids is None else x[ids.long()]
        share = grad / indptr.diff().clamp_min(1).unsqueeze(1).to(grad.dtype) if reduce == "mean" else grad
        grad_weight = _gpu.weight_gradient(rows, indptr, indices, share, where if reduce == "max" else None)
    return grad_x, grad_weight


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
def _(x, indptr, indices, weight, ids, t_indptr, t_indices, t_permutation, reduce, threads):  # type: ignore[no-untyped-def]
    rows = indptr.shape[0] - 1
    return x.new_empty(rows, x.shape[1]), x.new_empty(rows if reduce == "max" else 0, x.shape[1], dtype=torch.int32)


def _run_backward(
    grad: Tensor,
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    weight: Tensor | None,
    ids: Tensor | None,
    t_indptr: Tensor | None,
    t_indices: Tensor | None,
    t_permutation: Tensor | None,
    where: Tensor,
    reduce: str,
    need_x: bool,
    need_weight: bool,
    threads: int,
) -> tuple[Tensor, Tensor]:
    if x.device.type != "cpu":
        return _backward_elsewhere(grad, x, indptr, indices, weight, ids, where, reduce, need_x, need_weight)
    entries, begin, end = len(indices), int(indptr[0]), int(indptr[-1])
    if end - begin < entries:  # a range of a graph's rows: its entries alone
        indptr, indices, weight = indptr - begin, indices[begin:end], None if weight is None else weight[begin:end]
        t_indptr = None
    threads = thread_count(threads or None)
    wide = _sum_type(x.dtype)
    share = indptr.diff().clamp_min(1).to(wide).reciprocal() if reduce == "mean" else None
    grad_x, grad_weight = x.new_empty(0), torch.empty(0, dtype=wide)
    if need_x:
        columns = x.shape[0] if ids is None else ids.shape[0]
        if t_indptr is None or t_indices is None or t_permutation is None or len(t_indptr) != columns + 1:
            made = _native.transpose_csr(indptr, indices, columns, positions=True, threads=threads)
            t_indptr, t_indices, t_permutation = (torch.from_numpy(a) for a in made)
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
                position=t_permutation,
                scale=share,
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
    return grad_x, grad_weight


_aggregate_backward = torch.library.custom_op("headrace::aggregate_backward", _run_backward, mutates_args=())


@_aggregate_backward.register_fake
def _(grad, x, indptr, indices, weight, ids, t_indptr, t_indices, t_permutation, where, reduce, need_x, need_weight, threads):  # type: ignore[no-untyped-def]
    grad_x = torch.empty_like(x) if need_x else x.new_empty(0)
    return grad_x, x.new_empty(indices.shape[0] if need_weight else 0, dtype=_sum_type(x.dtype))


def _remember(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, indptr, indices, weight, ids, t_indptr, t_indices, t_permutation, reduce, threads = inputs
    _, where = output
    ctx.mark_non_differentiable(where)
    ctx.save_for_backward(x, indptr, indices, weight, ids, t_indptr, t_indices, t_permutation, where)
    ctx.reduce, ctx.threads = reduce, threads


def _gradient(run: Callable[..., Any]) -> Callable[..., Any]:
    def backward(ctx, grad, _where):  # type: ignore[no-untyped-def]
        *saved, where = ctx.saved_tensors
        need_x, need_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[3]
        saved = [t if t is None else t.detach() for t in saved]
        grad_x, grad_weight = run(grad.detach().contiguous(), *saved, where, ctx.reduce, need_x, need_weight, ctx.threads)
        return (grad_x if need_x else None, None, None, grad_weight if need_weight else None, *[None] * 6)

    return backward


_aggregate.register_autograd(_gradient(_aggregate_backward), setup_context=_remember)
_call = direct(_aggregate, _run, _remember, _gradient(_run_backward))
