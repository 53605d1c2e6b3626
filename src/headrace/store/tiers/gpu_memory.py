"""Rows in GPU memory and in pinned host memory that the GPU reads itself, for a `Tiered` store on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headrace._pinned import pin_in_place
from headrace.kernels import ShardTable, add_sharded, gather_sharded
from headrace.kernels import gather as gather_rows
from headrace.store.pool import BufferPool
from headrace.store.raw_rows import words_of
from headrace.store.store import Store
from headrace.store.tiers.counts import Share

# Over the bus, so few programs are as fast as thousands, and the GPU's other work goes on beside them (docs/benchmarks.md).
_PROGRAMS = 264
# Random reads of more host memory than this find most addresses untranslated: a third of the rate at 14 GiB. In order they do not.
_SORTED = 2 << 30


class GpuMemory:
    """Two shards behind one table: the first `hot` slots are in GPU memory, the next `rest` in pinned memory.

    Rows of both are padded to `stride` bytes, so that one kernel finds them by address and reads over the bus are whole sectors.
    Gathers and additions go to the current stream; rows change place only after all streams were waited for.
    """

    def __init__(
        self,
        hot: int,
        rest: int,
        num_rows: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        *,
        stride: int,
        device: torch.device,
        device_rows: Tensor | None = None,
        host_rows: Tensor | None = None,
        shards: int = 1,
    ) -> None:
        self.hot, self.rest, self.num_rows, self.shape, self.dtype = hot, rest, num_rows, shape, dtype
        self.row_bytes, self.stride, self.device = torch.Size(shape).numel() * dtype.itemsize, stride, device
        self.slot: Tensor | None = None  # on the CPU; see MainMemory
        self.device_rows = torch.empty((hot, stride), dtype=torch.uint8, device=device) if device_rows is None else device_rows
        self.host_rows = BufferPool(limit=0).empty((rest, stride), torch.uint8) if host_rows is None else host_rows
        self._unpin: Callable[[], Any] | None = None
        self._hits = torch.zeros(shards + 1, dtype=torch.int64, device=device)  # the last counts host memory
        self.table: ShardTable | None = None

    @property
    def rows(self) -> Tensor:
        """The rows on the device, padded."""
        return self.device_rows

    def place(self, slot: Tensor | None) -> None:
        self._pin_far()
        self.slot = slot
        bases = [self.device_rows.data_ptr(), self.host_rows.data_ptr()]
        if slot is None:
            self.table = ShardTable.in_order(
                bases, [self.hot, self.rest], stride=self.stride, num_rows=self.num_rows, device=self.device
            )
            return
        on_host = slot >= self.hot
        shard = torch.where(slot < 0, -1, on_host.to(slot.dtype))
        row = torch.where(on_host, slot - self.hot, slot.clamp_min(0))
        self.table = ShardTable.by_location(bases, shard, row, stride=self.stride, device=self.device)

    def gather(self, ids: Tensor, out: Tensor) -> tuple[Tensor, Tensor] | None:
        """Rows in memory into `out`; what is on disk: its ids, and where in `out` it belongs (for that ids are waited for)."""
        assert self.table is not None
        gather_sharded(
            self.table,
            ids.to(self.device, non_blocking=True),
            out=out,
            hits=self._hits,
            check=False,
            sort=self.host_rows.nbytes > _SORTED,
            programs=_PROGRAMS if self.rest else None,
        )
        if self.hot + self.rest == self.num_rows:
            return None
        host_ids = ids.cpu()
        away = host_ids >= self.hot + self.rest if self.slot is None else gather_rows(self.slot, host_ids) < 0
        missing = away.nonzero().flatten()
        return (host_ids[missing], missing) if len(missing) else None

    def add_(self, ids: Tensor, delta: Tensor) -> None:
        """Add to rows in memory, no id twice; others are passed over."""
        assert self.table is not None
        add_sharded(self.table, ids.to(self.device), delta.to(self.device).contiguous())

    def fill(self, begin: int, ids: Tensor, source: Store) -> None:
        rows, on_device = self._words(source.gather(ids)), max(0, min(self.hot - begin, len(ids)))
        self._words(self.device_rows)[begin : begin + on_device] = rows[:on_device].to(self.device)
        first = max(begin - self.hot, 0)
        self._words(self.host_rows)[first : first + len(ids) - on_device] = rows[on_device:]

    def read(self, slots: Tensor) -> Tensor:
        """Rows at slots, on the CPU."""
        on_device = slots < self.hot
        out = torch.empty((len(slots), *self.shape), dtype=self.dtype)
        words = self._words(out)
        words[on_device] = self._words(self.device_rows)[slots[on_device].to(self.device)].cpu()
        words[~on_device] = self._words(self.host_rows)[slots[~on_device] - self.hot]
        return out

    def write(self, slots: Tensor, rows: Tensor) -> None:
        on_device = slots < self.hot
        words = self._words(rows)
        self._words(self.device_rows)[slots[on_device].to(self.device)] = words[on_device].to(self.device)
        self._words(self.host_rows)[slots[~on_device] - self.hot] = words[~on_device]

    def settle(self) -> None:
        """Wait until nothing reads these rows any more."""
        torch.cuda.synchronize(self.device)

    def shares(self) -> list[Share]:
        self.settle()  # gathers may be under way on any stream
        device_hits, host_hits = self._hits.tolist()
        return [Share("device", str(self.device), self.hot, device_hits), Share("host", "pinned memory", self.rest, host_hits)]

    def _pin_far(self) -> None:
        """Once, and when it is filled: see `pin_in_place`."""
        if self._unpin is None:
            remedy = "keep fewer rows there (host=) and the rest on disk"
            self._unpin = pin_in_place(self.host_rows, self, device=self.device, remedy=remedy)

    def _words(self, rows: Tensor) -> Tensor:  # [n, ...] -> [n, words of a row], padding left out
        return words_of(rows, self.row_bytes, self.stride)
