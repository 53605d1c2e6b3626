"""Which hot row lives on which GPU: copied to each, or spread over GPUs that can read each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor


def peer_access(devices: Sequence[int] | None = None) -> Tensor:
    """Which of the GPUs can read which other's memory, as the driver says.  # -> [k, k] bool

    >>> from headrace.store import peer_access
    >>> peer_access([]).shape
    torch.Size([0, 0])
    """
    if devices is None:
        devices = range(torch.cuda.device_count())
    access = torch.eye(len(devices), dtype=torch.bool)
    for i, reader in enumerate(devices):
        for j, holder in enumerate(devices):
            # A GPU listed twice (two processes that share one) reaches itself.
            access[i, j] = reader == holder or torch.cuda.can_device_access_peer(reader, holder)
    return access


def cliques(access: Tensor | Sequence[Sequence[bool]]) -> list[list[int]]:
    """Devices parted into groups in which each can read every other: the largest group first, then the largest of the rest.

    Access must be mutual to count. Of groups of one size that with the lowest devices is taken, so all processes find the same.

    >>> from headrace.store import cliques
    >>> cliques([[1, 1, 0], [1, 1, 0], [0, 1, 1]])
    [[0, 1], [2]]
    """
    matrix = torch.as_tensor(access, dtype=torch.bool) if len(access) else torch.zeros(0, 0, dtype=torch.bool)
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"access must be a square matrix, one row and one column a device, not of shape {list(matrix.shape)}")
    mutual = (matrix & matrix.T).tolist()
    left = list(range(len(mutual)))
    sets = []
    while left:
        best = _largest([], left, mutual, [])
        sets.append(best)
        left = [device for device in left if device not in best]
    return sets


def _largest(clique: list[int], candidates: list[int], mutual: list[list[bool]], best: list[int]) -> list[int]:
    """The first largest clique that extends `clique`, or `best` if none is larger (branch and bound, in order of devices)."""
    if len(clique) > len(best):
        best = clique
    for at, device in enumerate(candidates):
        if len(clique) + len(candidates) - at <= len(best):
            break
        rest = [other for other in candidates[at + 1 :] if mutual[device][other]]
        best = _largest([*clique, device], rest, mutual, best)
    return best


@dataclass(frozen=True)
class Placement:
    """Where the hot rows are. A node is known by its heat: its place in `order`, 0 the hottest.

    In a group of m devices the node of heat h is on the group's device h mod m, in row h // m: no table but heat itself, and the
    shards of a group are about equally hot and, to a row, equally large. `hot(device)` nodes are within a device's reach.
    """

    order: Tensor  # nodes, hottest first
    capacity_rows: int
    groups: list[list[int]]  # of device numbers, as given in `devices`
    heat: Tensor = field(repr=False)  # [num_nodes] int32 or int64: a node's place in `order`

    def group(self, device: int) -> list[int]:
        """The devices whose shards `device` reads, itself included, in shard order."""
        for group in self.groups:
            if device in group:
                return group
        raise ValueError(f"device {device} has no place here: devices are {sorted(d for g in self.groups for d in g)}")

    def hot(self, device: int) -> int:
        """How many of the hottest nodes `device` finds on its group."""
        return min(len(self.order), self.capacity_rows * len(self.group(device)))

    def shard(self, device: int) -> Tensor:
        """The nodes whose rows `device` holds, in the order of its rows."""
        group = self.group(device)
        return self.order[group.index(device) : self.hot(device) : len(group)]

    def locate(self, ids: Tensor, device: int) -> tuple[Tensor, Tensor]:
        """Shard (a place in `group(device)`) and row of nodes as `device` reads them; -1, -1 where the row is cold.  # [n]"""
        heat = self.heat[ids.long().to(self.heat.device)].long()
        size = len(self.group(device))
        cold = heat >= self.hot(device)
        return torch.where(cold, -1, heat % size).to(ids.device), torch.where(cold, -1, heat // size).to(ids.device)


def place(
    order: Tensor,
    *,
    capacity_rows: int,
    devices: Sequence[int],
    placement: Literal["replicate", "clique"] = "replicate",
    access: Tensor | Sequence[Sequence[bool]] | None = None,
) -> Placement:
    """Place the hottest rows on `devices`, each of which has room for `capacity_rows`.

    `order` is a permutation of all nodes, hottest first. "replicate" puts the same hottest rows on each device. "clique" spreads
    them over devices that can read each other (`access`; by default what the driver says), so a group of m holds m times as many,
    and each group its own copy.

    >>> import torch
    >>> from headrace.store import place
    >>> placed = place(torch.tensor([3, 1, 0, 2]), capacity_rows=1, devices=[0, 1], placement="clique", access=[[1, 1], [1, 1]])
    >>> placed.shard(0).tolist(), placed.shard(1).tolist()
    ([3], [1])
    >>> placed.locate(torch.tensor([1, 0]), 0)
    (tensor([ 1, -1]), tensor([ 0, -1]))
    """
    if placement not in ("replicate", "clique"):
        raise ValueError(f"placement must be 'replicate' or 'clique', not {placement!r}")
    if capacity_rows < 0:
        raise ValueError(f"capacity_rows must not be negative, got {capacity_rows}")
    if len(set(devices)) != len(devices) or not devices:
        raise ValueError(f"devices must be at least one number, each once, not {list(devices)}")
    if order.dim() != 1 or order.dtype.is_floating_point:
        raise ValueError(f"order must list nodes, integers in one dimension, not {order.dtype} of shape {list(order.shape)}")
    heat = torch.full((len(order),), -1, dtype=torch.int32 if len(order) < 1 << 31 else torch.int64)
    if len(order) and (int(order.min()) < 0 or int(order.max()) >= len(order)):
        raise ValueError(f"order must be a permutation of 0 to {len(order) - 1}, it holds {int(order.min())} to {int(order.max())}")
    heat[order.long()] = torch.arange(len(order), dtype=heat.dtype)
    if bool((heat < 0).any()):
        raise ValueError(f"order must name every node once; node {int((heat < 0).nonzero()[0])} is missing")
    if placement == "replicate":
        groups = [[device] for device in devices]
    else:
        access = peer_access(devices) if access is None else access
        if len(access) != len(devices):
            raise ValueError(f"access is for {len(access)} devices, there are {len(devices)}")
        groups = [[devices[i] for i in clique] for clique in cliques(access)]
    return Placement(order=order, capacity_rows=capacity_rows, groups=groups, heat=heat)
