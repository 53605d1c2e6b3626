"""Rows in GPU memory and in pinned host memory that the GPU reads itself, for a `Tiered` store on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels import ShardTable, add_sharded, gather_sharded
from headrace.kernels import gather as gather_rows
from headrace.store.pinned import pin
from headrace.store.pool import BufferPool
from headrace.store.store import Store


class GpuMemory:
    """Two shards behind one table: the first `hot` slots are in GPU memory, the next `rest` in pinned memory.

    Rows of both are padded to `stride` bytes, so that one kernel finds them by address and reads over the bus are whole sectors.
    Work goes to the current stream; host memory changes only after all streams were waited for.
    """

    def __init__(
        self, hot: int, rest: int, num_rows: int, shape: tuple[int, ...], dtype: torch.dtype, *, stride: int, device: torch.device
    ) -> None:
        self.hot, self.rest, self.num_rows, self.shape, self.dtype = hot, rest, num_rows, shape, dtype
        self.device, self.stride = device, stride
        self.slot: Tensor | None = None  # on the CPU; see MainMemory
        self.near = torch.empty((hot, stride), dtype=torch.uint8, device=device)
        self.far = BufferPool(limit=0).empty((rest, stride), torch.uint8)
        self._pinned = False
        self._hits = torch.zeros(2, dtype=torch.int64, device=device)
        self.table: ShardTable | None = None

    def place(self, slot: Tensor | None) -> None:
        if not self._pinned:
            pin(self.far, self, self.device)
            self._pinned = True
        self.slot = slot
        bases = [self.near.data_ptr(), self.far.data_ptr()]
        if slot is None:
            self.table = ShardTable.in_order(
                bases, [self.hot, self.rest], stride=self.stride, num_rows=self.num_rows, device=self.device
            )
            return
        far = slot >= self.hot
        shard = torch.where(slot < 0, -1, far.to(slot.dtype))
        row = torch.where(far, slot - self.hot, slot.clamp_min(0))
        self.table = ShardTable.by_location(bases, shard, row, stride=self.stride, device=self.device)

    def gather(self, ids: Tensor, out: Tensor) -> tuple[Tensor, Tensor] | None:
        """Rows in memory into `out`; what is on disk: its ids, and where in `out` it belongs (for that ids are waited for)."""
        assert self.table is not None
        gather_sharded(self.table, ids.to(self.device, non_blocking=True), out=out, hits=self._hits, check=False)
        if self.hot + self.rest == self.num_rows:
            return None
        here = ids.cpu()
        away = here >= self.hot + self.rest if self.slot is None else gather_rows(self.slot, here) < 0
        missing = away.nonzero().flatten()
        return (here[missing], missing) if len(missing) else None

    def add_(self, ids: Tensor, delta: Tensor) -> None:
        """Add to rows in memory, no id twice; others are passed over."""
        assert self.table is not None
        add_sharded(self.table, ids.to(self.device), delta.to(self.device).contiguous())

    def fill(self, begin: int, ids: Tensor, source: Store) -> None:
        self.write(torch.arange(begin, begin + len(ids)), source.gather(ids))

    def read(self, slots: Tensor) -> Tensor:
        """Rows at slots, on the CPU."""
        near = slots < self.hot
        out = torch.empty((len(slots), *self.shape), dtype=self.dtype)
        flat = out.view(len(slots), self.shape_size)
        flat[near] = self._rows(self.near)[slots[near].to(self.device)].cpu()
        flat[~near] = self._rows(self.far)[slots[~near] - self.hot]
        return out

    def write(self, slots: Tensor, rows: Tensor) -> None:
        near = slots < self.hot
        flat = rows.view(len(slots), self.shape_size)
        self._rows(self.near)[slots[near].to(self.device)] = flat[near].to(self.device)
        self._rows(self.far)[slots[~near] - self.hot] = flat[~near]

    def settle(self) -> None:
        """Wait until nothing reads these rows any more."""
        torch.cuda.synchronize(self.device)

    def hits(self) -> list[int]:
        counted: list[int] = self._hits.tolist()
        return counted

    @property
    def shape_size(self) -> int:
        return torch.Size(self.shape).numel()

    def _rows(self, memory: Tensor) -> Tensor:  # [n, stride] bytes -> [n, width]
        return memory.view(self.dtype)[:, : self.shape_size]
