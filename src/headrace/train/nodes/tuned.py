"""`Tuned`: gives an executor as many workers as its server can use (`Autotuner`), and says why."""

from __future__ import annotations

from time import monotonic
from typing import Any

from headrace.cluster import Task
from headrace.cluster.elastic import Autotuner, Change, Controller, PoolExecutor
from headrace.train.nodes.spending import Spending
from headrace.train.watching.watch import Watcher


class Tuned:
    """Is called whenever the server has taken a result.

    intervals, epoch: of this server, and its tasks of an epoch. limit: workers that there can be.
    """

    def __init__(
        self,
        executor: PoolExecutor[Any],
        controller: Controller[Task],
        watcher: Watcher,
        spending: Spending,
        *,
        intervals: int,
        epoch: int,
        limit: int | None = None,
    ) -> None:
        self._executor, self._controller, self._watcher, self._spending = executor, controller, watcher, spending
        self._tuner, self._began = Autotuner(intervals, limit, spending.share or None, epoch), monotonic()

    @property
    def changes(self) -> list[Change]:
        """Numbers of workers, and why."""
        return self._tuner.changes

    def __call__(self) -> None:
        """A result was taken."""
        tuner, counts = self._tuner, self._controller.counts
        seen = {name: getattr(counts, name) for name in ("active", "computed", "waited", "starved")}
        tuner.observe(monotonic() - self._began, **seen, spent=self._spending.dollars)
        if tuner.workers != self._executor.workers:
            self._executor.resize(tuner.workers)
            self._watcher.note(f"{tuner.workers} workers: {tuner.changes[-1].reason}")
