"""`ColumnSlice`: some columns of every node's features, the share of a rank that holds features by column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from headrace._arrays import as_tensor
from headrace.store.array import ArrayStore
from headrace.store.raw_rows import pieces
from headrace.store.store import BaseStore, Store


def column_bounds(features: int, parts: int) -> list[tuple[int, int]]:
    """Begin and end of each part's columns: as even as can be, in order.

    >>> from headrace.store import column_bounds
    >>> column_bounds(10, parts=4)
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    if parts < 1:
        raise ValueError(f"parts must be at least 1, not {parts}")
    if parts > features:
        raise ValueError(f"{features} columns of features cannot be cut into {parts} parts: choose at most {features}")
    return [(part * features // parts, (part + 1) * features // parts) for part in range(parts)]


class ColumnSlice(BaseStore):
    """Columns `begin` to `end` of all features as a `Store`: P3's share of a rank (Gandhi and Iyer, OSDI'21), for any width.

    `x` is an array, or a tensor of a memory map: the columns are copied to memory of their own, in pieces. Rows that are a slice
    already, such as those of a part, are taken as they are by `ColumnSlice.of`. `columns` is (begin, end); `num_features` counts
    the columns of all slices together.

    >>> import torch
    >>> from headrace.store import ColumnSlice
    >>> store = ColumnSlice(torch.arange(8.0).view(2, 4), 1, 3)
    >>> store.gather(torch.tensor([1, 0])).tolist(), store.columns, store.num_features
    ([[5.0, 6.0], [1.0, 2.0]], (1, 3), 4)
    """

    def __init__(self, x: Tensor | NDArray[Any], begin: int, end: int, *, threads: int | None = None) -> None:
        source = x.detach() if isinstance(x, Tensor) else as_tensor(x, "x")
        if source.dim() != 2:
            raise ValueError(f"x must have rows and columns, not shape {tuple(source.shape)}")
        if not 0 <= begin <= end <= source.shape[1]:
            raise ValueError(f"columns {begin} to {end} are not within the {source.shape[1]} columns of x")
        rows = source.new_empty((len(source), end - begin))
        for first, last in pieces(len(source), source.shape[1] * source.element_size()):
            rows[first:last] = source[first:last, begin:end]
        self._hold(ArrayStore(rows, threads=threads), begin, source.shape[1])

    @classmethod
    def of(cls, rows: Tensor | NDArray[Any] | Store, begin: int, *, of: int, threads: int | None = None) -> ColumnSlice:
        """The slice whose rows are `rows`, from column `begin` on, `of` so many columns: an array, or a store (`FileRows`)."""
        held = rows if isinstance(rows, Store) else ArrayStore(rows, threads=threads)
        if len(held.shape) != 2:
            raise ValueError(f"rows must have columns: their shape is {tuple(held.shape)}")
        if not 0 <= begin <= begin + held.shape[1] <= of:
            raise ValueError(f"columns {begin} to {begin + held.shape[1]} are not within {of} columns")
        store = cls.__new__(cls)
        store._hold(held, begin, of)
        return store

    def _hold(self, rows: Store, begin: int, num_features: int) -> None:
        self._rows = rows
        self.shape, self.dtype, self.device = rows.shape, rows.dtype, rows.device
        self.columns, self.num_features = (begin, begin + rows.shape[1]), num_features

    @property
    def table(self) -> Tensor | None:
        """The slice as one tensor, if it is held so."""
        return self._rows.table

    def gather(self, ids: Tensor, *, out: Tensor | None = None, check: bool = True) -> Tensor:
        """The slice's columns of rows by id.  # [n] -> [n, end - begin]"""
        return self._rows.gather(ids, out=out, check=check)

    def scan(self, *, rows: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """All rows, front to back, in pieces of at most `rows`.  # int, [n, end - begin]"""
        return self._rows.scan(rows=rows)
