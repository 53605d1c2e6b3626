"""`Owners`: which rank owns a node's row, and where in that rank's share it lies."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from hashlib import blake2b
from math import gcd
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

_MOST_NODES = 1 << 40  # below these, products of two numbers stay inside 64 bits
_MOST_RANKS = 1 << 22


@runtime_checkable
class Owners(Protocol):
    """Which rank owns which node, as a store over several ranks asks it. All ranks must hold the same one."""

    @property
    def num_nodes(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    @property
    def fingerprint(self) -> str:
        """Equal on two ranks if their owners are."""
        ...

    def locate(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Owner and row in the owner's share, on the device of `ids`.  # [n] -> [n], [n] int64"""
        ...

    def size(self, rank: int) -> int:
        """Rows that `rank` owns."""
        ...

    def ids_of(self, rank: int) -> Tensor:
        """The nodes that `rank` owns, in the order of its rows."""
        ...

    def replicas(self, rank: int) -> Tensor:
        """The nodes of other ranks of which `rank` should keep a copy, hottest first."""
        ...

    def to(self, device: torch.device) -> Owners:
        """The same, with its tables (if any) on `device`, so that ids there are located without leaving it."""
        ...


@dataclass(frozen=True)
class HashOwners:
    """Nodes spread over ranks by arithmetic alone: no table, however many nodes. `hash_owners` builds it."""

    num_nodes: int
    ranks: int
    factor: int
    shift: int

    @property
    def fingerprint(self) -> str:
        return f"hash {self.num_nodes} {self.ranks} {self.factor} {self.shift}"

    def size(self, rank: int) -> int:
        return self._start(rank + 1) - self._start(rank)

    def locate(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        place = (_times(self.factor, ids.long(), self.num_nodes) + self.shift) % max(1, self.num_nodes)
        owner = (self.ranks * (place + 1) - 1) // max(1, self.num_nodes)  # the r with start(r) <= place < start(r + 1)
        starts = torch.arange(self.ranks, device=ids.device) * self.num_nodes // self.ranks
        return owner, place - starts[owner]

    def ids_of(self, rank: int) -> Tensor:
        place = torch.arange(self._start(rank), self._start(rank + 1)) - self.shift
        place = place % max(1, self.num_nodes)
        return _times(pow(self.factor, -1, self.num_nodes) if self.num_nodes > 1 else 0, place, self.num_nodes)

    def replicas(self, rank: int) -> Tensor:
        return torch.empty(0, dtype=torch.int64)

    def to(self, device: torch.device) -> HashOwners:
        return self

    def _start(self, rank: int) -> int:
        return rank * self.num_nodes // self.ranks


def hash_owners(num_nodes: int, ranks: int, seed: int = 0) -> HashOwners:
    """Every node to one of `ranks` ranks, evenly (shares differ by one row at most), whatever its neighbors or its degree.

    Multiplicative hashing by a number near the golden section of `num_nodes` and coprime to it: a permutation of the nodes, cut
    into even parts. So the owner, the row and their inverse are arithmetic, and runs of ids, such as nodes sorted by degree, go
    to all ranks alike. One rank has all nodes in their own order, so neighbors that are near each other stay so.

    >>> from headrace.store import hash_owners
    >>> owners = hash_owners(10, ranks=3)
    >>> [owners.ids_of(rank).tolist() for rank in range(3)]
    [[0, 3, 6], [9, 2, 5], [8, 1, 4, 7]]
    """
    _check_counts(num_nodes, ranks)
    if ranks == 1:
        return HashOwners(num_nodes=num_nodes, ranks=1, factor=1, shift=0)
    # The seed moves the factor only a little: far from the golden section, runs of ids would fall to one rank.
    factor = max(1, round(num_nodes * 0.6180339887498949) + seed % 97) % max(1, num_nodes) or 1
    while gcd(factor, num_nodes) != 1:
        factor += 1
    shift = (seed * 0x9E3779B97F4A7C15) % max(1, num_nodes)
    return HashOwners(num_nodes=num_nodes, ranks=ranks, factor=factor, shift=shift)


class TableOwners:
    """Owner and row of every node from a table, of 5 bytes a node while there are at most 256 ranks and 2^31 rows in a share.

    `owner[v]` is the rank of node v; its row is its place among that rank's nodes, by id. `replicas[r]` lists the nodes of which
    rank r keeps a copy.

    >>> import torch
    >>> from headrace.store import TableOwners
    >>> owners = TableOwners(torch.tensor([1, 0, 1]), ranks=2)
    >>> owners.locate(torch.tensor([2, 1]))
    (tensor([1, 0]), tensor([1, 0]))
    """

    def __init__(self, owner: Tensor, ranks: int, *, replicas: list[Tensor] | None = None) -> None:
        _check_counts(len(owner), ranks)
        owner = owner.cpu()
        if len(owner) and (int(owner.min()) < 0 or int(owner.max()) >= ranks):
            raise ValueError(f"owners must be ranks 0 to {ranks - 1}, got {int(owner.min())} to {int(owner.max())}")
        if replicas is not None and len(replicas) != ranks:
            raise ValueError(f"replicas must be one list of nodes per rank: {len(replicas)} lists for {ranks} ranks")
        self.ranks = ranks
        self.owner = owner.to(torch.uint8 if ranks <= 256 else torch.int32)
        self._sizes = torch.bincount(owner.long(), minlength=ranks).tolist()
        self.row = torch.empty(len(owner), dtype=torch.int32 if max(self._sizes, default=0) < 1 << 31 else torch.int64)
        for rank in range(ranks):
            mine = self.ids_of(rank)
            self.row[mine] = torch.arange(len(mine), dtype=self.row.dtype)
        self._replicas = [torch.as_tensor(r).long().cpu() for r in replicas] if replicas is not None else None

    @property
    def num_nodes(self) -> int:
        return len(self.owner)

    @property
    def fingerprint(self) -> str:
        return f"table {self.ranks} {blake2b(self.owner.cpu().numpy().data, digest_size=16).hexdigest()}"

    def size(self, rank: int) -> int:
        return int(self._sizes[rank])

    def locate(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        nodes = ids.long().to(self.owner.device)
        return self.owner[nodes].long().to(ids.device), self.row[nodes].long().to(ids.device)

    def ids_of(self, rank: int) -> Tensor:
        return (self.owner == rank).nonzero().flatten().cpu()

    def replicas(self, rank: int) -> Tensor:
        return torch.empty(0, dtype=torch.int64) if self._replicas is None else self._replicas[rank]

    def to(self, device: torch.device) -> TableOwners:
        if device == self.owner.device:
            return self
        moved = copy(self)
        moved.owner, moved.row = self.owner.to(device), self.row.to(device)
        return moved


def _check_counts(num_nodes: int, ranks: int) -> None:
    if not 1 <= ranks <= _MOST_RANKS:
        raise ValueError(f"ranks must be at least 1 and at most {_MOST_RANKS}, not {ranks}")
    if not 0 <= num_nodes < _MOST_NODES:
        raise ValueError(f"num_nodes must be from 0 to 2^40 - 1, not {num_nodes}")


def _times(factor: int, numbers: Tensor, modulus: int) -> Tensor:
    """`factor * numbers mod modulus`, for both below a modulus of at most 2^40, without leaving 64 bits."""
    if modulus <= 1:
        return torch.zeros_like(numbers)
    if modulus <= 3_037_000_499:  # the square root of 2^63
        return factor * numbers % modulus
    high = factor * (numbers >> 20) % modulus
    return ((high << 20) % modulus + factor * (numbers & 0xFFFFF) % modulus) % modulus
