"""Changes of rows in tiers: which ones move when others become hot, and deltas of repeated ids as one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace._arrays import as_ids, check_ids
from headrace.kernels import aggregate


@dataclass(frozen=True, eq=False)
class Changes:
    """The moves between tiers that a new order of the rows asks for."""

    entering: Tensor  # nodes that come to a tier in memory from another one
    to_disk: Tensor  # nodes that leave memory
    slots: Tensor  # [nodes]: where every row is afterwards


def changes_of(slots: Tensor, order: Tensor, hot: int, held: int) -> Changes:
    """From where rows are (`slots`: below `hot` on the device, then host memory, below 0 on disk) to where `order` wants them.

    A row that stays in its tier keeps its slot, and those that come take the slots of those that go: tiers are always full, so
    there are as many.
    """
    was = torch.where(slots < 0, 2, (slots >= hot).long())
    becomes = torch.full_like(was, 2)
    becomes[order[:hot]] = 0
    becomes[order[hot:held]] = 1
    after = slots.clone()
    for tier in (0, 1):
        after[(becomes == tier) & (was != tier)] = slots[(was == tier) & (becomes != tier)]
    leaving = (was != 2) & (becomes == 2)
    after[leaving] = -1
    entering = (was != becomes) & (becomes != 2)
    return Changes(entering.nonzero().flatten(), leaving.nonzero().flatten(), after)


def in_order(order: Tensor, rows: int) -> Tensor:
    """All node ids: those of `order`, then the others.  # -> [rows]"""
    ids = as_ids(order.cpu() if isinstance(order, Tensor) else order, "order").long()
    check_ids(ids, rows)
    named = torch.zeros(rows, dtype=torch.bool)
    named[ids] = True
    if int(named.sum()) != len(ids):
        raise ValueError(f"order names {len(ids)} ids, but only {int(named.sum())} different ones: each may come once")
    return torch.cat([ids, (~named).nonzero().flatten()])


def sum_repeated(ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Every id once, rising, with its rows added up in the order they came: the same bits every time.  # -> [m], [m, ...]"""
    unique, inverse, counts = torch.unique(ids, return_inverse=True, return_counts=True)
    order = torch.argsort(inverse, stable=True)
    if len(unique) == len(ids):
        return unique, rows[order]
    if rows.is_complex():
        both = sum_repeated(ids, torch.view_as_real(rows))
        return both[0], torch.view_as_complex(both[1].contiguous())
    if not rows.dtype.is_floating_point:  # whole numbers add up to the same in any order
        return unique, rows.new_zeros((len(unique), *rows.shape[1:])).index_add_(0, inverse, rows)
    return unique, aggregate(rows, torch.nn.functional.pad(counts.cumsum(0), (1, 0)), order)
