"""What goes with the nodes of a dataset when they are relabeled: rows, ids and the map of an import."""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PosixPath

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

Columns = Mapping[str, Sequence[int] | None]
_GROUP = 1 << 20  # rows that are written at a time


def columns_of(ids: Collection[str] | Columns) -> Columns:
    """Which columns of which arrays hold node ids: all of them where only names are given."""
    return ids if isinstance(ids, Mapping) else dict.fromkeys(ids)


def moved_extra(
    extra: Mapping[str, Tensor], order: Tensor, position: Tensor, *, ids: Columns, keep: Collection[str]
) -> dict[str, Tensor]:
    """The further arrays of a dataset for the new ids; raises where it cannot know what an array holds."""
    if unknown := [name for name in (*ids, *keep) if name not in extra]:
        raise ValueError(f"there is no extra array {unknown[0]!r}: there are {', '.join(extra) or 'none'}")
    nodes, moved = len(order), {}
    for name, array in extra.items():
        if name in ids:
            moved[name] = _renamed(name, array, position, ids[name])
        elif name in keep:
            moved[name] = array
        elif array.dim() and len(array) == nodes:
            moved[name] = array.index_select(0, order)
        elif array.dim() == 2 and array.shape[1] == nodes and array.dtype == torch.bool:  # several masks
            moved[name] = array.index_select(1, order)
        else:
            raise ValueError(
                f"extra array {name!r} of shape {list(array.shape)} has no row per node ({nodes}): say that it holds node ids "
                f"(ids=[{name!r}], or ids={{{name!r}: columns}}) or that it stays as it is (keep=[{name!r}])"
            )
    return moved


def _renamed(name: str, array: Tensor, position: Tensor, columns: Sequence[int] | None) -> Tensor:
    """The array with node ids replaced; negative ones, which name no node, stay."""
    if array.dtype.is_floating_point or array.dtype in (torch.bool, torch.uint8):
        raise ValueError(f"extra array {name!r} holds {array.dtype}: node ids are int32 or int64")
    renamed = array.clone()
    for part in [renamed] if columns is None else [renamed[..., column] for column in columns]:
        if part.numel() and int(part.max()) >= len(position):
            raise ValueError(
                f"extra array {name!r} holds {int(part.max())}, and there are {len(position)} nodes: are these node ids?"
            )
        if part.numel():
            part.copy_(torch.where(part < 0, part.long(), position[part.clamp_min(0).long()]))
    return renamed


class TemporaryPath(PosixPath):
    """A file that goes when nobody holds its path any more."""

    @classmethod
    def create(cls, *, prefix: str, suffix: str) -> TemporaryPath:
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=suffix)
        os.close(handle)
        path = cls(name)
        weakref.finalize(path, _remove, name)
        return path


def _remove(name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name)


def moved_id_map(path: Path, order: Tensor) -> Path:
    """The Parquet map from nodes to the ids of an import, for the new nodes, in a temporary file."""
    table = pq.read_table(path).sort_by("node")
    if table.num_rows != len(order):
        raise ValueError(f"the id map has {table.num_rows} rows for {len(order)} nodes")
    column = table.column("id")
    out = TemporaryPath.create(prefix="headrace-ids-", suffix=".parquet")
    schema = pa.schema([("node", pa.int64()), ("id", column.type)])
    with pq.ParquetWriter(out, schema) as writer:
        for first in range(0, len(order), _GROUP):
            part = order[first : first + _GROUP]
            columns = {
                "node": torch.arange(first, first + len(part)).numpy(),
                "id": column.take(pa.array(part.numpy())).combine_chunks(),
            }
            writer.write_table(pa.table(columns, schema=schema))
    return out
