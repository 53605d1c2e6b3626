"""`overlap`: operators of several groups on two workers, never two of one class at a time. A pure function of their seconds.

Sums over neighbors wait for memory, products for arithmetic units: one of each overlaps, two of one class do not. A group's tasks
that read state keep their order and stay with the group's worker. A sum that reads x alone waits for nothing: it runs ahead on the
second worker, and its result waits in a queue of bounded length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Task:
    """An operator of a snapshot of a group."""

    group: int
    snapshot: int
    operator: str
    kind: Literal["graph", "dense"]
    seconds: float
    ahead: bool = False  # whether it reads x alone


@dataclass(frozen=True)
class Placed:
    """A task on its worker, from `begin` to `end`."""

    task: Task
    worker: int
    begin: float
    end: float


@dataclass(frozen=True)
class Overlap:
    """The schedule of two workers."""

    placed: tuple[Placed, ...]
    most_waiting: int  # results that ran ahead and were not yet used, at the most

    @property
    def makespan(self) -> float:
        return max((placed.end for placed in self.placed), default=0.0)

    @property
    def alone(self) -> float:
        """Seconds of one worker."""
        return sum(placed.task.seconds for placed in self.placed)

    @property
    def bound(self) -> float:
        """What no schedule can beat: the seconds of the longer class, or of the longest chain of a group."""
        kinds = [sum(p.task.seconds for p in self.placed if p.task.kind == kind) for kind in ("graph", "dense")]
        chains: dict[int, float] = {}
        for p in self.placed:
            if not p.task.ahead:
                chains[p.task.group] = chains.get(p.task.group, 0.0) + p.task.seconds
        return max(*kinds, *chains.values(), 0.0) if chains else max(*kinds, 0.0)


def overlap(tasks: Sequence[Task], *, queue: int = 2) -> Overlap:
    """Place tasks, given in the order in which one worker would do them, on two workers.

    queue: results of sums that ran ahead which may wait at a time.

    >>> import headrace as hr
    >>> Task = hr.snapshots.Task
    >>> tasks = [Task(g, 0, name, kind, 1.0) for g in (0, 1) for name, kind in (("sum", "graph"), ("gates", "dense"))]
    >>> placed = hr.snapshots.overlap(tasks)
    >>> placed.makespan, placed.alone
    (3.0, 4.0)
    """
    if queue < 1:
        raise ValueError(f"queue must be at least 1, not {queue}")
    state = _State(tasks, queue)
    while state.step():
        pass
    return Overlap(tuple(state.placed), state.most_waiting)


class _State:
    """Chains that are under way: at most one for each worker, the next group when one has ended."""

    def __init__(self, tasks: Sequence[Task], queue: int) -> None:
        groups: dict[int, list[Task]] = {}
        for task in tasks:
            groups.setdefault(task.group, []).append(task)
        self._chains = [[task for task in own if not task.ahead] for own in groups.values()]
        self._ahead = [[task for task in own if task.ahead] for own in groups.values()]
        self._done_ahead: list[dict[int, float]] = [{} for _ in self._chains]  # by snapshot: when its sums were there
        self._at = [0] * len(self._chains)
        self._ready = [0.0] * len(self._chains)
        self._class_free = {"graph": 0.0, "dense": 0.0}
        self._worker_free = [0.0, 0.0]
        self._used: list[float] = []  # when each result that ran ahead was taken
        self._queue = queue
        self.placed: list[Placed] = []
        self.most_waiting = 0

    def step(self) -> bool:
        """Place the task that can begin earliest; False when all are placed."""
        options = [*self._of_chains(), *self._of_ahead()]
        if not options:
            return False
        begin, _, group, task, worker = min(options, key=lambda option: option[:3])
        end = begin + task.seconds
        self.placed.append(Placed(task, worker, begin, end))
        self._class_free[task.kind], self._worker_free[worker] = end, end
        if task.ahead:
            self._ahead[group].pop(0)
            self._done_ahead[group][task.snapshot] = end
            ran = sum(placed.task.ahead for placed in self.placed)
            self.most_waiting = max(self.most_waiting, ran - sum(used <= begin for used in self._used))
        else:
            first = self._at[group] == 0 or self._chains[group][self._at[group] - 1].snapshot != task.snapshot
            if first and task.snapshot in self._done_ahead[group]:
                self._used.append(begin)
            self._at[group] += 1
            self._ready[group] = end
        return True

    def _of_chains(self) -> list[tuple[float, int, int, Task, int]]:
        under_way = [g for g, chain in enumerate(self._chains) if self._at[g] < len(chain)][:2]
        options = []
        for group in under_way:
            task = self._chains[group][self._at[group]]
            waits = [t for t in self._ahead[group] if t.snapshot <= task.snapshot]
            if waits:
                continue
            arrived = self._done_ahead[group].get(task.snapshot, 0.0)
            worker = min((0, 1), key=lambda w: (self._worker_free[w], w))
            begin = max(self._ready[group], self._class_free[task.kind], self._worker_free[worker], arrived)
            options.append((begin, 0, group, task, worker))
        return options

    def _of_ahead(self) -> list[tuple[float, int, int, Task, int]]:
        """The next sum that reads x alone, once a place in the queue is free."""
        group = next((g for g, own in enumerate(self._ahead) if own), None)
        if group is None:
            return []
        ran = sum(placed.task.ahead for placed in self.placed)
        if ran - len(self._used) >= self._queue:
            return []
        free = 0.0 if ran < self._queue else self._used[ran - self._queue]
        task = self._ahead[group][0]
        return [(max(self._class_free[task.kind], self._worker_free[1], free), 1, group, task, 1)]
