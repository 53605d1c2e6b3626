"""Where the rows of a cache lie, and how they meet those that were fetched: in memory, or on a GPU."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace import _native
from headrace._device import device_of
from headrace.pipeline.stream import InTurn
from headrace.store.pool import BufferPool

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


class CachedRows(Protocol):
    """Slots with a row each. `slots` and `source` are as in native/cache.h."""

    device: torch.device
    rows: Tensor

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """A tensor to gather into."""
        ...

    def staging(self, shape: tuple[int, ...]) -> Tensor:
        """A tensor in host memory to fetch into."""
        ...

    def received(self, fetched: Tensor) -> Tensor:
        """The fetched rows on the device of this cache."""
        ...

    def merge(self, source: NDArray[Any], fetched: Tensor, out: Tensor) -> None:
        """out[i] = rows[source[i]] where that is a slot, fetched[-1 - source[i]] elsewhere."""
        ...

    def keep(self, slots: NDArray[Any], fetched: Tensor) -> None:
        """rows[slots[k]] = fetched[k] where that is a slot."""
        ...


class HostRows:
    """Rows in memory; many threads may work on different slots at a time."""

    device = torch.device("cpu")

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, *, threads: int, pool: BufferPool) -> None:
        self.rows = BufferPool(limit=0).empty(shape, dtype)
        self.threads = threads
        self.pool = pool

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        return self.pool.empty(shape, self.rows.dtype)

    staging = empty

    def received(self, fetched: Tensor) -> Tensor:
        return fetched.cpu()

    def merge(self, source: NDArray[Any], fetched: Tensor, out: Tensor) -> None:
        _native.merge_rows(_words(self.rows), _words(fetched), source, _words(out), self.threads)

    def keep(self, slots: NDArray[Any], fetched: Tensor) -> None:
        _native.keep_rows(_words(fetched), slots, _words(self.rows), self.threads)


class DeviceRows:
    """Rows on a GPU.

    Work on them is put into the caller's current stream, after an event that ends whatever was put into any stream before: slots
    are let go when their copy is enqueued, not when it has run. Staging memory is pinned and belongs to torch's host allocator,
    which does not hand it out again before the copies from it are done.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, *, device: torch.device) -> None:
        self.device = device_of(device)
        self.rows = torch.empty(shape, dtype=dtype, device=self.device)
        self._turns = InTurn(self.device, self.rows)  # whoever frees the cache frees it after the work of all streams
        with self._turns:  # so that streams of later turns wait for what this memory was used for before
            pass

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        return torch.empty(shape, dtype=self.rows.dtype, device=self.device)

    def staging(self, shape: tuple[int, ...]) -> Tensor:
        return torch.empty(shape, dtype=self.rows.dtype, pin_memory=True)

    def received(self, fetched: Tensor) -> Tensor:
        return fetched.to(self.device, non_blocking=True)

    def merge(self, source: NDArray[Any], fetched: Tensor, out: Tensor) -> None:
        where = torch.from_numpy(source).long()
        missed = (where < 0).nonzero().flatten()
        into = _words(out)
        if into.numel() == 0:
            return
        with self._turns:
            if len(missed) < len(where):  # those that missed read slot 0, and are written over
                torch.index_select(_words(self.rows), 0, self._sent(where.clamp_(min=0)), out=into)
            if len(missed):
                rows = _words(fetched)
                if len(missed) > len(fetched):  # ids that missed twice
                    rows = rows.index_select(0, self._sent(-1 - torch.from_numpy(source)[missed].long()))
                into.index_copy_(0, self._sent(missed), rows)

    def keep(self, slots: NDArray[Any], fetched: Tensor) -> None:
        where = torch.from_numpy(slots).long()
        kept = (where >= 0).nonzero().flatten()
        if len(kept) == 0 or self.rows.numel() == 0:
            return
        with self._turns:
            rows = _words(fetched)
            if len(kept) < len(where):
                rows = rows.index_select(0, self._sent(kept))
            _words(self.rows).index_copy_(0, self._sent(where[kept]), rows)

    def _sent(self, ids: Tensor) -> Tensor:
        return ids.pin_memory().to(self.device, non_blocking=True)


def _words(rows: Tensor) -> Tensor:
    """The same bytes as integers: copying has no use for a type.  # [n, ...] -> [n, w]"""
    return rows.detach().reshape(len(rows), rows.shape[1:].numel()).view(_WORDS[rows.element_size()])
