"""Sum, mean or max of neighbors' rows over a CSR, without ever building the messages.

    out[v] = row_scale[v] * reduce over e in indptr[v] .. indptr[v + 1] of  weight[e] * scale[s] * x[ids[s]],  s = indices[e]

Traffic is `4 E + 8 N + N d s + (E / rho) d s` bytes for E entries, N rows of d elements of s bytes, and a reuse rho between 1
and E / N: the kernel reads each neighbor's row once, where it lies, several rows ahead. Sums are kept in fp32 for bf16 and
fp16 rows. Neighbors are added in order and every row has one writer, in the gradient too (it runs over the transpose), so the
result has the same bits for any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor

from headrace._arrays import thread_argument
from headrace.kernels._aggregate.launch import Launch
from headrace.kernels._aggregate.ops import aggregate_rows
from headrace.kernels._aggregate.prepared import Prepared, prepare
from headrace.kernels._aggregate.prepared import Rows as Rows
from headrace.kernels._aggregate.work import sum_type

Reduce = Literal["sum", "mean", "max"]


def aggregate(
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    *,
    reduce: Reduce = "sum",
    weight: Tensor | None = None,
    ids: Tensor | None = None,
    scale: Tensor | None = None,
    row_scale: Tensor | None = None,
    reverse: Rows | None = None,
    prepared: Prepared | None = None,
    launch: Launch | None = None,
    threads: int | None = None,
) -> Tensor:
    """Reduce the rows of `x` over the entries of each CSR row.  # [n, ...] -> [rows, ...]

    `ids` reads rows by global id straight from a feature array (`x[ids[indices[e]]]`): gather and aggregate in one, with no
    copy of the rows. An empty row gives 0. `mean` divides by the number of entries, weighted or not. The gradient of `max`
    goes to the first entry that reaches it. `scale` [sources] multiplies the rows that are read and `row_scale` [rows] the result,
    which is GCN's norm without an array of weights; they go with sum and mean.

    Differentiable in `x` and `weight`; `reverse` (a graph's cached `graph.reverse()`, or a symmetric graph itself) saves the
    gradient making its own transpose. On a GPU `prepared` holds how the rows are launched and what that needs (`prepare`);
    `launch` names it for one call, and without either it follows from the mean degree. Both change nothing on the CPU.
    """
    _check(x, indptr, indices, reduce, reverse)
    wide = sum_type(x.dtype)
    if weight is not None:
        weight = weight.to(wide).contiguous()
    sources = x.shape[0] if ids is None else ids.shape[0]
    scale = _factors("scale", scale, sources, "sources", reduce, wide)
    row_scale = _factors("row_scale", row_scale, indptr.shape[0] - 1, "rows", reduce, wide)
    if x.device.type == "cpu":
        prepared = launch = None
    elif launch is not None:
        if prepared is not None and prepared.launch != launch:
            raise ValueError(f"prepared is for {prepared.launch}, but launch is {launch}: pass one of them")
        prepared = prepared or prepare(_BareRows(indptr, indices), launch)
    if prepared is not None and (prepared.rows, prepared.entries) != (indptr.shape[0] - 1, indices.shape[0]):
        raise ValueError(
            f"prepared is of {prepared.rows} rows with {prepared.entries} entries, but these are {indptr.shape[0] - 1} rows with "
            f"{indices.shape[0]} entries: prepare them"
        )
    back = None if prepared is None else prepared.reverse
    out: Tensor
    out, _ = aggregate_rows(
        x.reshape(x.shape[0], prod(x.shape[1:])).contiguous(),
        indptr.contiguous(),
        indices.contiguous(),
        weight,
        ids if ids is None else ids.contiguous(),
        scale,
        row_scale,
        *_transpose_of(indptr, indices, reverse),
        [] if prepared is None else list(prepared.tensors),
        [] if back is None else list(back.tensors),
        "" if prepared is None else prepared.launch.packed(),
        "" if back is None else back.launch.packed(),
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
    scale: Tensor | None = None,
    row_scale: Tensor | None = None,
) -> Tensor:
    """The same in plain torch, messages and all: what the kernels are tested against."""
    rows = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())
    sources = indices.long() if ids is None else ids.long()[indices.long()]
    wide = sum_type(x.dtype)
    messages = x.to(wide)[sources]
    if weight is not None:
        messages = messages * weight.to(wide).view(-1, *[1] * (x.dim() - 1))
    if scale is not None:
        messages = messages * scale.to(wide)[indices.long()].view(-1, *[1] * (x.dim() - 1))
    shape = (len(indptr) - 1, *x.shape[1:])
    if reduce == "max":
        index = rows.view(-1, *[1] * (x.dim() - 1)).expand_as(messages)
        best = torch.zeros(shape, dtype=wide).scatter_reduce(0, index, messages.detach(), "amax", include_self=False)
        entry = torch.arange(len(sources)).view_as(rows.view(-1, *[1] * (x.dim() - 1))).expand_as(messages)
        values, most = messages.detach(), best[rows]
        reached = torch.where((values == most) | (values.isnan() & most.isnan()), entry, len(sources))
        first = torch.full(shape, len(sources)).scatter_reduce(0, index, reached, "amin", include_self=True)
        padded = torch.cat([messages, messages.new_zeros(1, *x.shape[1:])])
        return padded.gather(0, first).to(x.dtype)
    out = torch.zeros(shape, dtype=wide).index_add(0, rows, messages)
    if reduce == "mean":
        out = out / indptr.diff().clamp_min(1).view(-1, *[1] * (x.dim() - 1))
    if row_scale is not None:
        out = out * row_scale.to(wide).view(-1, *[1] * (x.dim() - 1))
    return out.to(x.dtype)


@dataclass(eq=False)
class _BareRows:
    indptr: Tensor
    indices: Tensor
    permutation: Tensor | None = None


def _check(x: Tensor, indptr: Tensor, indices: Tensor, reduce: str, reverse: Rows | None) -> None:
    if reduce not in ("sum", "mean", "max"):
        raise ValueError(f"reduce must be 'sum', 'mean' or 'max', not {reduce!r}")
    if x.dim() == 0:
        raise ValueError("x must have rows: it is a single number")
    if indptr.dtype != torch.int64:
        raise ValueError(f"indptr must be int64, not {indptr.dtype}")
    if reverse is not None and len(reverse.indices) != len(indices):
        raise ValueError(f"reverse has {len(reverse.indices)} entries, the rows have {len(indices)}: it is of another graph")


def _factors(name: str, factors: Tensor | None, count: int, of: str, reduce: str, wide: torch.dtype) -> Tensor | None:
    if factors is None:
        return None
    if reduce == "max":
        raise ValueError(f"{name} goes with reduce='sum' or 'mean': multiply the rows themselves before a max")
    if factors.shape != (count,):
        raise ValueError(f"{name} must have one number per row, [{count}] for {count} {of}, not {list(factors.shape)}")
    return factors.detach().to(wide).contiguous()


def _transpose_of(indptr: Tensor, indices: Tensor, reverse: Rows | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    # On a GPU a range of a graph's rows is only known by its size: the whole graph's reverse is none of it.
    if reverse is None or (len(reverse.indptr) != len(indptr) and indptr.device.type != "cpu"):
        return None, None, None
    if reverse.indices is indices:  # a symmetric graph is its own; if it knows where its entries came from, then out of another
        return indptr, indices, None
    return reverse.indptr, reverse.indices, reverse.permutation
