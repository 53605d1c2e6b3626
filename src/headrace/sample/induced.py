"""Induced subgraphs: all edges between sampled nodes, in place of those that were drawn."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headrace.graph import EdgeType, Graph, HeteroGraph
from headrace.sample.hetero import HeteroSampler
from headrace.sample.neighbor import NeighborSampler


class Induced:
    """Finds the edges of a graph between given nodes.

    >>> import headrace as hr, torch
    >>> from headrace.sample.induced import Induced
    >>> graph = hr.Graph.from_edges([5, 6, 7], [0, 5, 0], 8)
    >>> Induced(graph).edges(torch.tensor([0, 5, 6]))
    (tensor([[1, 2],
            [0, 1]]), tensor([0, 2]))
    """

    def __init__(self, graph: Graph) -> None:
        self._rows = NeighborSampler(graph, [-1], mode="cpu")

    def edges(self, nodes: Tensor, *, threads: int | None = None) -> tuple[Tensor, Tensor]:  # -> [2, edges], [edges]
        """Edges between `nodes`, each a different one, as positions among them, sorted by target; and the edges' ids."""
        sample = self._rows.sample(nodes, edge_ids=True, threads=threads)
        within = sample.indices < len(nodes)
        assert sample.edge_id is not None
        return sample.edge_index()[:, within], sample.edge_id[within]


class HeteroInduced:
    """The same by node and edge types."""

    def __init__(self, graph: HeteroGraph) -> None:
        self._rows = HeteroSampler(graph, [-1])

    def edges(self, nodes: Mapping[str, Tensor], *, threads: int | None = None) -> dict[EdgeType, tuple[Tensor, Tensor]]:
        """Edges of every type between `nodes`, each a different one of its type, and the edges' ids."""
        sample = self._rows.sample(nodes, edge_ids=True, threads=threads)
        assert sample.edge_id is not None
        between = {}
        for edge_type, indices in sample.indices.items():
            within = indices < len(nodes.get(edge_type[0], torch.empty(0)))
            between[edge_type] = (sample.edge_index(edge_type)[:, within], sample.edge_id[edge_type][within])
        return between
