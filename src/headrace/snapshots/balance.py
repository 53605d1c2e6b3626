"""`balance`: which rank takes which group. A pure function of costs: longest first, each to the rank that ends it earliest."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Deal = Literal["balanced", "equal", "sequential"]


@dataclass(frozen=True)
class Balance:
    """Groups dealt to ranks. `makespan` is the time of the slowest rank, `bound` what no deal can beat."""

    owner: tuple[int, ...]  # the rank of each group
    loads: tuple[float, ...]  # seconds of each rank
    bound: float

    @property
    def makespan(self) -> float:
        return max(self.loads, default=0.0)

    @property
    def idle(self) -> float:
        """The share of all ranks' time that is spent waiting for the slowest."""
        total = len(self.loads) * self.makespan
        return 1 - sum(self.loads) / total if total else 0.0

    def of(self, rank: int) -> list[int]:
        """The groups of a rank, in order."""
        return [group for group, owner in enumerate(self.owner) if owner == rank]


def balance(costs: Sequence[float], ranks: int, speeds: Sequence[float] | None = None) -> Balance:
    """Deal groups of these costs to ranks, longest first (Graham, 1969): at most 4/3 - 1/(3 ranks) times the best makespan.

    speeds: cost that each rank does in a second; all alike where None. The bound is max(sum / ranks, largest) of the seconds.

    >>> import headrace as hr
    >>> dealt = hr.snapshots.balance([3.0, 1.0, 2.0], 2)
    >>> dealt.owner, dealt.makespan, dealt.bound
    ((0, 1, 1), 3.0, 3.0)
    """
    pace = _checked(costs, ranks, speeds)
    owner = [0] * len(costs)
    if len(set(pace)) == 1:  # the rank that is free first ends it first
        free = [(0.0, rank) for rank in range(ranks)]
        for group in _longest_first(costs):
            load, rank = heapq.heappop(free)
            owner[group] = rank
            heapq.heappush(free, (load + costs[group] / pace[rank], rank))
    else:
        loads = [0.0] * ranks
        for group in _longest_first(costs):
            rank = min(range(ranks), key=lambda r: (loads[r] + costs[group] / pace[r], r))
            owner[group] = rank
            loads[rank] += costs[group] / pace[rank]
    return dealt(costs, owner, ranks, speeds)


def equal(costs: Sequence[float], ranks: int, speeds: Sequence[float] | None = None) -> Balance:
    """Deal groups in order, as many to each rank: what data parallelism does without a look at costs."""
    _checked(costs, ranks, speeds)
    each, more = divmod(len(costs), ranks)
    owner = [rank for rank in range(ranks) for _ in range(each + (rank < more))]
    return dealt(costs, owner, ranks, speeds)


def sequential(costs: Sequence[float], ranks: int, speeds: Sequence[float] | None = None) -> Balance:
    """All groups on rank 0."""
    _checked(costs, ranks, speeds)
    return dealt(costs, [0] * len(costs), ranks, speeds)


DEALS = {"balanced": balance, "equal": equal, "sequential": sequential}


def dealt(costs: Sequence[float], owner: Sequence[int], ranks: int, speeds: Sequence[float] | None = None) -> Balance:
    """What comes of a deal: the seconds of each rank, and the bound."""
    pace = _checked(costs, ranks, speeds)
    loads = [0.0] * ranks
    for cost, rank in zip(costs, owner, strict=True):
        loads[rank] += cost / pace[rank]
    bound = max(sum(costs) / sum(pace), max(costs, default=0.0) / max(pace))
    return Balance(tuple(owner), tuple(loads), bound)


def _longest_first(costs: Sequence[float]) -> list[int]:
    return sorted(range(len(costs)), key=lambda group: (-costs[group], group))


def _checked(costs: Sequence[float], ranks: int, speeds: Sequence[float] | None) -> list[float]:
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, not {ranks}")
    for group, cost in enumerate(costs):
        if not 0 <= cost < float("inf"):
            raise ValueError(f"the cost of group {group} must be a finite number from 0 on, not {cost}")
    pace = [1.0] * ranks if speeds is None else list(speeds)
    if len(pace) != ranks or not all(0 < speed < float("inf") for speed in pace):
        raise ValueError(f"speeds must be a number above 0 for each of {ranks} ranks, not {speeds}")
    return pace
