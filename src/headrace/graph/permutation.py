"""Permutations of nodes: `order[i]` is the node that becomes i, its inverse says what becomes of a node."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids, first_outside, thread_count


def inverse(order: Any, *, threads: int | None = None) -> Tensor:
    """Where each node goes: `inverse(order)[order[i]] == i`.  # [n] -> [n]

    >>> from headrace.graph.permutation import inverse
    >>> inverse([2, 0, 1]).tolist()
    [1, 2, 0]
    """
    given = as_ids(order, "order", dtype=torch.int64)
    return _inverse(given, len(given), threads)


def checked_order(order: Any, nodes: int, threads: int | None) -> Tensor:
    """The order as int64, after a check that it names each of the nodes once."""
    given = as_ids(order, "order", dtype=torch.int64)
    _inverse(given, nodes, threads)
    return given


def bits_of(values: Tensor) -> Tensor:
    """The same memory as integers: native code moves values of types that numpy does not know too."""
    return values.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()])


def _inverse(order: Tensor, nodes: int, threads: int | None) -> Tensor:
    if len(order) != nodes:
        raise ValueError(f"order has {len(order)} entries for {nodes} nodes: it must name each of them once")
    try:
        return torch.from_numpy(_native.invert_order(order, thread_count(threads)))
    except ValueError:
        low, high = _native.id_range(order, thread_count(threads))
        if low < 0 or high >= nodes:
            at = first_outside(order, 0, nodes)
            raise ValueError(
                f"order[{at}] is {int(order[at])}, and there are {nodes} nodes: it must name each of them once"
            ) from None
        twice = int(torch.bincount(order, minlength=nodes).argmax())
        raise ValueError(f"order names node {twice} more than once: it must name each of the {nodes} nodes once") from None
