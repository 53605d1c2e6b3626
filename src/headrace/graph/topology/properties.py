"""Measured properties of a graph: what kernels, orders and plans are chosen by."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids, thread_count
from headrace.graph.graph import Graph

_SAMPLE = 4096  # windows: 130,000 rows of 32, enough for two digits of the reuse


@dataclass(frozen=True)
class Properties:
    """What `properties` measured. Degrees are in-degrees: the lengths of the rows."""

    nodes: int
    edges: int
    mean_degree: float
    max_degree: int
    degree_cv: float  # the coefficient of variation: standard deviation over mean
    empty_rows: int  # nodes without an edge into them
    isolated: int  # nodes without an edge into them or out of them
    hubs: int  # rows more than 16 times as long as the mean
    edge_span: float  # GNNAdvisor's AES: the mean of |u - v| over the edges
    window: int  # rows of a window
    window_reuse: float  # edges per unique column of a window, see `window_reuse`
    symmetric: bool  # see `Graph.is_symmetric`
    row_bytes: int | None = None  # of all nodes' rows of the width that was given

    def as_dict(self) -> dict[str, float | None]:
        """All of it under the same names, for JSON."""
        return asdict(self)


def properties(
    graph: Graph,
    dim: int | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    window: int = 32,
    sample: int = _SAMPLE,
    threads: int | None = None,
) -> Properties:
    """Measure a graph, and with `dim` the size of its rows of features, natively: one pass over the edges and a sample of windows.

    This is the extractor of GNNAdvisor (OSDI'21, section 4) with the window reuse beside the edge span: the span says how far
    apart the ends of an edge are, the reuse how many reads a kernel saves by looking at `window` rows at a time.

    >>> import headrace as hr
    >>> from headrace.graph.topology.properties import properties
    >>> found = properties(hr.Graph.from_edges([0, 1, 2], [1, 2, 0]), dim=8)
    >>> found.mean_degree, found.symmetric, found.row_bytes
    (1.0, False, 96)
    """
    if dim is not None and dim < 1:
        raise ValueError(f"dim must be at least 1, not {dim}")
    nodes, edges = graph.num_nodes, graph.num_edges
    summary = graph.summary(threads=threads)
    mean = edges / nodes if nodes else 0.0
    variance = max(summary["squares"] / nodes - mean * mean, 0.0) if nodes else 0.0
    return Properties(
        nodes=nodes,
        edges=edges,
        mean_degree=mean,
        max_degree=int(summary["max_degree"]),
        degree_cv=variance**0.5 / mean if mean else 0.0,
        empty_rows=int(summary["empty_rows"]),
        isolated=int(summary["isolated"]),
        hubs=int(summary["hubs"]),
        edge_span=summary["span"] / edges if edges else 0.0,
        window=window,
        window_reuse=window_reuse(graph, window, sample=sample, threads=threads),
        symmetric=bool(summary["symmetric"]),
        row_bytes=None if dim is None else nodes * dim * dtype.itemsize,
    )


def window_reuse(
    graph: Graph, rows: int = 32, *, order: Tensor | None = None, sample: int = _SAMPLE, threads: int | None = None
) -> float:
    """Edges per unique column in windows of `rows` consecutive rows: how often a fetched row serves, if a window shares it.

    It is 1 where no two edges of a window have one source, and at the most `rows` in a graph without repeated edges. At most
    `sample` windows are looked at, evenly spread over the graph, so the result is a function of the arguments. `order` asks for
    the reuse that the graph would have in that order. The reuse in the order as it is, is found once and kept.

    >>> import headrace as hr
    >>> from headrace.graph.topology.properties import window_reuse
    >>> window_reuse(hr.Graph.from_edges([7, 7, 7, 3], [0, 1, 2, 3], 8))
    2.0
    """
    for name, value in (("rows", rows), ("sample", sample)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    visited = None if order is None else as_ids(order, "order", dtype=torch.int64)
    if visited is not None and len(visited) != graph.num_nodes:
        raise ValueError(f"order has {len(visited)} entries for {graph.num_nodes} nodes")

    def measure() -> float:
        entries, unique = _native.window_reuse(
            graph.indptr.cpu(), graph.indices.cpu(), visited, window=rows, sample=sample, threads=thread_count(threads)
        )
        return entries / unique if unique else 1.0

    return measure() if visited is not None else graph.derived(f"window reuse of {rows} rows, {sample} windows", measure)


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
