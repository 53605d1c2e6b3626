"""Permutations of nodes: `order[i]` is the node that becomes i, its inverse says what becomes of a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids, first_outside, thread_count


def inverse(order: Any, *, threads: int | None = None) -> Tensor:
    """Where each node goes: `inverse(order)[order[i]] == i`.  # [n] -> [n]

    >>> from headrace.graph.topology.permutation import inverse
    >>> inverse([2, 0, 1]).tolist()
    [1, 2, 0]
    """
    ids = as_ids(order, "order", dtype=torch.int64)
    return _inverse(ids, len(ids), threads)


def checked_order(order: Any, nodes: int, threads: int | None) -> Tensor:
    """The order as int64, after a check that it names each of the nodes once."""
    ids = as_ids(order, "order", dtype=torch.int64)
    _inverse(ids, nodes, threads)
    return ids


def permuted(
    indptr: Tensor, indices: Tensor, beside: Mapping[str, Tensor | None], *, order: Tensor, threads: int | None
) -> dict[str, Tensor]:
    """The arrays of a graph whose row i was row `order[i]`, with `beside`, what stands beside the edges; all by name."""
    workers = thread_count(threads)
    pointers, columns = _native.permute_csr(indptr, indices, order, workers)
    arrays = {"indptr": torch.from_numpy(pointers), "indices": torch.from_numpy(columns)}
    for name, values in beside.items():
        if values is not None:
            arrays[name] = torch.empty_like(values)
            _native.permute_entries(indptr, pointers, order, _bits_of(values), _bits_of(arrays[name]), workers)
    return arrays


def _bits_of(values: Tensor) -> Tensor:
    """The same memory as integers: values may be of types that numpy does not know."""
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
