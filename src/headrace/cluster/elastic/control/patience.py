"""`Patience`: how long a call may take before its task is launched again. Numbers only: no clock, no threads."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

_WEIGHT = 0.05  # of a new duration in the moving average (Dorylus)


class TaskKey(Hashable, Protocol):
    """What names a task: hashable, with the layer and the direction that say how much work it is."""

    @property
    def layer(self) -> int: ...

    @property
    def direction(self) -> Hashable: ...


class Patience:
    """max(floor, ratio x moving average of the same layer and direction), in seconds (Dorylus, fault tolerance).

    first: while no such task has ended. Workers that start cold import torch, which takes seconds.
    """

    def __init__(self, *, floor: float = 0.5, ratio: float = 5.0, first: float = 60.0) -> None:
        if not (floor > 0 and ratio >= 1 and first > 0):
            raise ValueError(f"floor and first must be positive and ratio at least 1, not {floor:g}, {first:g} and {ratio:g}")
        self.floor, self.ratio, self.first = floor, ratio, first
        self._averages: dict[tuple[int, Hashable], float] = {}

    def ended(self, keys: Sequence[TaskKey], seconds: float) -> None:
        """Learn how long a call of these tasks took; in a batch they share its time."""
        for key in keys:
            kind = key.layer, key.direction
            average = self._averages.get(kind, seconds / len(keys))
            self._averages[kind] = average + _WEIGHT * (seconds / len(keys) - average)

    def seconds(self, keys: Sequence[TaskKey], *, times_late: int = 0) -> float:
        """How long a call of these tasks may take: twice as long after each that was late."""
        averages = [self._averages.get((key.layer, key.direction)) for key in keys]
        known = [average for average in averages if average is not None]
        longest = max(self.floor, self.ratio * sum(known)) if len(known) == len(averages) else max(self.floor, self.first)
        return float(longest * 2**times_late)
