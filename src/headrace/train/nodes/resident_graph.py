"""The edges between resident nodes, as a graph over the rows of the slots that they are in."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.graph import Graph


def resident_graph(graph: Graph, places: dict[int, int], *, size: int, slots: int) -> Graph:
    """The edges of `graph` with both ends in a partition of `places`; node v is row `slot * size + v % size` of its slot.

    Partitions are runs of `size` nodes, and `places` names the slot of each that is resident. Rows keep the order of their edges,
    so with every partition in its own place it is the same graph.

    >>> import headrace as hr
    >>> graph = hr.Graph.from_edges([0, 2, 3], [1, 0, 2])
    >>> resident_graph(graph, {1: 0}, size=2, slots=1).edge_index().tolist()
    [[1], [0]]
    """
    moves = torch.zeros(-(-graph.num_nodes // size) + 1, dtype=torch.int64)  # from an id to its row
    there = torch.zeros(len(moves), dtype=torch.bool)
    for partition, slot in places.items():
        moves[partition], there[partition] = (slot - partition) * size, True
    degrees = torch.zeros(slots * size, dtype=torch.int64)
    columns: dict[int, Tensor] = {}
    kind = graph.indices.dtype if slots * size <= torch.iinfo(graph.indices.dtype).max else torch.int64
    for partition, slot in places.items():
        begin, end = partition * size, min((partition + 1) * size, graph.num_nodes)
        pointers = graph.indptr[begin : end + 1]
        sources = graph.indices[int(pointers[0]) : int(pointers[-1])].long()
        owner = sources.div(size, rounding_mode="floor")
        kept = there[owner]
        columns[slot] = (sources[kept] + moves[owner[kept]]).to(kind)
        before = torch.nn.functional.pad(kept.cumsum(0), (1, 0))
        degrees[slot * size : slot * size + end - begin] = before[pointers - pointers[0]].diff()
    indices = torch.cat([columns[slot] for slot in sorted(columns)]) if columns else torch.empty(0, dtype=kind)
    return Graph(torch.nn.functional.pad(degrees.cumsum(0), (1, 0)), indices)
