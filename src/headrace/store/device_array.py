"""Rows in one tensor on any device: what `ArrayStore` is on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor


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
