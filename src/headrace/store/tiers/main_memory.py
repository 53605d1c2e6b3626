"""Rows in main memory, for a `Tiered` store on the CPU."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from headrace.kernels import gather
from headrace.pipeline.workers import free_in_child
from headrace.store.pool import BufferPool
from headrace.store.raw_rows import as_bytes, word_of
from headrace.store.store import Store
from headrace.store.tiers.counts import Share


class MainMemory:
    """One array of the rows in memory: a node's row is at its slot, and the first `hot` slots count as the device's."""

    def __init__(
        self, hot: int, rest: int, num_rows: int, shape: tuple[int, ...], dtype: torch.dtype, *, threads: int | None
    ) -> None:
        self.hot, self.threads = hot, threads
        self.all_here = hot + rest == num_rows
        self.rows = BufferPool(limit=0).empty((hot + rest, *shape), dtype)
        self.slot: Tensor | None = None  # [nodes]; below 0: not in memory. None: node v is at slot v
        self._hits = [0, 0]
        self._lock = free_in_child(threading.Lock())

    def place(self, slot: Tensor | None) -> None:
        self.slot = slot

    def gather(self, ids: Tensor, out: Tensor) -> tuple[Tensor, Tensor] | None:
        """Rows in memory into `out`; what is not: its ids, and where in `out` it belongs."""
        slots = ids if self.slot is None else gather(self.slot, ids, threads=self.threads)
        hot = int(((slots < self.hot) & (slots >= 0)).sum())
        missing = slots[:0]
        if not self.all_here:
            away = (slots >= len(self.rows)) if self.slot is None else (slots < 0)
            missing = away.nonzero().flatten()
            if len(missing):
                slots = slots.masked_fill(away, 0)  # any row for now: cheaper than packing those that are here
        if len(missing) < len(ids):
            gather(self.rows, slots, out=out, threads=self.threads)
        with self._lock:
            self._hits[0] += hot
            self._hits[1] += len(ids) - len(missing) - hot
        return (ids[missing], missing) if len(missing) else None

    def add_(self, ids: Tensor, delta: Tensor) -> None:
        """Add to rows in memory, no id twice; others are passed over."""
        slots = ids.long() if self.slot is None else self.slot[ids].long()
        held = (slots >= 0) & (slots < len(self.rows))
        self.rows.index_add_(0, slots[held], delta[held])

    def fill(self, begin: int, ids: Tensor, source: Store) -> None:
        source.gather(ids, out=self.rows[begin : begin + len(ids)])

    def read(self, slots: Tensor) -> Tensor:
        return gather(self.rows, slots, threads=self.threads)

    def write(self, slots: Tensor, rows: Tensor) -> None:
        word = word_of(self.rows.shape[1:].numel() * self.rows.element_size())
        as_bytes(self.rows).view(word)[slots] = as_bytes(rows).view(word)

    def settle(self) -> None:
        """Wait until nothing reads these rows any more: on the CPU a gather is over when it returns."""

    def shares(self) -> list[Share]:
        hot, rest = self._hits
        return [Share("device", "cpu", self.hot, hot), Share("host", "memory", len(self.rows) - self.hot, rest)]
