"""What a partition came to: edges cut, balance, ghosts and bytes."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace.graph.saved.io import read_version
from headrace.graph.saved.kinds import PARTITION


@dataclass(frozen=True)
class Share:
    """What one part holds.

    `cut_edges` come from nodes of other parts; `ghosts` are the distinct nodes that they come from.
    """

    nodes: int
    edges: int
    cut_edges: int
    ghosts: int
    bytes: int = 0


class Neighbors:
    """Counts the edges of a part whose neighbors other parts own, in pieces; `own[v]` says whether it owns node v."""

    def __init__(self, own: Tensor) -> None:
        self._own, self._seen = own, torch.zeros_like(own)
        self.edges = self.cut_edges = 0

    def add(self, neighbors: Tensor) -> None:
        nodes = neighbors.long()
        self._seen[nodes] = True
        self.edges += len(nodes)
        self.cut_edges += len(nodes) - int(self._own[nodes].sum())

    @property
    def ghosts(self) -> int:
        """Distinct neighbors that other parts own."""
        return int((self._seen & ~self._own).sum())


@dataclass(frozen=True)
class PartitionSummary:
    """What `partition` wrote, and how well it cut."""

    path: Path
    by: str
    columns: bool
    shares: tuple[Share, ...]
    left_out: tuple[str, ...]
    seconds: float

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> PartitionSummary:
        """Of a partition that was written before; `seconds` are 0."""
        folder = Path(path)
        told = read_version(folder, lambda reader: reader.info, kind=PARTITION)
        try:
            shares = tuple(Share(**share) for share in told["shares"])
            return cls(folder, told["by"], told["columns"], shares, tuple(told["left_out"]), 0.0)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{folder} is damaged: its list of parts lacks something ({error}); partition again") from None

    @property
    def parts(self) -> int:
        return len(self.shares)

    @property
    def num_nodes(self) -> int:
        return sum(share.nodes for share in self.shares)

    @property
    def num_edges(self) -> int:
        return sum(share.edges for share in self.shares)

    @property
    def edge_cut(self) -> float:
        """The share of edges whose ends are in different parts."""
        return sum(share.cut_edges for share in self.shares) / max(1, self.num_edges)

    @property
    def node_balance(self) -> float:
        """Nodes of the largest part over the mean: 1 is even."""
        return _balance([share.nodes for share in self.shares])

    @property
    def edge_balance(self) -> float:
        """Edges of the part that has most, over the mean."""
        return _balance([share.edges for share in self.shares])

    @property
    def ghosts(self) -> int:
        """Nodes that parts have as neighbors and do not own, a node once for each such part."""
        return sum(share.ghosts for share in self.shares)

    @property
    def bytes(self) -> int:
        """Bytes of all parts."""
        return sum(share.bytes for share in self.shares)

    def figures(self) -> dict[str, Any]:
        """What the cut came to, as `partition.json` has it."""
        names = ("edge_cut", "node_balance", "edge_balance", "ghosts", "bytes")
        return {name: getattr(self, name) for name in names} | {"shares": [asdict(share) for share in self.shares]}


def _balance(sizes: list[int]) -> float:
    return max(sizes) * len(sizes) / sum(sizes) if sum(sizes) else 1.0
