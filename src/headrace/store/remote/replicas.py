"""Copies that a rank keeps of other ranks' hot rows."""

from __future__ import annotations

from hashlib import blake2b

import torch
from torch import Tensor

from headrace._arrays import as_ids
from headrace.store.array import ArrayStore
from headrace.store.remote.owners import Owners


class Replicas:
    """The nodes a rank copies, where their copies are, and the copies. Nodes of its own need none.

    `ids` are the nodes as all ranks may share them (own ones included), sorted; `copied` those of other ranks. A node is looked
    up in a table of 4 bytes a node of the graph, which exists only where something is copied.
    """

    def __init__(self, owners: Owners, rank: int, device: torch.device) -> None:
        self.owners, self.rank, self.device = owners, rank, device
        self.ids = self.copied = torch.empty(0, dtype=torch.int64)
        self.common = True  # whether all ranks copy the same nodes
        self.ready = False
        self._slots = torch.empty(0, dtype=torch.int32, device=device)
        self._rows_of_slots = torch.empty(0, dtype=torch.int64, device=device)
        self._held: ArrayStore | None = None

    def choose(self, ids: Tensor) -> None:
        """Decide what is copied; `fill` brings the rows."""
        ids = torch.unique(as_ids(ids, "replicate", dtype=torch.int64))
        nodes = self.owners.num_nodes
        if len(ids) and (int(ids[0]) < 0 or int(ids[-1]) >= nodes):
            raise IndexError(f"replicate holds ids from {int(ids[0])} to {int(ids[-1])}; there are nodes 0 to {nodes - 1}")
        self.ids = ids
        away = self.owners.locate(ids)[0] != self.rank
        self.copied = ids[away]
        if len(ids):
            self._rows_of_slots = torch.where(away, away.long().cumsum(0) - 1, -1).to(self.device)
            self._slots = torch.full((nodes,), -1, dtype=torch.int32, device=self.device)
            self._slots[ids.to(self.device)] = torch.arange(len(ids), dtype=torch.int32, device=self.device)

    @property
    def mark(self) -> int:
        """Equal on two ranks if they copy the same nodes."""
        return int.from_bytes(blake2b(self.ids.numpy().data, digest_size=7).digest(), "little")

    def fill(self, rows: Tensor) -> None:
        self._held = ArrayStore(rows.to(self.device).contiguous())
        self.ready = len(self.copied) > 0

    def slot_of(self, ids: Tensor) -> Tensor:
        """Place in `ids` of the nodes that are copied, -1 of the others.  # [n] -> [n]"""
        return self._slots[ids.long()].long() if len(self.ids) else torch.full((len(ids),), -1, device=self.device)

    def row_of(self, ids: Tensor) -> Tensor:
        """The row of a node's copy here, -1 where there is none.  # [n] -> [n]"""
        slot = self.slot_of(ids)
        return torch.where(slot >= 0, self._rows_of_slots[slot.clamp(min=0)], -1)

    def gather(self, rows: Tensor) -> Tensor:
        assert self._held is not None
        return self._held.gather(rows)

    def add_(self, slots: Tensor, delta: Tensor) -> None:
        """Add to copies by their place in the list that all ranks share."""
        if len(slots) and self._held is not None:
            self._held.add_(self._rows_of_slots[slots], delta)

    def put_(self, slots: Tensor, rows: Tensor) -> None:
        """Replace copies by their place in the list that all ranks share."""
        if len(slots) and self._held is not None:
            self._held.put_(self._rows_of_slots[slots], rows)
