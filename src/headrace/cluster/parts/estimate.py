"""How much memory and disk a partition takes, before it begins."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.cluster.parts.owners import By, check_by
from headrace.graph import Dataset

_PIECES = 128 << 20  # bytes of pieces that are copied, and what is computed of them


@dataclass(frozen=True)
class Estimate:
    """Bytes that are needed at most, beside those of the dataset."""

    memory: int
    disk: int


def estimate(data: Dataset, *, parts: int, by: By = "hash") -> Estimate:
    """What `partition` needs. Memory grows with the number of nodes alone, but by "rabbit" and "metis", which hold all edges.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=1000, edges=20_000, classes=4, features=16)
    >>> 150_000 < estimate(data, parts=4).disk < 300_000
    True
    """
    check_by(by)
    nodes, edges, share = data.num_nodes, data.num_edges, data.num_nodes // max(1, parts) + 1
    entry = 0 if by == "hash" else 1 if parts <= 256 else 4  # of a node in the table of owners
    graph = data.graph
    beside = [graph.indices, graph.weight, graph.time, graph.edge_id, data.x, data.y]
    disk = 8 * (nodes + parts) + sum(array.nbytes for array in beside if array is not None)
    disk += sum(ids.nbytes + 8 * len(ids) for ids in data.splits.values())
    disk += entry * nodes * (parts + 1) + (parts + 1) * (16 << 10)  # lists of files
    writing = (entry + 4 * bool(entry) + 2) * nodes + 40 * share
    finding = {
        "hash": 0,
        "ldg": (2 * entry + 13) * nodes,
        "rabbit": 12 * edges + 100 * nodes,
        "metis": 160 * edges + 100 * nodes,
    }[by]
    return Estimate(memory=_PIECES + max(writing, finding), disk=disk)
