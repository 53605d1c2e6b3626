"""`Store`: rows addressed by node id, wherever they live."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from headrace._arrays import check_apart
from headrace.store.raw_rows import pieces


@runtime_checkable
class Store(Protocol):
    """What every store offers, and what loaders and stores that wrap another one ask of it.

    Subclass `BaseStore` to write one: it needs `shape`, `dtype` and `gather`.
    """

    @property
    def shape(self) -> torch.Size:
        """Of all rows: the number of nodes, then the shape of a row."""
        ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device:
        """Where gathered rows are. Ids may be on this device or on the CPU."""
        ...

    @property
    def table(self) -> Tensor | None:
        """All rows as one tensor, if that is how they are held: kernels then read rows in place."""
        ...

    def gather(self, ids: Tensor, *, out: Tensor | None = None, check: bool = True) -> Tensor:
        """Rows by id.  # [n] -> [n, d]

        `check=False` is for ids that are known to be good, such as a sampler's: to look at ids on a GPU, the host waits for them.
        """
        ...

    def scan(self, *, rows: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """All rows, front to back: the id of the first row of a piece, and the piece.  # int, [n, d]

        A piece has at most `rows` rows (default: 64 MiB of them). It may be a view: do not write to it.
        """
        ...


@runtime_checkable
class WritableStore(Store, Protocol):
    """A store whose rows can be changed. A gather that begins after a write sees it."""

    def add_(self, ids: Tensor, delta: Tensor) -> None:
        """Add `delta[i]` to row `ids[i]`, repeated ids included.  # [n], [n, d]"""
        ...

    def put_(self, ids: Tensor, rows: Tensor) -> None:
        """Put `rows[i]` in place of row `ids[i]`, no id twice in a call.  # [n], [n, d]"""
        ...


class BaseStore(ABC):
    """A `Store` with defaults: rows on the CPU, scanned by gathers. A subclass sets `shape` and `dtype` and defines `gather`.

    >>> import torch
    >>> from headrace.store import BaseStore
    >>> class Squares(BaseStore):
    ...     shape, dtype = torch.Size((100, 1)), torch.int64
    ...     def gather(self, ids, *, out=None, check=True):
    ...         return torch.mul(ids[:, None], ids[:, None], out=out)
    >>> [(begin, len(piece)) for begin, piece in Squares().scan(rows=60)]
    [(0, 60), (60, 40)]
    """

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device = torch.device("cpu")

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def table(self) -> Tensor | None:
        return None

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.shape[1:].numel() * self.dtype.itemsize

    @abstractmethod
    def gather(self, ids: Tensor, *, out: Tensor | None = None, check: bool = True) -> Tensor:
        """Rows by id.  # [n] -> [n, d]"""

    def scan(self, *, rows: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """All rows, front to back, in pieces of at most `rows`.  # int, [n, d]"""
        for begin, end in pieces(len(self), self.row_bytes, most=rows):
            yield begin, self.gather(torch.arange(begin, end))


def check_out(out: Tensor, ids: Tensor, store: Store, *, held: Tensor | None = None) -> None:
    """ValueError unless rows `ids` of the store can be gathered into `out`: it must lie apart from ids and from the rows `held`."""
    shape = (len(ids), *store.shape[1:])
    if out.shape != shape or out.dtype != store.dtype or out.device != store.device or not out.is_contiguous():
        raise ValueError(
            f"out must be contiguous, {store.dtype}, of shape {shape} and on {store.device}; "
            f"it is {out.dtype}, {tuple(out.shape)}, on {out.device}"
        )
    check_apart(out, ids=ids, **{"the store's rows": store.table if held is None else held})


def check_rows(ids: Tensor, rows: Tensor, store: Store, name: str) -> None:
    """ValueError unless `rows` are of the store's type, one for each id."""
    shape = (len(ids), *store.shape[1:])
    if rows.shape != shape or rows.dtype != store.dtype:
        raise ValueError(f"{name} must be {store.dtype}, of shape {shape}; it is {rows.dtype}, {tuple(rows.shape)}")
