"""Rows that lie in one array: in memory, or memory-mapped."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace._arrays import as_ids_near, as_tensor
from headrace.kernels import gather
from headrace.store.pool import BufferPool


class ArrayStore:
    """The plainest `Store`: rows of a tensor, gathered into buffers of a pool, or, on a GPU, where they lie.

    >>> import torch
    >>> from headrace.store import ArrayStore
    >>> ArrayStore(torch.arange(6.).view(3, 2)).gather(torch.tensor([2, 0])).tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    """

    def __init__(self, rows: Tensor | NDArray[Any], *, pool: BufferPool | None = None, threads: int | None = None) -> None:
        on_gpu = isinstance(rows, Tensor) and rows.is_cuda
        self.rows = rows.detach().contiguous() if isinstance(rows, Tensor) and on_gpu else as_tensor(rows, "rows")
        self.writable = not isinstance(rows, np.ndarray) or rows.flags.writeable
        self.pool = None if on_gpu else pool
        self.threads = threads

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> torch.Size:
        return self.rows.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    @property
    def device(self) -> torch.device:
        return self.rows.device

    def gather(self, ids: Tensor, *, out: Tensor | None = None, check: bool = True) -> Tensor:
        """Rows by id.  # [n] -> [n, d]"""
        if out is None and self.pool is not None:
            out = self.pool.empty((len(ids), *self.shape[1:]), self.dtype)
        return gather(self.rows, ids, out=out, threads=self.threads, check=check)

    def add_(self, ids: Tensor, delta: Tensor) -> None:
        """Add `delta[i]` to row `ids[i]`, repeated ids included.  # [n], [n, d]"""
        if not self.writable:
            raise ValueError("these rows are read-only (a memory map?): copy them, or open them copy-on-write")
        where = as_ids_near(ids, "ids", self.device).to(self.device).long()
        if self.device.type == "cpu":
            self.rows.index_add_(0, where, delta)
        else:  # which sorts, where index_add_ would let atomics decide the order
            self.rows.index_put_((where,), delta.to(self.device), accumulate=True)
