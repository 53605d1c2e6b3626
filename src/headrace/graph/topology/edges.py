"""Edges as they are given: how many nodes they name, and what goes with them."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import first_outside

_MOST_NODES = 2**48  # an id beyond this is a mistake, not a node


def count_nodes(source: Tensor, target: Tensor, num_nodes: int | None, threads: int) -> int:
    """The number of nodes, after a check that every id is one."""
    if num_nodes is not None and not 0 <= num_nodes < _MOST_NODES:
        raise ValueError(f"num_nodes must be from 0 to 2**48, not {num_nodes}")
    most = -1
    for name, ids in (("src", source), ("dst", target)):
        low, high = _native.id_range(ids, threads)
        most = max(most, high)
        if low < 0:
            at = int((ids < 0).nonzero()[0])
            raise ValueError(f"{name}[{at}] is {int(ids[at])}: node ids must not be negative")
        if num_nodes is not None and high >= num_nodes:
            at = first_outside(ids, 0, num_nodes)
            raise ValueError(f"{name}[{at}] is {int(ids[at])}: node ids must be below num_nodes={num_nodes}")
    if most >= _MOST_NODES:
        raise ValueError(f"the largest node id is {most}: ids number the nodes, so map them to 0, 1, 2, ... first")
    return most + 1 if num_nodes is None else num_nodes


def take(values: Tensor, position: Tensor | None, *, missing: float) -> Tensor:
    """values[position], with `missing` where the position is -1."""
    assert position is not None
    if values.numel() == 0:
        return torch.full((len(position), *values.shape[1:]), missing, dtype=values.dtype)
    taken = values[position.clamp_min(0)]
    absent = position < 0
    if bool(absent.any()):
        taken[absent] = missing
    return taken
