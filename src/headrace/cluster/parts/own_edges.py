"""The rows of a graph that a part owns: their offsets, and where their edges are in the whole graph's arrays."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_ROWS, _EDGES = 1 << 18, 1 << 20  # looked at together


def own_indptr(indptr: Tensor, ids: Tensor) -> Tensor:  # [nodes + 1], [n] -> [n + 1]
    """`indptr` of rows `ids`, one after the other."""
    own = torch.zeros(len(ids) + 1, dtype=torch.int64)
    for begin in range(0, len(ids), _ROWS):
        rows = ids[begin : begin + _ROWS]
        own[begin + 1 : begin + len(rows) + 1] = indptr[rows + 1] - indptr[rows]
    return torch.cumsum(own, 0, out=own)


def edge_positions(indptr: Tensor, ids: Tensor, own: Tensor) -> Iterator[Tensor]:
    """Positions in the whole graph of the edges of rows `ids`, in pieces; `own` is their `own_indptr`.  # -> [at most 2^20] each

    >>> import torch
    >>> indptr, ids = torch.tensor([0, 2, 2, 5]), torch.tensor([2, 0])
    >>> [piece.tolist() for piece in edge_positions(indptr, ids, own_indptr(indptr, ids))]
    [[2, 3, 4, 0, 1]]
    """
    for first in range(0, len(ids), _ROWS):
        rows, starts = ids[first : first + _ROWS], own[first : first + _ROWS + 1]
        moves = indptr[rows] - starts[:-1]
        for begin in range(int(starts[0]), int(starts[-1]), _EDGES):
            end = min(begin + _EDGES, int(starts[-1]))
            yield torch.arange(begin, end) + torch.repeat_interleave(moves, starts.clip(begin, end).diff())
