"""`WholeRows`: the rows of a sequence of snapshots, all of them on this rank, as operators see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headrace.graph import Graph, Snapshots
from headrace.nn.cells import Cell
from headrace.nn.neighbor_sum import Where

_TOGETHER = 1 << 20  # edges up to which different graphs are summed over as one: beyond it a launch costs nothing beside the sum


class Group(NamedTuple):
    """Snapshots `first` to `first + window`, whose forecast begins right after."""

    first: int
    window: int

    @property
    def times(self) -> range:
        return range(self.first, self.first + self.window)


class WholeRows:
    """All rows of every snapshot. `SplitRows` has some of them and the same methods.

    num_nodes: of all snapshots together.
    nodes: which of them each snapshot has, None where it has all.
    x: features of the rows of each snapshot.
    """

    def __init__(self, snapshots: Snapshots) -> None:
        if snapshots.x is None:
            raise ValueError("these snapshots have no features: give x")
        self.snapshots, self.num_nodes = snapshots, snapshots.num_nodes
        self.x: list[Tensor] = snapshots.x
        self.nodes = snapshots.nodes
        self._copies: dict[tuple[int, int], Where] = {}

    def where(self, times: Sequence[int]) -> Where:
        """The graphs of some snapshots as one without edges between them, over the rows of these snapshots."""
        graphs = [self.snapshots.own_graph(at) for at in times]
        if len(graphs) == 1 or any(graph is not graphs[0] for graph in graphs):
            return block_diagonal(graphs)
        key = self.snapshots.same_as(times[0]), len(graphs)  # one graph several times: what follows from it is made once
        if key not in self._copies:
            self._copies[key] = block_diagonal(graphs)
        return self._copies[key]

    def copied(self, count: int) -> Where:
        """The first snapshot's graph so many times."""
        return self.where([0] * count)

    def fixed(self, cell: Cell, times: Sequence[int]) -> dict[int, Tensor | None]:
        """Sums of the features of some snapshots: one sum where their graphs are one or small."""
        graphs = [self.snapshots.own_graph(at) for at in times]
        if len(times) > 1 and len({id(graph) for graph in graphs}) == 1:
            wide = self._sums(cell, times[:1], [torch.cat([rows[at] for at in times], dim=1) for rows in self._both()])
            count, width = len(self.x[times[0]]), self.x[times[0]].shape[1]
            return dict(zip(times, wide.view(count, -1, len(times), width).permute(2, 0, 1, 3).flatten(2), strict=True))
        if sum(graph.num_edges for graph in graphs) <= _TOGETHER:
            together = self._sums(cell, times, [torch.cat([rows[at] for at in times]) for rows in self._both()])
            return dict(zip(times, together.split([len(self.x[at]) for at in times]), strict=True))
        return {at: self._sums(cell, [at], [rows[at] for rows in self._both()]) for at in times}

    def _both(self) -> list[list[Tensor]]:
        """Features of the rows that are here, then of all."""
        return [self.x]

    def _sums(self, cell: Cell, times: Sequence[int], rows: list[Tensor]) -> Tensor:
        made = cell.fixed(rows[0], self.where(times))
        assert made is not None
        return made


def block_diagonal(graphs: Sequence[Graph]) -> Graph:
    """Several graphs as one without edges between them: nodes of the second follow those of the first.

    >>> import headrace as hr
    >>> from headrace.snapshots.rows import block_diagonal
    >>> block_diagonal([hr.Graph.from_edges([0], [1]), hr.Graph.from_edges([1], [0])]).edge_index().tolist()
    [[0, 3], [1, 2]]
    """
    if len(graphs) == 1:
        return graphs[0]
    weights = [graph.weight for graph in graphs if graph.weight is not None]
    if weights and len(weights) < len(graphs):
        raise ValueError("some of these snapshots have weights and others have none: give all of them weights, or none")
    entries = rows = 0
    indptr, indices = [graphs[0].indptr[:1]], []
    for graph in graphs:
        indptr.append(graph.indptr[1:] + entries)
        indices.append(graph.indices + rows)
        entries, rows = entries + graph.num_edges, rows + graph.num_nodes
    return Graph.of_rows(torch.cat(indptr), torch.cat(indices), weight=torch.cat(weights) if weights else None)
