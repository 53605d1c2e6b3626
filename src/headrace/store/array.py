"""Rows that lie in one array: in memory, or memory-mapped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headrace._arrays import as_ids_near, as_tensor, check_ids
from headrace.kernels import gather
from headrace.store.pool import BufferPool
from headrace.store.raw_rows import pieces, words_of
from headrace.store.store import BaseStore, check_rows


class ArrayStore(BaseStore):
    """The plainest `Store`: rows of a tensor, gathered into buffers of a pool, or, on a GPU, where they lie.

    >>> import torch
    >>> from headrace.store import ArrayStore
    >>> ArrayStore(torch.arange(6.).view(3, 2)).gather(torch.tensor([2, 0])).tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    """

    def __init__(self, rows: Tensor | NDArray[Any], *, pool: BufferPool | None = None, threads: int | None = None) -> None:
        on_gpu = isinstance(rows, Tensor) and rows.is_cuda
        self.rows = rows.detach().contiguous() if isinstance(rows, Tensor) and on_gpu else as_tensor(rows, "rows")
        self.shape, self.dtype, self.device = self.rows.shape, self.rows.dtype, self.rows.device
        self.writable = not isinstance(rows, np.ndarray) or rows.flags.writeable
        self.pool = None if on_gpu else pool
        self.threads = threads

    @property
    def table(self) -> Tensor:
        """The rows themselves."""
        return self.rows

    def gather(self, ids: Tensor, *, out: Tensor | None = None, check: bool = True) -> Tensor:
        """Rows by id.  # [n] -> [n, d]"""
        if out is None and self.pool is not None:
            out = self.pool.empty((len(ids), *self.shape[1:]), self.dtype)
        return gather(self.rows, ids, out=out, threads=self.threads, check=check)

    def scan(self, *, rows: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """All rows, front to back, in pieces of at most `rows`: views of them, nothing is copied.  # int, [n, d]"""
        return ((begin, self.rows[begin:end]) for begin, end in pieces(len(self), self.row_bytes, most=rows))

    def add_(self, ids: Tensor, delta: Tensor) -> None:
        """Add `delta[i]` to row `ids[i]`, repeated ids included.  # [n], [n, d]"""
        positions = self._positions(ids)
        if self.device.type == "cpu":
            self.rows.index_add_(0, positions, delta)
        else:  # which sorts, where index_add_ would let atomics decide the order
            self.rows.index_put_((positions,), delta.to(self.device), accumulate=True)

    def put_(self, ids: Tensor, rows: Tensor, *, check: bool = True) -> None:
        """Put `rows[i]` in place of row `ids[i]`, no id twice.  # [n], [n, d]

        `check=False` is for ids that are known to be good: to look at ids on a GPU, the host waits for them.
        """
        check_rows(ids, rows, self, "rows")
        positions = self._positions(ids)
        if check:
            check_ids(positions, len(self))
        target, source = (words_of(part, self.row_bytes, self.row_bytes) for part in (self.rows, rows.detach().contiguous()))
        target[positions] = source.to(self.device)

    def _positions(self, ids: Tensor) -> Tensor:
        if not self.writable:
            raise ValueError("these rows are read-only (a memory map?): copy them, or open them copy-on-write")
        return as_ids_near(ids, "ids", self.device).to(self.device).long()
