"""`Tiered`: hot rows on the device, warm rows in host memory, the rest on disk."""

from __future__ import annotations

import threading
import time

import torch
import torch.distributed as dist
from torch import Tensor

from headrace._arrays import as_ids_near, check_ids
from headrace._device import device_of
from headrace.pipeline.workers import free_in_child
from headrace.ranks.ranks import Ranks, ranks_of
from headrace.store.array import ArrayStore
from headrace.store.disk.file_rows import FileRows
from headrace.store.pinned import Staging
from headrace.store.pool import BufferPool
from headrace.store.raw_rows import as_bytes, pieces
from headrace.store.store import BaseStore, check_out, check_rows
from headrace.store.tiers.changes import changes_of, in_order, sum_repeated
from headrace.store.tiers.counts import Budget, TieredUse, TierUse, row_stride, share_rows
from headrace.store.tiers.gpu_memory import GpuMemory
from headrace.store.tiers.main_memory import MainMemory
from headrace.store.tiers.meeting import PlacementKind, meet
from headrace.store.tiers.peers import PeerMemory
from headrace.store.tiers.sources import File, Rows, disk_of, source_of


class Tiered(BaseStore):
    """Rows in up to three tiers behind one `gather`: GPU memory, pinned host memory that the GPU reads itself, and disk.

    rows: a tensor, a numpy array, a memory map or `FileRows`. The tiers hold copies of their shares and the rest is not read.
    device: where gathered rows are wanted (default: the GPU, if torch sees one). On the CPU the first two tiers are both memory.
    device_cache, host: what the first two tiers may hold, in bytes ("4GiB", 200_000_000) or as a share of the rows (0.2); "rest" is
        all that is left.
    order: node ids, hottest first (`hot_order`); ids it leaves out come last, in order. By default nodes are taken for numbered so.
    disk: a file of all rows, for those no tier holds: the path of an `.npy` file, a memory map or `FileRows`. Not needed
        where `rows` is such a file itself.
    threads: of gathers on the CPU (default: all) and of reads from disk (default: 16).
    pool: buffers for rows gathered on the CPU.
    align: on a GPU, rows begin at multiples of this many bytes (default: 32, a sector of the bus; less for shorter rows).
    group: the processes that build this store together, one for each GPU and with the same arguments: a `torch.distributed` group,
        or an object with `rank`, `size` and `all_gather(value)`. The smallest `device_cache` and `host` count for all.
    placement: "replicate" gives each GPU of the group the same hot rows. "clique" spreads them over GPUs that can read each other,
        so that m of them hold m times as many; each such set has its own copy.
    shared: one copy of the host's rows for all ranks of a machine (default: if it has several), in `/dev/shm`. Rows that processes
        hold in common can be neither written nor refilled, and every rank must `close` the store before the first one ends.

    >>> import torch
    >>> from headrace.store import Tiered
    >>> store = Tiered(torch.arange(8.0).view(4, 2), device="cpu", device_cache=0.5, order=torch.tensor([3, 1]))
    >>> store.gather(torch.tensor([3, 0, 1])).tolist()
    [[6.0, 7.0], [0.0, 1.0], [2.0, 3.0]]
    >>> round(store.use().hit_rate, 2)
    0.67
    """

    def __init__(
        self,
        rows: Rows,
        *,
        device: str | torch.device | None = None,
        device_cache: Budget = "4GiB",
        order: Tensor | None = None,
        host: Budget = "rest",
        disk: File | None = None,
        threads: int | None = None,
        pool: BufferPool | None = None,
        align: int | None = None,
        group: dist.ProcessGroup | Ranks | None = None,
        placement: PlacementKind = "replicate",
        shared: bool | None = None,
    ) -> None:
        source = source_of(rows, threads)
        self.device = device_of(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
        self.shape, self.dtype = source.shape, source.dtype
        if len(self.shape) == 0:
            raise ValueError("rows must have rows: it is a single number")
        on_gpu = self.device.type == "cuda"
        self.stride = row_stride(self.row_bytes, self.dtype.itemsize, align) if on_gpu else max(self.row_bytes, 1)
        hot, rest = share_rows(len(self), self.stride, device_cache, host)
        order = None if order is None else in_order(order, len(self))
        self.placement = placement
        meeting = None
        _check_group(group, placement, shared, self.device)
        if group is not None:
            order = torch.arange(len(self)) if order is None else order
            meeting = meet(
                ranks_of(group, self.device),
                order,
                shape=self.shape,
                dtype=self.dtype,
                stride=self.stride,
                device=self.device,
                hot=hot,
                host=share_rows(len(self), self.stride, 0, host)[1],
                placement=placement,
                shared=shared,
            )
            hot, rest = meeting.hot, meeting.rest
        self.pool, self._held = pool, hot + rest
        self.disk = None if self._held == len(self) else disk_of(disk, source, self._held, threads)
        self._memory: MainMemory | GpuMemory
        if meeting is not None and not meeting.alone:
            self._memory = PeerMemory(meeting, source, stride=self.stride, device=self.device)
        elif on_gpu:
            self._memory = GpuMemory(hot, rest, len(self), self.shape[1:], self.dtype, stride=self.stride, device=self.device)
        else:
            self._memory = MainMemory(hot, rest, len(self), self.shape[1:], self.dtype, threads=threads)
        self._staging = Staging(1 << 20) if on_gpu and self.disk is not None else None
        self._changed: Tensor | None = None  # [nodes], bool: rows in memory that the file does not have
        self._lock = free_in_child(threading.Lock())
        self._disk_hits, self._disk_seconds = 0, 0.0
        self._fill(source, order)

    def gather(self, ids: Tensor, *, out: Tensor | None = None, check: bool = True) -> Tensor:
        """Rows by id, on the store's device. Ids may be there or on the CPU.  # [n] -> [n, d]

        To look at ids on a GPU the host waits for them; `check=False`, for ids that are known to be good, does not.
        """
        ids = as_ids_near(ids, "ids", self.device)
        if check or ids.device.type == "cpu":
            check_ids(ids, len(self))
        out = self._output(ids, out)
        away = self._memory.gather(ids, out) if self._held else (ids.cpu(), torch.arange(len(ids)))
        if away is not None and len(away[0]):
            begin = time.perf_counter()
            self._read_disk(*away, out)
            with self._lock:
                self._disk_hits += len(away[0])
                self._disk_seconds += time.perf_counter() - begin
        return out

    def add_(self, ids: Tensor, delta: Tensor) -> None:
        """Add `delta[i]` to row `ids[i]` where it lies; rows of repeated ids are summed first, in order.  # [n], [n, d]"""
        self._needs_own_rows("add_")
        ids = as_ids_near(ids, "ids", self.device)
        if self.dtype == torch.bool:
            raise ValueError("these rows are of torch.bool, which does not add up: keep them as int8")
        check_rows(ids, delta, self, "delta")
        check_ids(ids, len(self))
        ids, delta = sum_repeated(ids.to(self.device), delta.detach().to(self.device))
        if self.disk is not None:
            host_ids = ids.cpu().long()
            on_disk = self._on_disk(host_ids)
            if bool(on_disk.any()):
                self.disk.add_(host_ids[on_disk], delta[on_disk.to(self.device)].cpu())
            self._note_changed(host_ids[~on_disk])
        if self._held:
            self._memory.add_(ids, delta)

    def put_(self, ids: Tensor, rows: Tensor) -> None:
        """Put `rows[i]` in place of row `ids[i]` where it lies, no id twice. No gather may run meanwhile.  # [n], [n, d]"""
        self._needs_own_rows("put_")
        ids = as_ids_near(ids, "ids", self.device).cpu().long()
        check_rows(ids, rows, self, "rows")
        check_ids(ids, len(self))
        rows, on_disk = rows.detach().cpu().contiguous(), self._on_disk(ids)
        if self.disk is not None:
            if bool(on_disk.any()):
                self.disk.put_(ids[on_disk], rows[on_disk])
            self._note_changed(ids[~on_disk])
        self._memory.settle()
        held = ids[~on_disk]
        self._memory.write(held if self._memory.slot is None else self._memory.slot[held].long(), rows[~on_disk])
        self._memory.settle()

    def refill(self, order: Tensor) -> int:
        """Make the first nodes of `order` the hot ones; returns how many rows changed place. No gather may run meanwhile.

        Rows that move are held in memory once more while they do. A row that `add_` changed and that leaves for the disk is written
        there first; where the file is read-only that is an error, and nothing moves.
        """
        self._needs_own_rows("refill")
        slots = self._slots()
        change = changes_of(slots, in_order(order, len(self)), self._memory.hot, self._held)
        if len(change.entering) == 0:
            return 0
        self._memory.settle()
        lost = change.to_disk[:0] if self._changed is None else change.to_disk[self._changed[change.to_disk]]
        if self._changed is not None and self.disk is not None and len(lost):
            self.disk.put_(lost, self._memory.read(slots[lost]))
            self._changed[lost] = False
        rows = torch.empty((len(change.entering), *self.shape[1:]), dtype=self.dtype)
        old = slots[change.entering]
        held = (old >= 0).nonzero().flatten()
        as_bytes(rows)[held] = as_bytes(self._memory.read(old[held]))
        if self.disk is not None:
            absent = (old < 0).nonzero().flatten()
            self.disk.read(change.entering[absent], rows, positions=absent)
        self._memory.write(change.slots[change.entering], rows)
        self._place(change.slots)
        self._memory.settle()
        return len(change.entering)

    def use(self) -> TieredUse:
        """What each tier holds and gave. On a GPU it waits for the counts."""
        tiers = [
            TierUse(t.name, t.where, t.rows, t.rows * self.stride, t.hits, t.hits * self.row_bytes, None)
            for t in self._memory.shares()
        ]
        left, hits = len(self) - self._held, self._disk_hits
        where = "" if self.disk is None else str(self.disk.path)
        disk = TierUse("disk", where, left, left * self.row_bytes, hits, hits * self.row_bytes, self._disk_seconds)
        return TieredUse((*tiers, disk))

    def close(self) -> None:
        """Let go of memory that other processes read, and of theirs: every rank of the group, before the first one ends.

        It waits for all of them, so the group must still be there. A store without a group has nothing to close.
        """
        if isinstance(self._memory, PeerMemory):
            self._memory.close()

    def describe(self) -> str:
        """The tiers as a table."""
        return f"{len(self):,} rows of {tuple(self.shape[1:])} {self.dtype}\n{self.use()}"

    def __repr__(self) -> str:
        hot, held = self._memory.hot, self._held
        device = f"{self.device} and its peers" if isinstance(self._memory, PeerMemory) else self.device
        where = f"{hot} on {device}, {held - hot} in host memory, {len(self) - held} on disk"
        return f"Tiered({tuple(self.shape)}, {self.dtype}: {where})"

    def _fill(self, source: ArrayStore | FileRows, order: Tensor | None) -> None:
        if not isinstance(self._memory, PeerMemory):  # which the ranks filled when they built it
            for begin, end in pieces(self._held, self.row_bytes):
                self._memory.fill(begin, torch.arange(begin, end) if order is None else order[begin:end], source)
        if order is None:
            self._memory.place(None)
        else:
            slots = torch.full((len(self),), -1)
            slots[order[: self._held]] = torch.arange(self._held)
            self._place(slots)
        self._memory.settle()

    def _needs_own_rows(self, what: str) -> None:
        if isinstance(self._memory, PeerMemory):
            raise ValueError(
                f"{what} needs rows of this process alone, and these are held in common with others: use placement='replicate' and "
                "shared=False, or build the store anew"
            )

    def _on_disk(self, ids: Tensor) -> Tensor:
        """Which rows no tier in memory holds.  # [n] -> [n], bool"""
        return ids >= self._held if self._memory.slot is None else self._memory.slot[ids] < 0

    def _note_changed(self, ids: Tensor) -> None:
        if self._changed is None:
            self._changed = torch.zeros(len(self), dtype=torch.bool)
        self._changed[ids] = True

    def _place(self, slots: Tensor) -> None:
        self._memory.place(slots.to(torch.int32 if self._held <= torch.iinfo(torch.int32).max else torch.int64))

    def _slots(self) -> Tensor:
        """Where every node's row is in memory, below 0: on disk.  # -> [nodes]"""
        if self._memory.slot is not None:
            return self._memory.slot.long()
        slots = torch.arange(len(self))
        slots[self._held :] = -1
        return slots

    def _output(self, ids: Tensor, out: Tensor | None) -> Tensor:
        if out is None:
            shape = (len(ids), *self.shape[1:])
            if self.pool is not None and self.device.type == "cpu":
                return self.pool.empty(shape, self.dtype)
            return torch.empty(shape, dtype=self.dtype, device=self.device)
        check_out(out, ids, self, held=self._memory.rows)
        return out

    def _read_disk(self, ids: Tensor, positions: Tensor, out: Tensor) -> None:
        """While these rows are read, the GPU gathers the others."""
        assert self.disk is not None
        if self._staging is None or self.row_bytes == 0:
            self.disk.read(ids, out, positions=positions)
            return
        size = len(ids) * self.row_bytes
        buffer = self._staging.take(size)
        try:
            rows = buffer[:size].view(self.dtype).view(len(ids), *self.shape[1:])
            self.disk.read(ids, rows)
            as_bytes(out).index_copy_(0, positions.to(self.device), as_bytes(rows).to(self.device, non_blocking=True))
        finally:
            self._staging.give(buffer)


def _check_group(group: dist.ProcessGroup | Ranks | None, placement: str, shared: bool | None, device: torch.device) -> None:
    if placement not in ("replicate", "clique"):
        raise ValueError(f"placement must be 'replicate' or 'clique', not {placement!r}")
    if group is None and (placement == "clique" or shared):
        argument = "placement='clique'" if placement == "clique" else "shared=True"
        raise ValueError(f"{argument} is for several processes: give their group=, such as torch.distributed.group.WORLD")
    if group is not None and device.type != "cuda":
        raise ValueError(f"group= is for processes with a GPU each, and device is {device}: leave it out, or see SharedRows")
