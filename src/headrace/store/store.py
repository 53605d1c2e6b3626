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

    def gather(self, ids: Tensor, *, out: Tensor | None = None, check: bool = True) -> Tensor:
        """Rows by id.  # [n] -> [n, d]

        `check=False` is for ids that are known to be good, such as a sampler's: to look at ids on a GPU, the host waits for them.
        """
        ...
