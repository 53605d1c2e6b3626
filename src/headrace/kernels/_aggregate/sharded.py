"""Sum or mean of neighbors' rows that lie in several memories, read by global id where they are: no copy of the batch's rows.

A row is read once for every entry that names it, where a gather reads it once for the batch. That is no loss while rows lie in GPU
memory, but it is over a bus: for rows that mostly lie in host memory, gather them first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from headrace.kernels._aggregate.aggregate import aggregate_reference
from headrace.kernels._aggregate.launch import launch_for
from headrace.kernels._gather.sharded import ShardTable, gather_sharded_reference
from headrace.kernels._on_gpu import on_gpu


def aggregate_sharded(
    table: ShardTable,
    indptr: Tensor,
    indices: Tensor,
    ids: Tensor,
    *,
    width: int,
    dtype: torch.dtype,
    reduce: Literal["sum", "mean"] = "sum",
    scale: Tensor | None = None,
    row_scale: Tensor | None = None,
) -> Tensor:
    """row_scale[v] * the sum or mean over e in row v of scale[s] * row ids[s] of the table, s = indices[e].  # -> [rows, width]

    Rows are `width` elements of `dtype`. What lies in no shard counts as zeros, and so does an id out of range. Not
    differentiable: rows of a store are input.
    """
    if reduce not in ("sum", "mean"):
        raise ValueError(f"reduce must be 'sum' or 'mean', not {reduce!r}")
    if dtype not in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        raise ValueError(f"rows must be float16, bfloat16, float32 or float64, not {dtype}")
    if width < 1 or width * dtype.itemsize > table.stride:
        raise ValueError(f"rows of {width} x {dtype} do not fit the table, whose rows are {table.stride} bytes")
    if table.stride % dtype.itemsize or table.base_alignment % dtype.itemsize:
        raise ValueError(f"rows of {dtype} must begin at multiples of its size; the stride is {table.stride} bytes")
    for name, tensor in {"indptr": indptr, "indices": indices, "ids": ids, "scale": scale, "row_scale": row_scale}.items():
        if tensor is not None and tensor.device != table.bases.device:
            raise ValueError(f"{name} is on {tensor.device}, the table on {table.bases.device}: move them to one device")
    launch = launch_for(mean_degree=len(indices) / max(len(indptr) - 1, 1), width=width, dtype=dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    factors = [None if f is None else f.detach().to(wide).contiguous() for f in (scale, row_scale)]
    out: Tensor = on_gpu("_aggregate.triton_sharded_sum").sum_sharded_rows(
        table, indptr.contiguous(), indices.contiguous(), ids.contiguous(), *factors, width, dtype, reduce == "mean", launch
    )
    return out


def aggregate_sharded_reference(
    shards: Sequence[Tensor],
    shard: Tensor,
    row: Tensor,
    indptr: Tensor,
    indices: Tensor,
    ids: Tensor,
    *,
    reduce: Literal["sum", "mean"] = "sum",
    scale: Tensor | None = None,
    row_scale: Tensor | None = None,
) -> Tensor:
    """The same in plain torch, of shards given as tensors: a gather, then the sum."""
    rows = gather_sharded_reference(shards, shard, row, ids, out=shards[0].new_zeros(len(ids), *shards[0].shape[1:]))
    return aggregate_reference(rows, indptr, indices, reduce=reduce, scale=scale, row_scale=row_scale)
