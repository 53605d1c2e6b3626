"""Rows on the GPUs of several processes and in host memory they share, for a `Tiered` store of a process group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.kernels import ShardTable
from headrace.ranks.ranks import together
from headrace.store.pool import BufferPool
from headrace.store.raw_rows import pieces, words_of
from headrace.store.shared import SharedRows
from headrace.store.store import Store
from headrace.store.tiers.counts import Share
from headrace.store.tiers.gpu_memory import GpuMemory
from headrace.store.tiers.ipc import DeviceRowsHandle, open_device_rows, share_device_rows
from headrace.store.tiers.meeting import NOT_BUILT, Meeting


@dataclass(frozen=True)
class _Gift:
    """Memory that a rank built and others open."""

    rows: DeviceRowsHandle | None
    host: str | None  # the name of its machine's shared rows


class PeerMemory(GpuMemory):
    """The memory of a group of ranks behind one table: a shard on the GPU of each member, and host memory.

    Every rank builds it, and fills its own shard; the others open that by CUDA IPC, so that a gather reads their memory directly.
    The first rank of a machine builds the host memory if it is shared. Rows neither change nor move after that.
    """

    def __init__(self, meeting: Meeting, source: Store, *, stride: int, device: torch.device) -> None:
        ranks, members = meeting.ranks, meeting.members
        ids, at_home = meeting.placed.shard(ranks.rank), members.index(ranks.rank)
        nothing = torch.empty((0, stride), dtype=torch.uint8)
        super().__init__(
            meeting.hot,
            meeting.rest,
            source.shape[0],
            tuple(source.shape[1:]),
            source.dtype,
            stride=stride,
            device=device,
            device_rows=nothing,
            host_rows=nothing,
            shards=len(members),
        )
        self._ranks, self._members, self._at_home, self._own = ranks, members, at_home, len(ids)
        self._shared: SharedRows | None = None
        self._opened: list[Tensor | None] = []

        def build() -> _Gift:
            self.device_rows = torch.empty((len(ids), stride), dtype=torch.uint8, device=device)
            self._write(self.device_rows, ids, source)
            self.settle()
            if not meeting.shared:
                self.host_rows = BufferPool(limit=0).empty((meeting.far_rows, stride), torch.uint8)
                self._write(self.host_rows, meeting.far_ids, source)
            elif meeting.local[0] == ranks.rank:
                shape = (meeting.far_rows, stride)
                self._shared = SharedRows.build(shape, torch.uint8, lambda rows: self._write(rows, meeting.far_ids, source))
            wanted = len(members) > 1 and len(ids) > 0
            handle = share_device_rows(self.device_rows, readers=len(members) - 1) if wanted else None
            return _Gift(handle, None if self._shared is None else self._shared.name)

        def receive(gifts: list[_Gift]) -> None:
            host = gifts[meeting.local[0]].host
            if host is not None:
                self._shared = SharedRows.open(host) if self._shared is None else self._shared
                self.host_rows = self._shared.rows
            for at, member in enumerate(members):
                handle = None if at == at_home else gifts[member].rows
                reader = at_home - (at_home > at)  # the owner has a ticket for every member but itself
                self._opened.append(None if handle is None else open_device_rows(handle, reader=reader, device=device))

        gifts = together(ranks, build, consequence=NOT_BUILT)
        together(ranks, lambda: receive(gifts), consequence=NOT_BUILT)
        if self._shared is not None:
            self._shared.unlink()  # all have it open: whatever ends them now, no file stays
        bases = [0 if rows is None else rows.data_ptr() for rows in self._opened]
        bases[at_home] = self.device_rows.data_ptr()
        self.table = ShardTable.by_location([*bases, self.host_rows.data_ptr()], *meeting.locations(), stride=stride, device=device)

    def place(self, slot: Tensor | None) -> None:
        """`slot` tells what is on disk; where other rows are was agreed before."""
        self._pin_far()
        self.slot = slot

    def gather(self, ids: Tensor, out: Tensor) -> tuple[Tensor, Tensor] | None:
        if self.table is None:
            raise ValueError("this store is closed: its ranks have let go of each other's memory")
        return super().gather(ids, out)

    def shares(self) -> list[Share]:
        self.settle()
        counted: list[int] = self._hits.tolist()
        size = len(self._members)
        host = Share("host", "shared memory" if self._shared is not None else "pinned memory", self.rest, counted[size])
        device = Share("device", str(self.device), self._own, counted[self._at_home])
        if size == 1:
            return [device, host]
        others = ", ".join(str(rank) for rank in self._members if rank != self._ranks.rank)
        peers = Share("peers", f"rank {others}", self.hot - self._own, sum(counted[:size]) - counted[self._at_home])
        return [device, peers, host]

    def close(self) -> None:
        """Let go of the others' memory, wait until all of them have, and then of the own."""
        if self.table is None:
            return
        self.settle()
        self.table = None
        self._opened = []
        self._ranks.all_gather(None)
        if self._unpin is not None:
            self._unpin()
        self.device_rows = self.host_rows = torch.empty((0, self.stride), dtype=torch.uint8)
        if self._shared is not None:
            self._shared.close()

    def _write(self, into: Tensor, ids: Tensor, source: Store) -> None:
        words = words_of(into, self.row_bytes, self.stride)
        for begin, end in pieces(len(ids), self.row_bytes):
            words[begin:end] = words_of(source.gather(ids[begin:end]), self.row_bytes, self.stride).to(into.device)
