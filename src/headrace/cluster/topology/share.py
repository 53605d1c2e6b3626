"""`Share`: the rows of a graph that one rank owns, and what it answers from them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids
from headrace.cluster.topology.message import Group
from headrace.store import BufferPool, Owners

_PIECE = 1 << 22  # edges looked at together: their rows are written out


class Share:
    """Rows of a graph: row i lists the in-neighbors of `nodes[i]`, by their ids in the whole graph and in its order.

    >>> import torch
    >>> from headrace.store import TableOwners
    >>> owners = TableOwners(torch.tensor([1, 0, 1]), ranks=2)  # rank 1 owns the nodes 0 and 2
    >>> share = Share([0, 2, 3], [1, 0, 1], owners, rank=1)
    >>> share.nodes.tolist(), share.degrees.tolist()  # node 0 has itself as a neighbor, which does not count
    ([0, 2], [1, 1])
    """

    def __init__(self, indptr: Any, indices: Any, owners: Owners, rank: int) -> None:
        self.indptr, self.indices = as_ids(indptr, "indptr", dtype=torch.int64), as_ids(indices, "indices")
        rows, edges = len(self.indptr) - 1, len(self.indices)
        if rows != owners.size(rank):
            raise ValueError(f"indptr has {rows} rows, and this rank owns {owners.size(rank)} nodes: pass its own rows alone")
        if int(self.indptr[0]) != 0 or int(self.indptr[-1]) != edges:
            ends = f"{int(self.indptr[0])} to {int(self.indptr[-1])}"
            raise ValueError(f"indptr must rise from 0 to the {edges} entries of indices, but goes from {ends}")
        most = torch.iinfo(self.indices.dtype).max
        longest = int(self.indptr.diff().max()) if rows else 0
        if owners.num_nodes > most or longest > most:
            raise ValueError(f"{owners.num_nodes} nodes and rows of up to {longest} entries need int64 indices")
        self.num_nodes = owners.num_nodes
        self.nodes = owners.ids_of(rank).to(self.indices.dtype)

    def draw(
        self, groups: Sequence[Group], pool: BufferPool, *, fanout: int, hop: int, replace: bool, threads: int
    ) -> tuple[Tensor, list[int]]:
        """Neighbors for groups of rows, each drawn with its key: per group how many each row takes, then these.

        Also the lengths of the groups' answers.
        """
        drawn, lengths = _native.draw_part(
            self.indptr,
            self.indices,
            self.nodes,
            np.concatenate([rows for _, rows in groups]) if groups else np.empty(0, np.int64),
            sizes=np.array([len(rows) for _, rows in groups], np.int64),
            keys=np.array([key for key, _ in groups], np.uint64),
            pool=pool.native,
            fanout=fanout,
            hop=hop,
            replace=replace,
            threads=threads,
            num_nodes=self.num_nodes,
        )
        return torch.from_numpy(drawn), lengths.tolist()

    @cached_property
    def degrees(self) -> Tensor:
        """In-degrees of the rows, edges from a node to itself not counted, in the type of the indices.  # [rows]"""
        degrees = self.indptr.diff()
        begin = 0
        while begin < len(self.nodes):
            start = int(self.indptr[begin])
            end = max(int(torch.searchsorted(self.indptr, start + _PIECE, right=True)) - 1, begin + 1)
            targets = torch.repeat_interleave(torch.arange(begin, end), self.indptr[begin : end + 1].diff())
            own = targets[self.indices[start : int(self.indptr[end])] == self.nodes[targets]]
            degrees[begin:end] -= torch.bincount(own - begin, minlength=end - begin)
            begin = end
        return degrees.to(self.indices.dtype)
