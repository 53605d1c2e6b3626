"""Bytes that a rank sends for each strategy: pure functions of sizes, which the counted phases of an `Exchange` must equal.

`balanced`, `equal` and `sequential` send gradients alone: `headrace.ranks.gradient_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from headrace.graph import Graph


def halo_rows(rows: Graph, owner: Tensor, size: int) -> list[list[int]]:
    """Rows that each rank sends each other one for a sum over `rows`, whose row v is on rank `owner[v]`: [from][to].

    >>> import headrace as hr, torch
    >>> from headrace.snapshots.traffic import halo_rows
    >>> halo_rows(hr.Graph.from_edges([0, 0, 1], [1, 3, 2]), torch.tensor([0, 1, 0, 1]), 2)
    [[0, 1], [1, 0]]
    """
    target = owner.repeat_interleave(rows.degrees())
    source = rows.indices.long()
    return [
        [0 if to == one else int(source[(owner[source] == one) & (target == to)].unique().numel()) for to in range(size)]
        for one in range(size)
    ]


def halo_bytes(sent: Sequence[Sequence[int]], rank: int, width: int, *, itemsize: int = 4) -> tuple[int, int]:
    """Bytes that a rank sends for one sum of states of this width, forward and back: halo rows x width x itemsize."""
    return sum(sent[rank]) * width * itemsize, sum(row[rank] for row in sent) * width * itemsize


def boundary_bytes(nodes: int, widths: Iterable[int], *, itemsize: int = 4) -> int:
    """Bytes of a state at one boundary between ranks, as many forward as back: N x H x 4 for each part of `widths` columns.

    >>> from headrace.snapshots.traffic import boundary_bytes
    >>> boundary_bytes(207, [32])
    26496
    """
    return nodes * sum(widths) * itemsize
