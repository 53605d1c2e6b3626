"""`Autotuner`: how many workers a server can use. Told how server and workers spend their time, it adds workers or takes some away.

Dorylus (Thorpe et al., OSDI'21) begins with min(intervals, 100) workers, and changes the number as the server's queue of results
grows or drains. A server that takes results as soon as they are there has no such queue, so here both sides are measured by time.
Where the server is busy and workers are not, there are too many: their results wait for the server, or they for work. Where the
server waits for results while tasks wait for a worker, there are too few. The paper leaves open by how much to change. Here each
change is estimated from these times, then searched between two bounds: the most workers that were too few and the fewest that were
too many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

_FIRST = 100  # workers to begin with, if there are as many intervals
_WINDOW = 24  # results to judge by, at least
_CHANGES, _LONGEST = 4, 8  # a window more after so many changes, up to so many windows
_BUSY = 0.8  # share of its time that the server works: more workers than compute are too many
_USED = 0.9  # share of the workers that compute, beside one whose result is taken: with less there are too many
_STARVED = 0.13  # share of its time that the server waits for results while tasks wait for workers: there are too few
_FAST, _CAREFUL = 4.0, 1.15  # largest factor of a change: in a first search, and after bounds have met
_STALE = 2.0  # an estimate so far beyond a bound: the work has changed, and the bound is forgotten
_MEMORY = 32  # judgements after which bounds that have met are forgotten, at first: the work may have changed


@dataclass(frozen=True)
class Moment:
    """What was counted until the server had taken a result, all in seconds since the run began.

    active: in which tasks were under way. A server that validates, saves or is stopped is neither busy nor does it wait.
    computed: of all calls that ended. waited: for results, by the server. starved: of those, while tasks waited for a worker.
    """

    active: float
    computed: float
    waited: float
    starved: float


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
    epoch: tasks of an epoch. It judges by whole epochs: stages of an epoch need workers unequally.

    >>> tuner = Autotuner(intervals=32)
    >>> for second in range(80):  # the server is always busy, and two calls are under way on average
    ...     tuner.observe(second, active=second, computed=2 * second, waited=0, starved=0)
    >>> [(change.workers, change.reason) for change in tuner.changes]
    [(32, 'as many as intervals'), (8, 'too many: 2.0 compute, and the server waits 0% of its time')]
    """

    intervals: int
    limit: int | None = None
    budget: float | None = None
    epoch: int = _WINDOW
    changes: list[Change] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.intervals < 1:
            raise ValueError(f"intervals must be at least 1, not {self.intervals}")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1 worker, not {self.limit}")
        if self.budget is not None and not self.budget > 0:
            raise ValueError(f"budget must be a positive number of dollars, not {self.budget}")
        self._most = min(self.intervals, self.limit or self.intervals)
        self._since: Moment | None = None  # the last judgement, or a change and the calls from before it
        self._results = 0  # since then
        self._settling = self._most  # results that show the start, or calls from before the last change
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

    def observe(self, seconds: float, *, active: float, computed: float, waited: float, starved: float, spent: float = 0.0) -> None:
        """Tell it of a moment, whenever the server has taken a result: see `Moment`. spent: dollars so far."""
        moment = Moment(active, computed, waited, starved)
        self._observed, self._spent = self._observed + 1, spent
        if self._payable < self.workers:
            if not self.exhausted:
                self._change(seconds, self._payable, f"the budget pays for {self._payable} more tasks")
        elif self._settling:
            self._settling -= 1
        elif self._since is None:
            self._since = moment
        else:
            self._results += 1
            if self._results >= self._window:
                self._judge(seconds, self._since, moment)

    @property
    def _window(self) -> int:
        """Results to judge by: at least one of each worker; more after many changes, so that chance decides less and less."""
        changes = len(self.changes) - 1
        return max(self.epoch * min(1 + changes // _CHANGES, _LONGEST), _WINDOW, self.workers)

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

    def _judge(self, seconds: float, before: Moment, now: Moment) -> None:
        self._since, self._results = now, 0
        elapsed, workers = max(now.active - before.active, 1e-9), self.workers
        used, waits = (now.computed - before.computed) / elapsed, (now.waited - before.waited) / elapsed
        starved = (now.starved - before.starved) / elapsed
        if starved > _STARVED:
            target = min(self._bounds.more(workers, math.ceil(workers / max(1 - starved, 1 / _FAST))), self._payable)
            self._change(seconds, target, f"too few: the server waits {starved:.0%} of its time, and tasks wait for workers")
        elif waits < 1 - _BUSY and used + 1 < _USED * workers:
            target = self._bounds.fewer(workers, math.ceil((used + 1) / _USED))
            self._change(seconds, target, f"too many: {used:.1f} compute, and the server waits {waits:.0%} of its time")

    def _change(self, seconds: float, workers: int, reason: str) -> None:
        if workers != self.workers:
            self._since, self._results, self._settling = None, 0, max(workers, self.workers)
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
        self.low, self.high = self.low if self.low < min(workers, _STALE * estimate) else 0, workers
        return self._between() or max(estimate, math.floor(workers / self._widened()), 1)

    def more(self, workers: int, estimate: int) -> int:
        """What to try where `workers` were too few."""
        self.low, self.high = workers, self.high if self.high > max(workers, estimate / _STALE) else math.inf
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
