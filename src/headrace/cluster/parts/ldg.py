"""Linear Deterministic Greedy: nodes streamed to the part where most of their neighbors are, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.graph import Graph

_CHUNKS, _CHUNK = 1024, 1 << 14  # chunks of a pass, and the most nodes of one
_COUNTS = 2 << 20  # counts of neighbors by part that are held at a time
_EDGES = 1 << 20  # edges that are looked at together


def ldg(
    graph: Graph,
    parts: int,
    *,
    start: Tensor | None = None,
    slack: float = 0.05,
    passes: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:  # -> [num_nodes]
    """The part of each node, by Linear Deterministic Greedy (Stanton and Kliot, KDD'12), streamed several times.

    Node v goes to the part i with the largest |neighbors of v in i| (1 - size of i / capacity); among equals to the one that it
    was in, then to the smaller one. No part exceeds its capacity: (1 + slack) times the mean, or the mean rounded up. Nodes come
    in the order of their ids, in `passes` rounds: from the second on, neighbors whose turn is still to come count where the last
    round put them (restreaming, Nishimura and Ugander, KDD'13), which lowers the cut of the first to a half or less and makes the
    order of ids matter little. `start` gives the part of each node before the first round.

    Nodes are decided a thousandth of them at a time, by the sizes and neighbors before. Neighbors are those that a row lists, so
    in a directed graph sources of edges alone. The same graph gives the same parts.

    >>> import headrace as hr
    >>> from headrace.cluster.parts.ldg import ldg
    >>> two_triangles = hr.Graph.from_edges([0, 2, 4, 1, 3, 5], [2, 4, 0, 3, 5, 1], undirected=True)
    >>> ldg(two_triangles, 2).tolist()
    [0, 1, 0, 1, 0, 1]
    """
    if parts < 1:
        raise ValueError(f"parts must be at least 1, not {parts}")
    host = graph.to("cpu")
    nodes, indptr, indices = host.num_nodes, host.indptr.numpy(), host.indices.numpy()
    capacity = max(-(-nodes // parts), int((1 + slack) * nodes / parts))
    owner = np.full(nodes, parts, np.uint8 if parts < 256 else np.int32)  # `parts` stands for none yet
    if start is not None:
        owner[:] = start.numpy()
    step = max(1, min(nodes // _CHUNKS, _CHUNK, _COUNTS // (parts + 1)))
    for number in range(passes):
        sizes = np.zeros(parts, np.int64)
        for begin in range(0, nodes, step):
            end = min(begin + step, nodes)
            counts = _neighbors_by_part(owner, indptr[begin : end + 1], indices, parts)
            _assign(owner[begin:end], counts, sizes, capacity)
            if progress is not None:
                progress(number * nodes + end, passes * nodes)
    return torch.from_numpy(owner)


def _neighbors_by_part(owner: NDArray[Any], indptr: NDArray[Any], indices: NDArray[Any], parts: int) -> NDArray[Any]:
    """How many neighbors of each row are in each part.  # -> [rows, parts]"""
    rows = len(indptr) - 1
    counts = np.zeros(rows * (parts + 1), np.int64)
    first_of_row = np.arange(0, len(counts), parts + 1)
    for begin in range(int(indptr[0]), int(indptr[-1]), _EDGES):
        end = min(begin + _EDGES, int(indptr[-1]))
        places = np.repeat(first_of_row, np.diff(indptr.clip(begin, end)))
        places += owner[indices[begin:end]]
        counts += np.bincount(places, minlength=len(counts))
    return counts.reshape(rows, parts + 1)[:, :parts]


def _assign(owner: NDArray[Any], counts: NDArray[Any], sizes: NDArray[Any], capacity: int) -> None:
    """Choose the part of each row, the first ones first where there is not room for all; `sizes` grow by them."""
    left = np.arange(len(owner))
    while len(left):
        room = capacity - sizes
        scores = 2 * room * counts[left]  # the rule times twice the capacity: whole numbers, so that equals are equal
        before = owner[left]
        placed = np.flatnonzero(before < len(sizes))
        scores[placed, before[placed]] += 1
        scores[:, room == 0] = -1
        smallest_first = np.argsort(sizes, kind="stable")
        choice = smallest_first[scores[:, smallest_first].argmax(axis=1)]
        fits = _turns(choice) < room[choice]
        owner[left[fits]] = choice[fits]
        sizes += np.bincount(choice[fits], minlength=len(sizes))
        left = left[~fits]


def _turns(choice: NDArray[Any]) -> NDArray[Any]:
    """How many before it have chosen the same, for each.  # [n] -> [n]"""
    order = np.argsort(choice, kind="stable")
    counts = np.bincount(choice)
    turns = np.empty(len(choice), np.int64)
    turns[order] = np.arange(len(choice)) - np.repeat(np.cumsum(counts) - counts, counts)
    return turns
