"""`Autotuner`: how many workers a server can use. Told the lengths of its queues, it adds workers or takes some away.

Dorylus (Thorpe et al., OSDI'21) begins with min(intervals, 100) workers. A queue of results that grows at the server
means that workers are faster than it: their results wait, and a call is paid while its result waits. A queue that has drained
means that the server waits for workers. The paper leaves open by how much to change. Here each change is estimated from the
queue, then searched between two bounds: the most workers that were too few and the fewest that were too many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

_FIRST = 100  # workers to begin with, if there are as many intervals
_WINDOW = 24  # moments to judge by, at least
_CHANGES, _LONGEST = 4, 8  # a window more after so many changes, up to so many windows
_SPARE = 2  # results that wait at every moment: there are too many workers
_IDLE = 0.15  # share of its time that the server waits for results: there are too few
_FAST, _CAREFUL = 4.0, 1.15  # largest factor of a change: in a first search, and after bounds have met
_MEMORY = 32  # judgements after which bounds that have met are forgotten, at first: the work may have changed


@dataclass(frozen=True)
class Moment:
    """When the server had taken a result, and what waited then: other results, and tasks for a worker."""

    seconds: float
    results: int
    tasks: int


@dataclass(frozen=True)
class Change:
    """A new number of workers, when it was decided, and why."""

    seconds: float
    workers: int
    reason: str


@dataclass
class Autotuner:
    """`workers` is the number to use now; `observe` may change it. It has no clock and no threads: it knows what it is told.

    intervals: tasks that there can be at once; more workers would have nothing to do.
    limit: workers that the cloud allows, if fewer.
    budget: dollars that may be spent. Near its end there are never more workers than tasks that the rest pays for; when it pays for
        none, `exhausted` is true.

    >>> tuner = Autotuner(intervals=32)
    >>> for second in range(30):
    ...     tuner.observe(second, results=20, tasks=0)
    >>> [(change.workers, change.reason) for change in tuner.changes]
    [(32, 'as many as intervals'), (13, 'too many: 20.0 results wait at the server')]
    """

    intervals: int
    limit: int | None = None
    budget: float | None = None
    changes: list[Change] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.intervals < 1:
            raise ValueError(f"intervals must be at least 1, not {self.intervals}")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1 worker, not {self.limit}")
        if self.budget is not None and not self.budget > 0:
            raise ValueError(f"budget must be a positive number of dollars, not {self.budget}")
        self._most = min(self.intervals, self.limit or self.intervals)
        self._moments: list[Moment] = []  # since the last judgement
        self._settling = 0  # first moments of them, which show calls from before the last change
        self._service: float | None = None  # seconds that the server needs for a result
        self._bounds = _Bounds()
        self._observed, self._spent = 0, 0.0
        workers = min(self._most, _FIRST)
        reason = "as many as intervals" if workers == self.intervals else f"{workers}, for {self.intervals} intervals"
        self.changes.append(Change(0.0, workers, reason))

    @property
    def workers(self) -> int:
        """How many to use now."""
        return self.changes[-1].workers

    @property
    def exhausted(self) -> bool:
        """Whether the rest of the budget pays for no further task."""
        return self._payable < 1

    def observe(self, seconds: float, *, results: int, tasks: int, spent: float = 0.0) -> None:
        """Tell it of a moment: whenever the server has taken a result.

        seconds: since the run began. results: how many wait at the server. tasks: how many wait for a worker. spent: dollars for
        servers and calls so far.
        """
        self._moments.append(Moment(seconds, results, tasks))
        self._observed, self._spent = self._observed + 1, spent
        if self._payable < self.workers:
            if not self.exhausted:
                self._change(seconds, self._payable, f"the budget pays for {self._payable} more tasks")
        elif len(self._moments) > self._settling + self._window:
            self._judge(seconds)

    @property
    def _window(self) -> int:
        """Moments to judge by: at least a result of each worker; more after many changes, so that chance decides less and less."""
        changes = len(self.changes) - 1
        return max(_WINDOW * min(1 + changes // _CHANGES, _LONGEST), self.workers if changes else 0)

    @property
    def _payable(self) -> int:
        """Tasks that the rest of the budget pays for, each at the average so far."""
        if self.budget is None or not self._spent:
            return self._most
        rest = self.budget - self._spent
        if rest <= 0:
            return 0
        if self._observed < _WINDOW:  # an average of few calls is no measure: the first ones wait for workers to start
            return self._most
        return min(math.floor(rest / (self._spent / self._observed)), self._most)

    def _judge(self, seconds: float) -> None:
        moments, workers = self._moments[self._settling :], self.workers
        self._moments, self._settling = [], 0
        self._service = service_seconds(moments) or self._service
        waiting, idle = mean_waiting(moments), idle_share(moments, self._service)
        if waiting:
            target = self._bounds.fewer(workers, workers - round(waiting) + 1)
            self._change(seconds, target, f"too many: {waiting:.1f} results wait at the server")
        elif idle > _IDLE and all(moment.tasks for moment in moments):
            target = min(self._bounds.more(workers, math.ceil(workers / max(1 - idle, 1 / _FAST))), self._payable)
            self._change(seconds, target, f"too few: the server waits {idle:.0%} of its time, and tasks wait for workers")

    def _change(self, seconds: float, workers: int, reason: str) -> None:
        if workers != self.workers:
            self._moments, self._settling = [], max(workers, self.workers)
            self.changes.append(Change(seconds, workers, reason))


@dataclass
class _Bounds:
    """The search: what is known to be too few or too many, and so what to try next."""

    low: int = 0  # the most workers that were too few; 0 where none is known
    high: float = math.inf  # the fewest that were too many
    factor: float = _FAST
    met: int = 0  # judgements since they have met
    memory: int = _MEMORY

    def fewer(self, workers: int, estimate: int) -> int:
        """What to try where `workers` were too many."""
        self.low, self.high = self.low if self.low < workers else 0, workers
        return self._between() or max(estimate, math.floor(workers / self._widened()), 1)

    def more(self, workers: int, estimate: int) -> int:
        """What to try where `workers` were too few."""
        self.low, self.high = workers, self.high if self.high > workers else math.inf
        return self._between() or min(estimate, math.ceil(workers * self._widened()))

    def _between(self) -> int:
        """A number between the bounds; the upper one where they have met; 0 where one is unknown."""
        low, high = self.low, self.high
        if not low or high == math.inf:
            return 0
        if high > max(low * _CAREFUL, low + 1):
            return max(round(math.sqrt(low * high)), low + 1)
        self.met, self.factor = self.met + 1, _CAREFUL
        if self.met > self.memory:
            self.low, self.high, self.met, self.memory = 0, math.inf, 0, 2 * self.memory
        return int(high)

    def _widened(self) -> float:
        factor, self.factor = self.factor, min(self.factor**2, _FAST)
        return factor


def mean_waiting(moments: Sequence[Moment]) -> float:
    """Results that wait at the server on average, lately; 0 where the queue drains, or was nearly empty at some moment."""
    lengths = [moment.results for moment in moments]
    half = len(lengths) // 2
    before, lately = fmean(lengths[:half]), fmean(lengths[half:])
    return lately if min(lengths) >= _SPARE and lately >= before else 0.0


def service_seconds(moments: Sequence[Moment]) -> float | None:
    """Seconds in which the server takes a result: those between moments, where a result waited at the first of them."""
    gaps = [after.seconds - before.seconds for before, after in pairwise(moments) if before.results]
    return fmean(gaps) if gaps else None


def idle_share(moments: Sequence[Moment], service: float | None) -> float:
    """Share of its time that the server waits for results; all of it, where no result ever waited for the server."""
    elapsed = moments[-1].seconds - moments[0].seconds
    if service is None or not elapsed:
        return 1.0
    return max(1 - (len(moments) - 1) * service / elapsed, 0.0)
