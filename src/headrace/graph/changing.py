"""Random snapshot sequences whose sizes rise and fall: what a schedule of snapshots must cope with."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from headrace._memory import require_memory
from headrace.graph.snapshots import Snapshots


def sizes(steps: int, *, seed: int = 0, correlation: float = 0.95, spread: float = 1.0) -> NDArray[np.float64]:
    """exp(z) with a mean of 1: z is normal with variance `spread`, and neighbors have this correlation.

    >>> from headrace.graph.changing import sizes
    >>> sizes(100).shape, bool((sizes(100) > 0).all())
    ((100,), True)
    """
    if not -1 < correlation < 1:
        raise ValueError(f"correlation must be between -1 and 1, not {correlation}")
    normal = np.random.Generator(np.random.Philox(key=seed)).standard_normal(steps)
    z = np.empty(steps)
    for at in range(steps):
        z[at] = normal[at] if at == 0 else correlation * z[at - 1] + math.sqrt(1 - correlation**2) * normal[at]
    return np.exp(math.sqrt(spread) * z - spread / 2)


def snapshots(
    nodes: int,
    edges: int,
    steps: int = 64,
    features: int = 16,
    *,
    correlation: float = 0.95,
    spread: float = 1.0,
    persistence: float = 0.8,
    noise: float = 0.5,
    seed: int = 0,
) -> Snapshots:
    """`steps` graphs over at most `nodes` nodes each, of `edges` edges in the mean: sizes are exp(z) (`sizes`).

    A snapshot of twice the mean size has twice the mean of nodes and of edges, so that nodes appear and vanish: those present are
    the first ones, and `nodes` counts those of the mean snapshot. Degrees are skewed. y follows the mean of the neighbors' last
    features and its own last value (weight `persistence`), with `noise`, so that it can be forecast.

    The result is a function of the arguments.
    """
    for name, value, least in (("nodes", nodes, 2), ("edges", edges, 0), ("steps", steps, 1), ("features", features, 1)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, not {value}")
    scale = sizes(steps, seed=seed, correlation=correlation, spread=spread)
    count = np.maximum((nodes * scale).astype(np.int64), 2)
    most = int(count.max())
    needed = 4 * steps * most + 4 * features * int(count.sum()) + int(8 * edges * scale.sum())
    require_memory(needed, f"{steps} snapshots of {nodes} nodes and {edges} edges", "generate smaller ones")
    graphs = []
    for at in range(steps):
        draw = np.random.Generator(np.random.Philox(key=[seed, at + 1]))
        number = int(edges * scale[at])
        dst = draw.integers(0, count[at], number)
        src = (count[at] * draw.random(number) ** 2).astype(np.int64)  # the first nodes are hubs
        graphs.append((src, dst))
    present = [torch.arange(int(n)) for n in count]
    generator = torch.Generator().manual_seed(seed)
    x = [torch.randn(len(ids), features, generator=generator) for ids in present]
    y = torch.zeros(steps, most)
    snapshots = Snapshots(graphs, most, nodes=present, info={"name": "snapshots", "seed": seed})
    for at in range(1, steps):
        graph = snapshots.own_graph(at - 1)
        rows = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.degrees())
        mean = torch.zeros(graph.num_nodes).index_add_(0, rows, x[at - 1][graph.indices.long(), 0]) / graph.degrees().clamp_min(1)
        y[at] = persistence * y[at - 1] + noise * torch.randn(most, generator=generator)
        y[at, : len(mean)] += mean
        x[at][:, -1] = y[at, : len(x[at])]
    snapshots.forget()
    snapshots.x, snapshots.y = x, y
    snapshots.mask = torch.arange(most) < torch.from_numpy(count)[:, None]
    return snapshots
