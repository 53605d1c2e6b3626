"""Weights as samplers read them: of edges positive, float32, with sums where draws are with replacement; of nodes float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_tensor
from headrace.graph import Graph


def drawable(graph: Graph) -> Graph:
    """The graph without the edges that are never drawn, its weights in float32. Made once per graph and kept.

    An edge of weight 0 would need a rank of its own kind in every kernel; without it a row's length is the number of edges that can
    be drawn. Edges keep their ids: `edge_id` holds the graph's own or, where it keeps none, positions in it.
    """
    drawn = graph.derived("drawable by weight", lambda: _drawable(graph))
    return graph if drawn is None else drawn


def cumulative(graph: Graph, *, threads: int) -> Tensor:  # -> [edges], float64
    """Sums of the weights within each row up to each edge, added in order. Made once per graph and kept."""
    return graph.derived("cumulative weights", lambda: _cumulative(graph, threads))


def node_weights(weight: Any, nodes: int, name: str) -> Tensor:  # -> [nodes], float64
    """Weights to draw nodes by, checked."""
    weights = as_tensor(weight, name).double()
    if weights.shape != (nodes,):
        raise ValueError(f"{name} has shape {tuple(weights.shape)} for {nodes} nodes")
    if not bool(((weights >= 0) & weights.isfinite()).all()):
        raise ValueError(f"{name} must hold finite numbers that are not negative")
    return weights


def _cumulative(graph: Graph, threads: int) -> Tensor:
    assert graph.weight is not None
    sums = _native.cumulative_weights(graph.indptr.cpu(), graph.weight.cpu(), threads)
    return torch.from_numpy(sums).to(graph.device)


def _drawable(graph: Graph) -> Graph | None:
    """The graph to draw from, or None if it is `graph` itself: a graph that kept itself would never be freed."""
    if graph.weight is None:
        raise ValueError("this graph has no weights to draw by: give from_edges(..., weight=...), or weighted=False")
    if graph.weight.dim() != 1:
        raise ValueError(f"weight must have one number per edge, not shape {tuple(graph.weight.shape)}")
    weight = graph.weight.float()
    wrong = ~(weight.isfinite() & (weight >= 0))
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        raise ValueError(f"weight[{at}] is {float(weight[at])}: weights to draw by must be finite and not negative")
    kept = weight > 0
    if weight is graph.weight and bool(kept.all()):
        return None
    if graph.device.type != "cpu":
        in_memory = graph.to("cpu")
        return (_drawable(in_memory) or in_memory).to(graph.device)
    if bool(kept.all()):
        return Graph(graph.indptr, graph.indices, **_beside(graph, weight, slice(None)))
    graph.validate()
    before = torch.zeros(graph.num_edges + 1, dtype=torch.int64)
    torch.cumsum(kept, 0, out=before[1:])
    position = kept.nonzero().flatten()
    beside = _beside(graph, weight, position)
    beside["edge_id"] = position if graph.edge_id is None else graph.edge_id[position]
    return Graph(before[graph.indptr], graph.indices[position], **beside)


def _beside(graph: Graph, weight: Tensor, position: Tensor | slice) -> dict[str, Tensor | None]:
    return {
        "weight": weight[position],
        "time": None if graph.time is None else graph.time[position],
        "edge_id": None if graph.edge_id is None else graph.edge_id[position],
    }
