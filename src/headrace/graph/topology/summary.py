"""One pass over the edges of a graph: what `Graph.is_symmetric` and `properties` tell."""

from __future__ import annotations

from torch import Tensor

from headrace import _native
from headrace._arrays import thread_count

HUB = 16  # a row is a hub's if it is this many times as long as the mean


def summarize(indptr: Tensor, indices: Tensor, threads: int | None) -> dict[str, float]:
    """Largest degree, empty rows, isolated nodes, hubs, the sums of |row - column| and of squared degrees, and symmetry."""
    indptr, indices = indptr.cpu(), indices.cpu()
    nodes = len(indptr) - 1
    return _native.summarize(indptr, indices, HUB * len(indices) / max(nodes, 1), thread_count(threads))
