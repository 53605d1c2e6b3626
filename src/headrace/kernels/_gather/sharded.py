"""Rows that lie in several memories, gathered by one kernel: GPU memory, pinned host memory, memory of other GPUs.

A GPU reads any address that is mapped for it, so where a row lies is only a number: a small table of base addresses and, per
node, which base and which row of it. Where nodes are numbered in the order of the shards no table per node is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd

import torch
from torch import Tensor

from headrace._arrays import check_apart, check_ids
from headrace.kernels._on_gpu import on_gpu


@dataclass(frozen=True, eq=False)
class ShardTable:
    """Where the rows of all nodes lie. Made by `by_location` or `in_order`; all tensors are on the device that gathers.

    The table holds addresses and keeps no memory alive: whoever made the shards does.
    """

    bases: Tensor  # int64, [shards]: addresses
    stride: int  # bytes from one row to the next, in every shard
    base_alignment: int  # of every address
    num_rows: int  # ids are below this
    location: Tensor | None = None  # int32 or int64, [num_rows]: shard << row_bits | row; below 0: in no shard
    row_bits: int = 0
    begins: Tensor | None = None  # int64, [shards + 1]: shard s holds nodes begins[s] to begins[s + 1]

    @classmethod
    def by_location(cls, bases: Sequence[int], shard: Tensor, row: Tensor, *, stride: int, device: torch.device) -> ShardTable:
        """Node v is row `row[v]` of shard `shard[v]`; a shard below 0 is none."""
        if not bases or len(shard) != len(row):
            raise ValueError(
                f"one shard at least and one row per node: got {len(bases)} bases, {len(shard)} shards, {len(row)} rows"
            )
        bits = (len(bases) - 1).bit_length()
        most = int(row.max()) if len(row) else 0
        kind, row_bits = (torch.int32, 31 - bits) if most < 1 << (31 - bits) else (torch.int64, 63 - bits)
        location = torch.where(shard < 0, -1, shard.long() << row_bits | row.long()).to(kind)
        return cls(*_addresses(bases, stride, device), num_rows=len(row), location=location.to(device), row_bits=row_bits)

    @classmethod
    def in_order(
        cls, bases: Sequence[int], lengths: Sequence[int], *, stride: int, num_rows: int, device: torch.device
    ) -> ShardTable:
        """The first `lengths[0]` nodes are shard 0, the next `lengths[1]` shard 1, and so on; the rest of `num_rows` in none."""
        if not bases or len(bases) != len(lengths) or sum(lengths) > num_rows:
            raise ValueError(
                f"one length per shard, {num_rows} rows in all at most: got {len(bases)} bases, lengths {list(lengths)}"
            )
        begins = torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)
        return cls(*_addresses(bases, stride, device), num_rows=num_rows, begins=begins.to(device))


def gather_sharded(
    table: ShardTable,
    ids: Tensor,
    *,
    out: Tensor,
    hits: Tensor | None = None,
    check: bool = True,
    sort: bool = False,
    programs: int | None = None,
) -> Tensor:
    """Row ids[i] of the table into out[i]; what lies in no shard leaves its row as it was.  # [k] -> [k, ...]

    `out` must share no memory with `ids`, and none with the shards, whose lengths the table does not know.
    `hits` (int64, one element per shard) is added the number of rows each shard gave, on the device. `check` reads the ids first,
    for which the host waits; without it an id out of range leaves its row as it was. `sort` reads rows in the order in which they
    lie: a GPU finds the pages of a gibibyte or two of host memory at once, and in larger tables most random reads wait for an
    address. `programs` bounds how many work at a time, which leaves room for other kernels.
    """
    row_bytes = _ready(table, ids, out, "out")
    check_apart(out, ids=ids, hits=hits)
    if check:
        check_ids(ids, table.num_rows)
    order = None
    if sort:  # by where rows are; ids that are out of range anywhere
        places = ids if table.location is None else table.location[ids.clamp(0, table.num_rows - 1)]
        order = places.sort().indices
    on_gpu("_gather.triton_gather").gather_sharded_rows(table, ids, out, row_bytes, hits=hits, order=order, programs=programs)
    return out


def add_sharded(table: ShardTable, ids: Tensor, delta: Tensor) -> None:
    """Add delta[i] to row ids[i] where it lies; no id may come twice, and what lies in no shard is passed over."""
    if delta.is_complex():
        delta = torch.view_as_real(delta)
    _ready(table, ids, delta, "delta")
    if table.stride % delta.element_size() or table.base_alignment % delta.element_size():
        raise ValueError(f"rows of {delta.dtype} must begin at multiples of its size; the stride is {table.stride} bytes")
    on_gpu("_gather.triton_gather").add_sharded_rows(table, ids, delta.reshape(len(delta), delta.shape[1:].numel()))


def gather_sharded_reference(shards: Sequence[Tensor], shard: Tensor, row: Tensor, ids: Tensor, *, out: Tensor) -> Tensor:
    """The same in plain torch, of shards given as tensors."""
    for at, node in enumerate(ids.tolist()):
        if shard[node] >= 0:
            out[at] = shards[int(shard[node])][int(row[node])]
    return out


def _addresses(bases: Sequence[int], stride: int, device: torch.device) -> tuple[Tensor, int, int]:
    if stride < 1:
        raise ValueError(f"stride must be at least one byte, not {stride}")
    return torch.tensor(list(bases), dtype=torch.int64).to(device), stride, reduce(gcd, bases, 256)


def _ready(table: ShardTable, ids: Tensor, rows: Tensor, name: str) -> int:
    """Bytes of a row, after a look at what the kernel relies on."""
    row_bytes: int = rows.shape[1:].numel() * rows.element_size()
    if ids.dim() != 1 or ids.dtype not in (torch.int32, torch.int64) or not ids.is_contiguous():
        raise ValueError(f"ids must be int32 or int64, contiguous, of one dimension; they are {ids.dtype}, {tuple(ids.shape)}")
    if len(rows) != len(ids) or not rows.is_contiguous() or row_bytes > table.stride:
        raise ValueError(
            f"{name} must be contiguous, one row per id ({len(ids)}), of {table.stride} bytes a row at most; "
            f"it is {rows.dtype}, {tuple(rows.shape)}"
        )
    for what, tensor in (("ids", ids), (name, rows)):
        if tensor.device != table.bases.device:
            raise ValueError(f"{what} is on {tensor.device}, the table on {table.bases.device}: move them to one device")
    return row_bytes
