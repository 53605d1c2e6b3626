"""What the ranks of a store agree on before they build it: whose GPU holds which rows, and what one machine keeps once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Literal

import torch
from torch import Tensor

from headrace.ranks.process import machine
from headrace.ranks.ranks import Ranks, together
from headrace.store.tiers.ipc import device_uuid
from headrace.store.tiers.placement import Placement, place

PlacementKind = Literal["replicate", "clique"]
NOT_BUILT = "this store cannot be built"  # if a rank fails
_OWN = ("machine", "gpu", "hot", "host")  # what may differ between ranks


@dataclass(frozen=True)
class Offer:
    """What a rank brings along."""

    machine: str
    gpu: str
    hot: int  # rows its GPU has room for
    host: int  # rows its machine's memory has room for
    shape: tuple[int, ...]
    dtype: str
    stride: int
    placement: PlacementKind
    shared: bool | None
    order: str  # a digest


@dataclass(frozen=True)
class Meeting:
    """What was agreed. Rows `far_begin` to `far_begin + far_rows` of the order are in host memory, once for `local` if `shared`."""

    ranks: Ranks
    placed: Placement
    local: list[int]  # ranks on this machine
    shared: bool
    far_begin: int
    far_rows: int

    @property
    def members(self) -> list[int]:
        """Ranks whose GPUs this one reads, itself included."""
        return self.placed.group(self.ranks.rank)

    @property
    def hot(self) -> int:
        """Rows on the GPUs of the members."""
        return self.placed.hot(self.ranks.rank)

    @property
    def rest(self) -> int:
        """Rows that this rank reads from host memory."""
        return max(0, self.far_begin + self.far_rows - self.hot)

    @property
    def alone(self) -> bool:
        """Nothing is held in common with another process."""
        return len(self.members) == 1 and not self.shared

    @property
    def far_ids(self) -> Tensor:
        """The nodes of host memory, in the order of its rows."""
        return self.placed.order[self.far_begin : self.far_begin + self.far_rows]

    def locations(self) -> tuple[Tensor, Tensor]:  # -> [nodes], [nodes]
        """Of every node the member that holds its row, or the number of members for host memory, or -1 for neither; and the row."""
        shard, row = self.placed.locate(torch.arange(len(self.placed.order)), self.ranks.rank)
        far = self.placed.heat.long() - self.far_begin
        in_host_memory = (shard < 0) & (far < self.far_rows)
        return torch.where(in_host_memory, len(self.members), shard), torch.where(in_host_memory, far, row)


def meet(
    ranks: Ranks,
    order: Tensor,  # [nodes]: all of them, hottest first
    *,
    shape: torch.Size,
    dtype: torch.dtype,
    stride: int,
    device: torch.device,
    hot: int,
    host: int,
    placement: PlacementKind,
    shared: bool | None,
) -> Meeting:
    """Agree with the other ranks, who all call this. The least room that any of them has counts for all.

    One host copy serves groups of different sizes if it begins where the smallest group's rows end; the larger ones pass over its
    first rows.
    """
    digest = blake2b(order.contiguous().numpy().data, digest_size=16).hexdigest()
    facts = (hot, host, tuple(shape), str(dtype), stride, placement, shared, digest)
    offers = together(ranks, lambda: Offer(machine(), device_uuid(device), *facts), consequence=NOT_BUILT)
    for name in (field.name for field in fields(Offer) if field.name not in _OWN):
        values = [getattr(offer, name) for offer in offers]
        if (other := next((rank for rank, value in enumerate(values) if value != values[0]), None)) is not None:
            raise ValueError(f"ranks must agree on {name}: rank 0 has {values[0]!r}, rank {other} has {values[other]!r}")
    access = None
    if placement == "clique":
        access = together(ranks, lambda: reach(offers, ranks.rank), consequence=NOT_BUILT)
    least = min(offer.hot for offer in offers)
    placed = place(order, capacity_rows=least, devices=range(ranks.size), placement=placement, access=access)
    local = [rank for rank, offer in enumerate(offers) if offer.machine == offers[ranks.rank].machine]
    shared = len(local) > 1 if shared is None else shared
    far_begin = min(placed.hot(rank) for rank in (local if shared else [ranks.rank]))
    far_rows = min(len(order) - far_begin, *(offers[rank].host for rank in local))
    return Meeting(ranks, placed, local, shared, far_begin, far_rows)


def reach(offers: list[Offer], rank: int) -> list[bool]:
    """Whose GPU this rank can read: of its machine, visible to it, and a peer or the same GPU."""
    seen = {device_uuid(torch.device("cuda", index)): index for index in range(torch.cuda.device_count())}
    mine = seen[offers[rank].gpu]

    def reaches(offer: Offer) -> bool:
        if offer.machine != offers[rank].machine or offer.gpu not in seen:
            return False
        return seen[offer.gpu] == mine or torch.cuda.can_device_access_peer(mine, seen[offer.gpu])

    return [reaches(offer) for offer in offers]
