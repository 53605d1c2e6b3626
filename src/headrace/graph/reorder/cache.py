"""What a cache makes of an order, simulated; and what this machine's cache is."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import thread_count
from headrace.graph.graph import Graph
from headrace.graph.topology.permutation import checked_order

_ASSUMED_CACHE = 32 << 20  # where the system does not tell
_TABLE = 256 << 20  # bytes that rows are gathered from at random to time memory: more than most caches
_GATHERED = 32 << 20


def cache_misses(
    graph: Graph,
    order: Tensor | None = None,
    *,
    cache_bytes: int,
    row_bytes: int,
    windows: int = 8,
    threads: int | None = None,
) -> float:
    """The share of reads that miss when neighbors' rows are summed, one node after the other, through a cache of `cache_bytes`.

    The cache holds whole rows of `row_bytes` and drops the one used longest ago. `windows` runs of nodes, evenly spread, are
    simulated, each long enough to fill the cache first; a graph that is not much larger than that is simulated whole, and then
    the first read of a row is a miss. With `order` the nodes are taken in that order; nothing is relabeled for it.

    >>> import headrace as hr
    >>> ring = hr.Graph.from_edges(range(100), [*range(1, 100), 0], undirected=True)
    >>> hr.reorder.cache_misses(ring, cache_bytes=1600, row_bytes=400)
    0.51
    """
    for name, value in (("cache_bytes", cache_bytes), ("row_bytes", row_bytes), ("windows", windows)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    visited = None if order is None else checked_order(order, graph.num_nodes, threads)
    counted, missed = _native.simulate_lru(
        graph.indptr.cpu(),
        graph.indices.cpu(),
        visited,
        capacity=max(cache_bytes // row_bytes, 1),
        windows=windows,
        threads=thread_count(threads),
    )
    return missed / counted if counted else 0.0


def last_level_cache() -> int:
    """Bytes of the largest cache of this machine's processors, 32 MiB where the system does not tell."""
    sizes = [_ASSUMED_CACHE // 1024]
    texts = [file.read_text().strip() for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    known = [int(text[:-1]) for text in texts if text[:-1].isdigit() and text.endswith("K")]
    return max(known or sizes) * 1024


def gather_rate(row_bytes: int, *, threads: int | None = None) -> float:
    """Bytes per second at which this machine reads rows at random places of its memory: timed, in a tenth of a second."""
    rows = max(_TABLE // row_bytes, 1)
    table = torch.ones(rows, row_bytes, dtype=torch.uint8)
    ids = torch.randint(rows, (max(_GATHERED // row_bytes, 1),), generator=torch.Generator().manual_seed(0))
    out = torch.empty(len(ids), row_bytes, dtype=torch.uint8)
    times = []
    for _ in range(3):  # the first one touches the pages of `out`
        start = time.perf_counter()
        _native.gather(table, ids, out, thread_count(threads))
        times.append(time.perf_counter() - start)
    return out.nbytes / min(times)
