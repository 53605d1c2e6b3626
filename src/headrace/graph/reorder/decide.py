"""Whether to reorder: seconds that would be saved against seconds that it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from headrace.graph.graph import Graph
from headrace.graph.reorder.cache import cache_misses, gather_rate, last_level_cache
from headrace.graph.reorder.orders import ORDERS, Progress, order_by_name

# Edges per second of processor time that each order takes, and that relabeling takes: measured with 2.4 M nodes and 123.7 M edges
# on a server's processor shared with other work, the slowest of a few runs (rcm: of one). METIS was not measured, so it has none.
_EDGES_PER_SECOND = {"rabbit": 8e6, "first_neighbor": 3.7e8, "degree": 1e8, "rcm": 1.7e7}
_RELABELED_PER_SECOND = 4.6e7


@dataclass(frozen=True, eq=False)
class Decision:
    """An order or none, what it would save and cost over the planned epochs, and why, in words."""

    name: str | None  # of the order; None: leave the graph as it is
    order: Tensor | None  # [num_nodes]
    saved: float  # seconds over all epochs, by the best order that was looked at
    cost: float  # seconds of finding that order and relabeling
    misses: float  # share of reads that miss the cache as the graph is
    tried: dict[str, float]  # the same under every order that was computed
    reason: str

    def as_dict(self) -> dict[str, object]:
        """All but the permutation, for JSON."""
        return {name: getattr(self, name) for name in ("name", "saved", "cost", "misses", "tried", "reason")}


def auto(
    graph: Graph,
    dim: int,
    *,
    epochs: int,
    passes: int = 2,
    dtype_bytes: int = 4,
    cache_bytes: int | None = None,
    bytes_per_second: float | None = None,
    orders: Sequence[str] = ("first_neighbor", "rabbit"),
    progress: Progress | None = None,
    threads: int | None = None,
) -> Decision:
    """Choose the order whose predicted saving exceeds its cost by most, or none.

    A read that misses costs `dim * dtype_bytes / bytes_per_second`; misses come from `cache_misses`. `passes` is how often an epoch
    sums over all edges at that width: two for a layer forward and backward. The cache is this machine's largest and the rate is
    timed, unless they are given (give a GPU's second-level cache and bandwidth for one). An order is computed only if it could
    still win: if every read but the first of each row became a hit and that saved more than the order costs.

    >>> import headrace as hr
    >>> ring = hr.Graph.from_edges(range(100), [*range(1, 100), 0], undirected=True)
    >>> print(hr.reorder.auto(ring, 64, epochs=10, cache_bytes=1 << 20, bytes_per_second=1e10).reason)
    as it is: no order can save more than 0.000 s in 10 epochs, for 50.0 % of reads miss a cache of 1 MiB and at least 50.0 % must
    """
    for name, value in (("dim", dim), ("epochs", epochs), ("passes", passes), ("dtype_bytes", dtype_bytes)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    if unknown := [name for name in orders if name not in _EDGES_PER_SECOND]:
        what = "its cost is not known" if unknown[0] in ORDERS else "there is no such order"
        raise ValueError(f"auto cannot choose {unknown[0]!r}, for {what}: choose among {', '.join(_EDGES_PER_SECOND)}")
    row_bytes = dim * dtype_bytes
    cache = last_level_cache() if cache_bytes is None else cache_bytes
    rate = gather_rate(row_bytes, threads=threads) if bytes_per_second is None else bytes_per_second
    if not rate > 0:
        raise ValueError(f"bytes_per_second must be positive, not {rate}")

    def misses(order: Tensor | None) -> float:
        return cache_misses(graph, order, cache_bytes=cache, row_bytes=row_bytes, threads=threads)

    # Every row that is read is fetched once at least.
    read = graph.num_nodes - int(graph.summary(threads=threads)["unread"])
    least = read / max(graph.num_edges, 1)
    now = misses(None)
    second_per_share = epochs * passes * graph.num_edges * row_bytes / rate
    bound = max(now - least, 0.0) * second_per_share
    costs = {name: _cost(graph, name, row_bytes=row_bytes, rate=rate) for name in orders}

    tried: dict[str, float] = {}
    best: tuple[float, str | None, Tensor | None] = (0.0, None, None)
    for name in sorted(costs, key=costs.__getitem__):
        if bound - costs[name] <= best[0]:
            continue
        order = order_by_name(graph, name, progress=progress, threads=threads)
        tried[name] = misses(order)
        net = (now - tried[name]) * second_per_share - costs[name]
        if net > best[0]:
            best = (net, name, order)

    missing = f"{100 * now:.1f} % of reads miss a cache of {cache / 2**20:.4g} MiB"
    if not tried:
        cheapest = min(costs.values(), default=0.0)
        why = f"no order can save more than {bound:.3f} s in {epochs} epochs, for {missing} and at least {100 * least:.1f} % must"
        if bound > 0:
            why += f"; the cheapest costs {cheapest:.3f} s"
        return Decision(None, None, bound, cheapest, now, tried, f"as it is: {why}")
    name = best[1] or min(tried, key=lambda n: costs[n] - (now - tried[n]) * second_per_share)
    saved = (now - tried[name]) * second_per_share
    figures = (
        f"{missing}, {100 * tried[name]:.1f} % in the order {name}: {saved:.3g} s saved in {epochs} epochs for {costs[name]:.3g} s"
    )
    return Decision(best[1], best[2], saved, costs[name], now, tried, figures if best[1] else f"as it is: {figures}")


def _cost(graph: Graph, name: str, *, row_bytes: int, rate: float) -> float:
    """Seconds of finding an order, of relabeling the edges and of moving every node's row."""
    moved = 2 * graph.num_nodes * row_bytes / rate
    return graph.num_edges / _EDGES_PER_SECOND[name] + graph.num_edges / _RELABELED_PER_SECOND + moved
