"""`Store`: rows addressed by node id, wherever they live."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Store(Protocol):
    """What every store offers, and what stores that wrap another one ask of it."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def gather(self, ids: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Rows by id.  # [n] -> [n, d]"""
        ...
