"""Rows in one tensor on any device: what `ArrayStore` is on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.kernels import gather
from headrace.store.array import ArrayStore
from headrace.store.store import Store


class DeviceArray:
    """Rows of a tensor, gathered by its device; ids come from anywhere and rows stay there.

    >>> import torch
    >>> DeviceArray(torch.arange(3.).view(3, 1)).gather(torch.tensor([2, 2])).tolist()
    [[2.0], [2.0]]
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows.detach()

    @property
    def shape(self) -> torch.Size:
        return self.rows.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    def gather(self, ids: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Rows by id.  # [n] -> [n, d]"""
        return torch.index_select(self.rows, 0, ids.to(self.rows.device), **({} if out is None else {"out": out}))

    def add_(self, ids: Tensor, delta: Tensor) -> None:
        """Add in the order of `ids`: on a GPU this sorts, where `index_add_` would let atomics decide.  # [n], [n, d]"""
        ids, delta = ids.long().to(self.rows.device), delta.to(self.rows.device)
        if self.rows.device.type == "cpu":
            self.rows.index_add_(0, ids, delta)
        else:
            self.rows.index_put_((ids,), delta, accumulate=True)


def rows_as_store(rows: Tensor | NDArray[Any] | Store, *, threads: int | None = None) -> Store:
    """A store over `rows`: what is one already, or an array where it lies."""
    if isinstance(rows, Tensor):  # before asking for a Store: a tensor has all the names of one
        return ArrayStore(rows, threads=threads) if rows.device.type == "cpu" else DeviceArray(rows)
    return rows if isinstance(rows, Store) else ArrayStore(rows, threads=threads)


def take_rows(rows: Tensor, ids: Tensor) -> Tensor:
    """A copy of some rows, where they lie.  # [n, d], [k] -> [k, d]"""
    return gather(rows, ids) if rows.device.type == "cpu" else rows[ids.to(rows.device)]
