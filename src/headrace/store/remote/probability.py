"""Rows to the ranks that ask for them most, under a memory budget."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from headrace.store.remote.owners import TableOwners

_SLAB = 1 << 22  # nodes placed at a time, which bounds the memory this takes


def probability_owners(
    probabilities: Tensor,
    *,
    budget_rows: int | None = None,
    budget_bytes: int | None = None,
    row_bytes: int | None = None,
    replicas: Literal["own", "common"] = "own",
    chunk: int = 256,
) -> TableOwners:
    """Own every row where it is asked for most, and fill what memory is left with copies of hot rows.  # [ranks, nodes]

    `probabilities[r, v]` is how often rank r asks for node v in a batch (any scale), as from the access probability of its own
    training seeds; every rank must pass the same numbers. Nodes are taken hottest first in chunks; inside a chunk the ranks take
    turns, each choosing an equal part of what it wants most and the others least. So shares are even in rows and, chunk by chunk,
    in traffic (the idea of Quiver's `quiver_partition_feature`). The budget is per rank, in rows, or in bytes with `row_bytes`:
    its share and its copies together. With `replicas="own"` a rank copies what *it* asks for most; with `"common"` all ranks
    copy the same rows, so that they can be written to (`Remote.add_`).

    >>> import torch
    >>> from headrace.store import probability_owners
    >>> wants = torch.tensor([[9., 8, 1, 0], [8., 1, 7, 6]])
    >>> owners = probability_owners(wants, budget_rows=3)
    >>> [owners.ids_of(r).tolist() for r in (0, 1)], [owners.replicas(r).tolist() for r in (0, 1)]
    ([[0, 1], [2, 3]], [[2], [0]])
    """
    if probabilities.dim() != 2 or not probabilities.dtype.is_floating_point:
        raise ValueError(
            f"probabilities must be floats of shape [ranks, nodes], not {probabilities.dtype} {list(probabilities.shape)}"
        )
    if not bool((probabilities >= 0).all()):
        raise ValueError("probabilities must not be negative, nor NaN")
    if replicas not in ("own", "common"):
        raise ValueError(f"replicas must be 'own' or 'common', not {replicas!r}")
    ranks, nodes = probabilities.shape
    budget = _budget_in_rows(budget_rows, budget_bytes, row_bytes)
    share = -(-nodes // max(1, ranks))
    if budget is not None and budget < share:
        raise ValueError(
            f"a budget of {budget} rows on each of {ranks} ranks does not hold {nodes} rows: it takes {share} a rank, or more ranks"
        )
    probabilities = probabilities.cpu()
    owner = _place(probabilities, max(chunk, 1))
    kept: list[Tensor] | None = None
    if budget is not None:
        kept = (_common_replicas if replicas == "common" else _own_replicas)(probabilities, owner, budget)
    return TableOwners(owner, ranks, replicas=kept)


def _budget_in_rows(rows: int | None, size: int | None, row_bytes: int | None) -> int | None:
    if rows is not None and size is not None:
        raise ValueError("give budget_rows or budget_bytes, not both")
    if size is None:
        return rows
    if not row_bytes or row_bytes < 1:
        raise ValueError("budget_bytes needs row_bytes, the bytes of one row (its width times its element size)")
    return size // row_bytes


def _place(probabilities: Tensor, chunk: int) -> Tensor:
    """The owner of every node.  # [ranks, nodes] -> [nodes]"""
    ranks, nodes = probabilities.shape
    chunk = -(-chunk // ranks) * ranks
    order = torch.sort(probabilities.sum(0, dtype=torch.float64), descending=True, stable=True).indices
    owner = torch.empty(nodes, dtype=torch.int32)
    whole = nodes // chunk * chunk
    step = max(1, _SLAB // chunk) * chunk
    for start in range(0, whole, step):
        ids = order[start : min(start + step, whole)].view(-1, chunk)
        owner[ids] = _choose(probabilities[:, ids], first_turn=start // chunk)
    if whole < nodes:
        ids = order[whole:].view(1, -1)
        owner[ids] = _choose(probabilities[:, ids], first_turn=whole // chunk)
    return owner


def _choose(wanted: Tensor, *, first_turn: int) -> Tensor:  # [ranks, chunks, size] -> [chunks, size]
    """Ranks choose in turn; who begins goes round from chunk to chunk, so that nobody always chooses last."""
    ranks, chunks, size = wanted.shape
    total = wanted.sum(0, dtype=torch.float64)
    owner = torch.full((chunks, size), -1, dtype=torch.int32)
    numbers = torch.arange(chunks)
    for turn in range(ranks):
        rank = (first_turn + numbers + turn) % ranks
        gain = ranks * wanted[rank, numbers].double() - total
        gain[owner >= 0] = -torch.inf
        quota = size // ranks + (turn < size % ranks)
        best = torch.sort(gain, dim=1, descending=True, stable=True).indices[:, :quota]
        owner.scatter_(1, best, rank.to(torch.int32).unsqueeze(1).expand(-1, quota))
    return owner


def _own_replicas(probabilities: Tensor, owner: Tensor, budget: int) -> list[Tensor]:
    kept = []
    for rank, wanted in enumerate(probabilities):
        elsewhere = torch.where(owner == rank, torch.zeros_like(wanted), wanted)
        room = budget - int((owner == rank).sum())
        hottest = torch.sort(elsewhere, descending=True, stable=True).indices[:room]
        kept.append(hottest[elsewhere[hottest] > 0])
    return kept


def _common_replicas(probabilities: Tensor, owner: Tensor, budget: int) -> list[Tensor]:
    """The longest list of the hottest rows for which every rank has room; a rank needs none for those it owns."""
    total = probabilities.sum(0, dtype=torch.float64)
    order = torch.sort(total, descending=True, stable=True).indices
    order = order[total[order] > 0]
    length = len(order)
    for rank in range(len(probabilities)):
        copies = torch.cumsum((owner[order] != rank).long(), 0)
        length = min(length, int((copies <= budget - int((owner == rank).sum())).sum()))
    return [order[:length]] * len(probabilities)
