"""Attention over the events of a node, as temporal models have it, without a row per event.

    f_ij   = [x[j] || edge_x[edge of (i, j)] || cos(time_weight * dt_ij + time_bias)]
    out[i] = sum over the entries (i, j) of  alpha_ij * f_ij,    alpha_i = softmax over j of leaky_relu(<query[i], f_ij>)

Keys and values of temporal attention are linear maps of f. A map of keys moves to the query, <q, W f> = <W' q, f>, and a map of
values comes after the sum, sum alpha (W f) = W (sum alpha f). Both products then have a row per target in place of one per event,
and no tensor has a row of keys, values or cosines per event. Kept for the gradient are one score per event and head, and two
numbers per row and head. A pass over the rows gives the gradients of `query`, `time_weight` and `time_bias`, a pass over the
transpose that of `x`. Every row has one writer that takes its entries in order, so any number of threads gives the same bits.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace._arrays import thread_argument
from headrace.kernels._attend.attend import _factors
from headrace.kernels._attend_time import ops as _ops


def attend_time(
    query: Tensor,
    indptr: Tensor,
    indices: Tensor,
    dt: Tensor,
    *,
    x: Tensor,
    time_weight: Tensor,
    time_bias: Tensor,
    edge_x: Tensor | None = None,
    edge_id: Tensor | None = None,
    slope: float = 1.0,
    dropout: float = 0.0,
    seed: int | Tensor = 0,
    threads: int | None = None,
) -> Tensor:
    """Sums of [x || edge_x || cos(time_weight * dt + time_bias)] by attention.  # [rows, heads, f] -> [rows, heads, f]

    `x` is [n, d] and `indices` name its rows; `time_weight` and `time_bias` are [t]; f = d + edge features + t, in this order.
    `dt` has a time difference per entry, int64 or floating point: it is cast to the type of `x` here, after the subtraction
    that made it. `edge_x` has a row per entry or, with `edge_id`, is a table of which each entry reads the row of its id; it
    is data and has no gradient. The score of an entry is <query, f>, below 0 times `slope` (1: a plain product). An empty row gives
    0. `dropout` zeroes that share of the coefficients as `attend` does, by seed, position of the entry and head; on a GPU the seed
    may lie there. Entries past `indptr[-1]` belong to no row: they are room of a batch of fixed shape, and change nothing.

    >>> import torch
    >>> from headrace.kernels import attend_time
    >>> indptr, indices = torch.tensor([0, 2, 2]), torch.tensor([0, 2])
    >>> out = attend_time(torch.zeros(2, 1, 5), indptr, indices, torch.tensor([0, 0]), x=torch.eye(3),
    ...                   time_weight=torch.ones(2), time_bias=torch.zeros(2))
    >>> out[:, 0].tolist()
    [[0.5, 0.0, 0.5, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0]]
    """
    _check(query, indptr, indices, dt, x, time_weight, time_bias, edge_x, edge_id, slope, dropout, seed)
    dtype = x.dtype
    by_head = query.to(dtype).transpose(0, 1).contiguous()  # which for the result of a product per head copies nothing
    rows = x.contiguous(), time_weight.to(dtype).contiguous(), time_bias.to(dtype).contiguous()
    edges = None if edge_x is None else edge_x.detach().contiguous(), None if edge_id is None else edge_id.contiguous()
    entries = indptr.contiguous(), indices.contiguous(), dt.to(dtype).contiguous()
    out: Tensor = _ops.attend_time(by_head, *entries, *rows, *edges, slope, dropout, seed, thread_argument(threads))[0]
    return out.transpose(0, 1)


def attend_time_reference(
    query: Tensor,
    indptr: Tensor,
    indices: Tensor,
    dt: Tensor,
    *,
    x: Tensor,
    time_weight: Tensor,
    time_bias: Tensor,
    edge_x: Tensor | None = None,
    edge_id: Tensor | None = None,
    slope: float = 1.0,
    dropout: float = 0.0,
    seed: int = 0,
) -> Tensor:
    """The same in plain torch, with a row of features per entry."""
    count = int(indptr[-1])
    rows = torch.repeat_interleave(torch.arange(len(indptr) - 1, device=indptr.device), indptr.diff())
    angle = time_weight.to(x.dtype) * dt[:count, None].to(x.dtype) + time_bias.to(x.dtype)
    parts = [x[indices[:count].long()], angle.cos()]
    if edge_x is not None:
        parts.insert(1, edge_x[:count] if edge_id is None else edge_x[edge_id[:count].long()])
    features = torch.cat(parts, dim=1)
    scores = F.leaky_relu(torch.einsum("ehf,ef->eh", query.to(x.dtype)[rows], features), slope)
    index = rows[:, None].expand_as(scores)
    largest = scores.new_zeros(query.shape[:2]).scatter_reduce(0, index, scores.detach(), "amax", include_self=False)
    powers = (scores - largest[rows]).exp()
    totals = scores.new_zeros(largest.shape).index_add(0, rows, powers)
    factors = _factors(torch.arange(count, device=x.device), query.shape[1], dropout, seed) if dropout else powers.new_ones(())
    weights = powers / totals[rows] * factors.to(x.dtype)
    return x.new_zeros(query.shape).index_add(0, rows, weights[..., None] * features[:, None])


def _check(
    query: Tensor,
    indptr: Tensor,
    indices: Tensor,
    dt: Tensor,
    x: Tensor,
    time_weight: Tensor,
    time_bias: Tensor,
    edge_x: Tensor | None,
    edge_id: Tensor | None,
    slope: float,
    dropout: float,
    seed: int | Tensor,
) -> None:
    if x.dim() != 2 or x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"x must be float32 or float64 [n, d], not {x.dtype} of shape {tuple(x.shape)}")
    if indptr.dim() != 1 or indptr.shape[0] == 0 or indptr.dtype != torch.int64:
        raise ValueError(f"indptr must be int64 with one dimension and an element, not {indptr.dtype} of {tuple(indptr.shape)}")
    if indices.dim() != 1 or indices.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"indices must be int32 or int64 with one dimension, not {indices.dtype} of {tuple(indices.shape)}")
    if dt.shape != indices.shape or dt.dtype not in (torch.int64, torch.float32, torch.float64):
        raise ValueError(
            f"dt must be int64, float32 or float64, one per entry: {len(indices)}, not {dt.dtype} of shape {tuple(dt.shape)}"
        )
    if time_weight.dim() != 1 or time_bias.shape != time_weight.shape:
        raise ValueError(
            f"time_weight and time_bias must be [t], of one width, not {tuple(time_weight.shape)} and {tuple(time_bias.shape)}"
        )
    _check_edges(indices, x, edge_x, edge_id)
    width = x.shape[1] + (0 if edge_x is None else edge_x.shape[1]) + len(time_weight)
    if query.dim() != 3 or query.shape[0] != len(indptr) - 1 or query.shape[1] == 0 or query.shape[2] != width or not width:
        raise ValueError(
            f"query must be [rows of indptr, heads, columns of x, edge_x and time], here ({len(indptr) - 1}, heads, {width}), "
            f"not of shape {tuple(query.shape)}"
        )
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, not {dropout}")
    if isinstance(seed, Tensor):
        if not (x.is_cuda and seed.device == x.device and seed.dtype == torch.int64 and seed.numel() == 1):
            raise ValueError(f"a seed that is a tensor must be one int64 on the GPU of x, not {seed.dtype} on {seed.device}")
    elif not 0 <= seed < 2**63:
        raise ValueError(f"seed must be from 0 to 2**63 - 1, not {seed}")
    if not 0 < slope < math.inf:
        raise ValueError(f"slope must be above 0 and finite, not {slope}")


def _check_edges(indices: Tensor, x: Tensor, edge_x: Tensor | None, edge_id: Tensor | None) -> None:
    if edge_x is None:
        if edge_id is not None:
            raise ValueError("edge_id names rows of edge_x, which is missing: pass both or neither")
        return
    if edge_x.dim() != 2 or edge_x.dtype != x.dtype:
        raise ValueError(f"edge_x must be [edges, d] of {x.dtype}, as x is, not {edge_x.dtype} of shape {tuple(edge_x.shape)}")
    if edge_x.requires_grad and torch.is_grad_enabled():
        raise ValueError("edge_x is data and gets no gradient: pass edge_x.detach(), or put rows that are learnt into x")
    if edge_id is None:
        if len(edge_x) != len(indices):
            raise ValueError(f"edge_x has {len(edge_x)} rows for {len(indices)} entries: pass edge_id to name rows of a table")
    elif edge_id.shape != indices.shape or edge_id.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"edge_id must be int32 or int64, one per entry: {len(indices)}, not {edge_id.dtype} of shape {tuple(edge_id.shape)}"
        )
