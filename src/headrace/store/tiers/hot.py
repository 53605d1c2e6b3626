"""Which rows are hot: how often each node's row will be asked for, known, counted or estimated.

- "degree": how often a node stands in neighbor lists. Needs nothing but the graph, and is good where fanouts are small.
- "probability": that a batch asks for it, carried from the training seeds through the fanouts hop by hop (the idea of Quiver's
  `sample_prob`). Knows where the seeds are.
- "profile": counted in batches that were drawn, a trial epoch say.
- "planned": counted in the very batches that will come. A batch of Headrace depends on (seed, epoch, index) alone, so sampling
  them ahead tells exactly what training will ask for, and no order serves a fixed cache better (Belady's optimum).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from headrace._arrays import as_ids, check_ids
from headrace.graph import Graph
from headrace.kernels import aggregate

By = Literal["degree", "probability", "profile", "planned"]


def hot_order(
    graph: Graph,
    by: By = "degree",
    *,
    seeds: Tensor | None = None,
    fanouts: Sequence[int] | None = None,
    batch_size: int | None = None,
    batches: Iterable[Tensor] | None = None,
) -> Tensor:  # -> [num_nodes]
    """Node ids, hottest first, ties by id: what `Tiered(order=...)` takes.

    "probability" needs `seeds` and `fanouts` (see `access_probability`), "profile" and "planned" need `batches`, the node ids of
    each (see `access_counts`).

    >>> import headrace as hr
    >>> from headrace.store import hot_order
    >>> graph = hr.Graph.from_edges([2, 2, 2, 0], [0, 1, 3, 1])
    >>> hot_order(graph).tolist()
    [2, 0, 1, 3]
    """
    if by == "degree":
        return order_of(torch.bincount(graph.indices, minlength=graph.num_nodes))
    if by == "probability":
        if seeds is None or fanouts is None:
            raise ValueError('by="probability" needs seeds (the training nodes) and fanouts (neighbors per hop)')
        return order_of(access_probability(graph, seeds, fanouts, batch_size=batch_size))
    if by in ("profile", "planned"):
        if batches is None:
            raise ValueError(f'by="{by}" needs batches: the node ids of each batch, such as (b.n_id for b in loader)')
        return order_of(access_counts(batches, graph.num_nodes))
    raise ValueError(f"by must be 'degree', 'probability', 'profile' or 'planned', not {by!r}")


def order_of(hotness: Tensor) -> Tensor:
    """Node ids by falling hotness, ties by id.  # [nodes] -> [nodes]"""
    return torch.argsort(hotness, descending=True, stable=True)


def access_counts(batches: Iterable[Tensor], num_nodes: int) -> Tensor:
    """How often each node is in `batches`, tensors of node ids.  # -> [num_nodes]

    Of a trial epoch this is a profile. Of the batches that will come it is a plan, and exact: with the same seed the loader gives
    the same batches again, for any number of threads, on any device.
    """
    counts = torch.zeros(num_nodes, dtype=torch.int64)
    for batch in batches:
        ids = as_ids(batch.cpu() if isinstance(batch, Tensor) else batch, "batches")
        check_ids(ids, num_nodes)
        counts += torch.bincount(ids, minlength=num_nodes)
    return counts


def access_probability(graph: Graph, seeds: Tensor, fanouts: Sequence[int], *, batch_size: int | None = None) -> Tensor:
    """The probability that a batch asks for each node.  # -> [num_nodes], float64

    A batch takes `batch_size` of the seeds at random (all of them by default). A node v of degree d that is expanded with fanout k
    draws each neighbor with probability q = min(1, k / d), so u is drawn at a hop with probability
    1 - prod over v with u in N(v) of (1 - p(v) q(v)), p(v) being that of v to be reached for the first time the hop before: the
    sampler expands every node once. Exact for the first hop of a whole batch; later hops take draws for independent.
    """
    ids = as_ids(seeds, "seeds").long()
    check_ids(ids, graph.num_nodes)
    if not fanouts or min(fanouts) < -1:
        raise ValueError(f"fanouts must be one number per hop, each at least 0 or -1 for all; got {list(fanouts)}")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    reached = torch.zeros(graph.num_nodes, dtype=torch.float64)
    reached[ids] = 1
    if batch_size is not None:
        reached *= min(1.0, batch_size / max(float(reached.sum()), 1))
    fresh, degrees, targets = reached.clone(), graph.degrees().to(torch.float64), graph.reverse()
    for fanout in fanouts:
        drawn = torch.ones_like(degrees) if fanout == -1 else (fanout / degrees.clamp_min(1)).clamp_max(1)
        not_drawn_by = torch.log1p(-fresh * drawn).unsqueeze(1)
        drawn_by_any = -torch.expm1(aggregate(not_drawn_by, targets.indptr, targets.indices).squeeze(1))
        fresh = (1 - reached) * drawn_by_any
        reached = reached + fresh
    return reached.clamp_(0, 1)


def expected_hit_rate(hotness: Tensor, order: Tensor, share: float) -> float:
    """The share of accesses that hit, when the first `share` of `order` is cached and nodes are asked for as `hotness` says.

    >>> import torch
    >>> from headrace.store import expected_hit_rate
    >>> expected_hit_rate(torch.tensor([6, 1, 3]), torch.tensor([0, 2, 1]), 2 / 3)
    0.9
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share must be from 0 to 1, not {share}")
    total = float(hotness.sum())
    cached = order[: round(share * len(hotness))]
    return float(hotness[cached].sum()) / total if total else 0.0
