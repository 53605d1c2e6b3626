"""Buffers that are used again: memory of a dead tensor serves the next one of about its size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from headrace import _native


class Buffers(Protocol):
    """Where memory for gathered rows comes from."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """An uninitialized tensor."""
        ...


class PinnedBuffers:
    """Page-locked memory for what goes on to a GPU: gathered there, it need not be copied once more. Torch keeps and reuses it."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)


@dataclass(frozen=True)
class PoolUse:
    """What a pool holds, in bytes, and how often a buffer was at hand."""

    limit: int
    idle: int
    in_use: int
    peak: int
    hits: int
    misses: int


class BufferPool:
    """Hands out uninitialized tensors; when the last view of one dies, its memory comes back.

    Touching fresh memory costs several times what filling it does, so a loop that makes one large tensor per batch should make
    it here. At most `limit` bytes are kept idle; `use()` reports what is held.

    >>> from headrace.store import BufferPool
    >>> pool = BufferPool(limit=1 << 20)
    >>> x = pool.empty((100, 8)); del x
    >>> y = pool.empty((90, 8)); pool.use().hits
    1
    """

    def __init__(self, limit: int = 1 << 30) -> None:
        if limit < 0:
            raise ValueError(f"limit must not be negative, got {limit}")
        self.native = _native.Pool.create(limit)

    def empty(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """An uninitialized tensor, 64-byte aligned."""
        size = prod(shape)
        if size == 0:
            return torch.empty(tuple(shape), dtype=dtype)
        memory = torch.from_numpy(self.native.empty(size * torch.empty(0, dtype=dtype).element_size()))
        return memory.view(dtype).view(tuple(shape))

    def use(self) -> PoolUse:
        return PoolUse(**self.native.stats())

    def clear(self) -> None:
        """Give idle memory back to the system."""
        self.native.clear()
