"""`Hops`: a sample put together hop by hop, from neighbors that somebody else chose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from headrace._arrays import as_ids, first_outside
from headrace.sample.sample import Sample


class Hops:
    """Builds a `Sample` of chosen neighbors: numbers the nodes in order of first appearance, and writes the edges as rows.

    `frontier` holds the nodes to choose neighbors for: the seeds, then what the hop before added. So every node is expanded once.

    >>> from headrace.sample import Hops
    >>> hops = Hops([7, 3])
    >>> hops.add([0, 0, 1], [5, 3, 5])  # 7 has the neighbors 5 and 3, and 3 has the neighbor 5
    >>> hops.frontier.tolist()
    [5]
    >>> hops.add([0], [9])
    >>> sample = hops.sample()
    >>> sample.nodes.tolist(), sample.indptr.tolist(), sample.indices.tolist()
    ([7, 3, 5, 9], [0, 2, 3, 4], [2, 1, 2, 3])
    """

    def __init__(self, seeds: Any) -> None:
        self.nodes = self.frontier = as_ids(seeds, "seeds", dtype=torch.int64)
        self._counts: list[Tensor] = []  # of the edges of each row, hop by hop
        self._indices: list[Tensor] = []
        self._edge_ids: list[Tensor | None] = []
        self._num_nodes = [len(self.nodes)]

    def add(self, rows: Any, neighbors: Any, edge_id: Any | None = None) -> None:
        """Add a hop: `neighbors[i]`, the id of a node, is a neighbor of `frontier[rows[i]]`, by the edge `edge_id[i]`."""
        rows, neighbors = (as_ids(ids, name, dtype=torch.int64) for ids, name in ((rows, "rows"), (neighbors, "neighbors")))
        edge_id = None if edge_id is None else as_ids(edge_id, "edge_id")
        if len(rows) != len(neighbors) or (edge_id is not None and len(edge_id) != len(rows)):
            raise ValueError(f"rows, neighbors and edge_id must have one entry per edge, but there are {len(rows)} rows")
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self.frontier):
            at = first_outside(rows, 0, len(self.frontier))
            raise IndexError(f"rows[{at}] is {int(rows[at])}: the frontier has {len(self.frontier)} nodes")
        if bool((rows.diff() < 0).any()):
            order = rows.argsort(stable=True)
            rows, neighbors, edge_id = rows[order], neighbors[order], None if edge_id is None else edge_id[order]
        local, new = numbered(self.nodes, neighbors)
        self._counts.append(torch.bincount(rows, minlength=len(self.frontier)))
        self._indices.append(local)
        self._edge_ids.append(edge_id)
        self.frontier = neighbors[new]
        self.nodes = torch.cat([self.nodes, self.frontier])
        self._num_nodes.append(len(self.frontier))

    def sample(self) -> Sample:
        """The sample of all hops so far. It has edge ids if every hop was given them."""
        if not self._counts:
            raise ValueError("a sample has at least one hop: call add first")
        indptr = torch.zeros(sum(map(len, self._counts)) + 1, dtype=torch.int64)
        torch.cumsum(torch.cat(self._counts), 0, out=indptr[1:])
        edge_ids = [ids for ids in self._edge_ids if ids is not None]
        return Sample(
            self.nodes,
            indptr,
            torch.cat(self._indices),
            tuple(self._num_nodes),
            tuple(len(indices) for indices in self._indices),
            torch.cat(edge_ids) if len(edge_ids) == len(self._indices) else None,
        )


def numbered(known: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:  # -> int32 [keys], bool [keys]
    """Local ids of `keys`, and which of them are new: the first of each that is not among `known`, numbered behind these in turn.

    A key that `known` holds twice has the first of its places.
    """
    count = len(known)
    # Arrow numbers by hashing, which is several times as fast as torch's sorting.
    codes = pa.array(torch.cat([known, keys]).numpy()).dictionary_encode().indices.to_numpy()  # in order of first appearance
    first = np.ones(len(codes), dtype=bool)
    first[1:] = codes[1:] > np.maximum.accumulate(codes)[:-1]
    place = first.nonzero()[0]  # of each code
    distinct = int(first[:count].sum())
    place[distinct:] = np.arange(count, count + len(place) - distinct)
    return torch.from_numpy(place[codes[count:]]).int(), torch.from_numpy(first[count:])
