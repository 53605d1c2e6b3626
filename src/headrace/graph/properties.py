"""Measured properties of a graph."""

from __future__ import annotations

import torch

from headrace.graph.graph import Graph


def degree_histogram(graph: Graph) -> list[tuple[int, int, int]]:
    """(least degree, most degree, nodes) in bins that double: 0, 1, 2-3, 4-7, ... up to the largest degree."""
    if graph.num_nodes == 0:
        return []
    degrees = graph.degrees()
    edges = [0, 1]
    while edges[-1] <= int(degrees.max()):
        edges.append(edges[-1] * 2)
    bins = torch.bucketize(degrees, torch.tensor(edges), right=True) - 1
    counts = torch.bincount(bins, minlength=len(edges) - 1).tolist()
    return [(low, high - 1, count) for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)]
