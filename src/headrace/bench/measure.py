"""The harness: one run times ours, peers and the limit in turn, and gives a row of each."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any


@dataclass(frozen=True)
class Row:
    """One figure: ours, that of every peer that is installed, and what the machine allows. All from the same run."""

    bench: str
    case: str
    metric: str
    unit: str
    ours: float
    peers: dict[str, float] = field(default_factory=dict)
    limit: float | None = None

    @property
    def higher_is_better(self) -> bool:
        return self.unit.endswith("/s") or self.unit == "share"

    def against(self, other: float) -> float:
        """How many times better ours is than another figure of this row."""
        better, worse = (self.ours, other) if self.higher_is_better else (other, self.ours)
        return better / worse if worse else float("inf")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def time_in_turn(runs: dict[str, Callable[[], object]], *, repeats: int, warmup: int = 1) -> dict[str, float]:
    """Median seconds of each run. They take turns, so that a slow spell of the machine meets all of them, and each turn
    begins with another one, so that none always comes after the same one."""
    for _ in range(warmup):
        for run in runs.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for turn in range(repeats):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begin = perf_counter()
            runs[name]()
            seconds[name].append(perf_counter() - begin)
    return {name: statistics.median(s) for name, s in seconds.items()}


def rate_row(bench: str, case: str, metric: str, unit: str, work: dict[str, float], seconds: dict[str, float]) -> Row:
    """A row of rates: each system's own work over its own time. `ours` and `limit` are reserved names."""
    rates = {name: work[name] / seconds[name] for name in seconds}
    limit = rates.pop("limit", None)
    return Row(bench, case, metric, unit, rates.pop("ours"), rates, limit)


def time_row(bench: str, case: str, metric: str, seconds: dict[str, float]) -> Row:
    """A row of plain times."""
    rest = dict(seconds)
    limit = rest.pop("limit", None)
    return Row(bench, case, metric, "s", rest.pop("ours"), rest, limit)
