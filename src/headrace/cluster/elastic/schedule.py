"""`Schedule`: which tasks of a server's intervals are ready. It has no clock, no thread and no rows: it is told what happens.

An interval's progress is one number, the stages that it has done since the beginning. All that a stage waits for has one form: a
group of intervals must have done so many stages.

| flow  | a gather waits until                                 | an epoch waits until                                     |
| ----- | ---------------------------------------------------- | -------------------------------------------------------- |
| sync  | all have done the stage before                       | all have ended the epoch before, and weights are updated |
| pipe  | those whose rows it reads have done the stage before | the same                                                 |
| async | -                                                    | `Window` allows it                                       |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal, get_args

from headrace.cluster.elastic.task import Direction, Stages, Task
from headrace.pipeline import Window

Flow = Literal["sync", "pipe", "async"]

_UPDATE = -1  # stands among interval ids for the update of the weights, which is waited for too


class Schedule:
    """The tasks of one server's intervals, for a range of epochs.

    stages: of an interval in an epoch (`stages`).
    reads: of each own interval, the intervals whose rows it gathers in the forward pass. Its keys are the own intervals.
    reads_back: the same over reverse edges, for the backward pass.
    intervals: of all servers together; ids are 0 to `intervals - 1`.
    flow: see above. `sync` and `pipe` are exact. `async` is not, with a `lead` of 0 either: rows may be `lead + 1` epochs old.

    Call `start` when a task's rows are gathered, `done` when its result has come, `lost` to launch it again, `heard` when the rows
    of another server's task have come, and `updated` when the weights have all gradients of an epoch.

    >>> from headrace.cluster.elastic import stages
    >>> schedule = Schedule(stages(2), {0: {0, 1}, 1: {1}}, {0: {0}, 1: {0, 1}}, intervals=2, epochs=range(10))
    >>> print(*schedule.ready())
    0.f0.0 0.f0.1
    >>> for task in schedule.ready():
    ...     schedule.start(task)
    >>> schedule.done(Task.parse("0.f0.0")), [str(task) for task in schedule.ready()]  # interval 0 reads rows of interval 1
    (True, [])
    >>> schedule.done(Task.parse("0.f0.1")), [str(task) for task in schedule.ready()]
    (True, ['0.t1.0', '0.t1.1'])
    >>> schedule.done(Task.parse("0.f0.1"))  # a result counts once
    False
    """

    def __init__(
        self,
        stages: Stages,
        reads: Mapping[int, Collection[int]],
        reads_back: Mapping[int, Collection[int]],
        *,
        intervals: int,
        epochs: range,
        flow: Flow = "pipe",
        lead: int = 0,
    ) -> None:
        if flow not in get_args(Flow):
            raise ValueError(f"flow must be sync, pipe or async, not {flow!r}")
        if flow != "async" and lead:
            raise ValueError(f"flow {flow} has no lead, got {lead}: use flow async")
        if epochs.step != 1:
            raise ValueError(f"epochs must follow one another, got {epochs}")
        if reads.keys() != reads_back.keys():
            raise ValueError("reads and reads_back must have the same keys: the own intervals")
        for interval, read in (*reads.items(), *reads_back.items()):
            if outside := [i for i in (interval, *read) if not 0 <= i < intervals]:
                raise ValueError(f"interval ids must be from 0 to {intervals - 1}, not {outside[0]}")
        self.flow, self.stages, self.epochs = flow, stages, epochs
        self.window = Window(lead, epochs.start)
        self.most_lead = 0  # epochs that an own interval was ahead of the slowest
        self.most_age = 0  # epochs, of a row that an own interval read
        self.duplicates = 0  # results that came after one had counted
        self.relaunched = 0
        self._reads = {i: tuple(sorted(read)) for i, read in reads.items()}
        self._reads_back = {i: tuple(sorted(read)) for i, read in reads_back.items()}
        self._places = {stage: place for place, stage in enumerate(stages)}
        self._done = dict.fromkeys(range(intervals), 0)  # stages of each interval, since the first epoch
        self._started = dict.fromkeys(reads, 0)  # the same, of own ones
        self._updated = epochs.start  # the epoch for which the weights are complete
        self._exact_from = epochs.start if flow != "async" else epochs.stop
        self._awaited: dict[int, Iterator[int]] = {}  # by each own interval's next stage
        self._waiting_for: defaultdict[int, list[int]] = defaultdict(list)  # own intervals, by the one whose progress they need
        self._ready: set[Task] = set()
        for interval in reads:
            self._begin_waiting(interval)

    def ready(self) -> list[Task]:
        """Tasks that may start now, the most urgent first."""
        return sorted(self._ready)

    def start(self, task: Task) -> None:
        """A ready task is launched with the rows that are here now."""
        if task not in self._ready:
            raise ValueError(f"task {task} is not ready")
        self._ready.remove(task)
        position = self._done[task.interval]
        self._started[task.interval] = position + 1
        epoch, place = divmod(position, len(self.stages))
        if place == 0:
            self.most_lead = max(self.most_lead, task.epoch - self.slowest)
        elif read := self._read_by(task.interval, place):
            oldest = min(map(self._done.__getitem__, read))
            self.most_age = max(self.most_age, epoch - (oldest - place) // len(self.stages))

    def done(self, task: Task) -> bool:
        """A result has come. Whether it counts: the first of its key does, duplicates are counted and ignored."""
        position = self._own_position(task)
        if position >= self._started[task.interval]:
            raise ValueError(f"task {task} has a result but was never started")
        if position < self._done[task.interval]:
            self.duplicates += 1
            return False
        self._ready.discard(task)  # it was taken for lost
        self._advance(task.interval, position + 1)
        self._begin_waiting(task.interval)
        return True

    def lost(self, task: Task) -> bool:
        """Launch a task again, unless its result has come. The first launch may still end: either result counts."""
        position = self._own_position(task)
        if not self._done[task.interval] == position < self._started[task.interval] or task in self._ready:
            return False
        self.relaunched += 1
        self._ready.add(task)
        return True

    def heard(self, task: Task) -> None:
        """A task of another server is done, and its rows are here. Tasks of an interval come in order; repeats do no harm."""
        if task.interval in self._reads:
            raise ValueError(f"task {task} is of an own interval: use done")
        if (position := self._position(task) + 1) > self._done[task.interval]:
            self._advance(task.interval, position)

    def updated(self, epoch: int) -> None:
        """The weights have the gradients of `epoch` from all servers: an exact epoch after it may start."""
        self._updated = max(self._updated, epoch + 1)
        self._wake(_UPDATE)

    def settle(self, epoch: int) -> None:
        """Go on as `pipe` from `epoch` on, the same on all servers. No own interval may have started it (`fastest`)."""
        if self.flow != "async":
            raise ValueError(f"flow {self.flow} is exact from the beginning: only async settles")
        if epoch <= self.fastest:
            raise ValueError(f"epoch {epoch} has begun, so it cannot become exact: settle at {self.fastest + 1}")
        self._exact_from = min(epoch, self.epochs.stop)
        self._waiting_for.clear()
        for interval, started in self._started.items():
            if started == self._done[interval]:
                self._ready.discard(self._next_task(interval))
                self._begin_waiting(interval)

    @property
    def slowest(self) -> int:
        """The epoch of the slowest interval of all servers, as far as it is known here."""
        return self.epochs.start + min(self._done.values(), default=0) // len(self.stages)

    @property
    def fastest(self) -> int:
        """The last epoch that an own interval has started; before the first one, the epoch before it."""
        return self.epochs.start + (max(self._started.values(), default=0) - 1) // len(self.stages)

    @property
    def finished(self) -> bool:
        """Whether the own intervals have done all epochs."""
        return all(self._done[i] == len(self.epochs) * len(self.stages) for i in self._reads)

    def _begin_waiting(self, interval: int) -> None:
        if self._done[interval] < len(self.epochs) * len(self.stages):
            self._awaited[interval] = self._conditions(interval)
            self._go_on_waiting(interval)

    def _go_on_waiting(self, interval: int) -> None:
        awaited = next(self._awaited[interval], None)
        if awaited is None:
            self._ready.add(self._next_task(interval))
        else:
            self._waiting_for[awaited].append(interval)

    def _conditions(self, interval: int) -> Iterator[int]:
        """Yields whom the next stage waits for, and is resumed when that one has moved: so it looks at each interval once."""
        position, in_epoch = self._done[interval], len(self.stages)
        epoch, place = self.epochs.start + position // in_epoch, position % in_epoch
        exact = epoch >= self._exact_from
        if place == 0:
            reached = epoch if exact else self.window.needs(epoch)
            yield from self._behind(self._done, (reached - self.epochs.start) * in_epoch)
            while exact and self._updated < epoch:
                yield _UPDATE
        elif self.flow == "sync":
            yield from self._behind(self._done, position)
        elif exact or epoch == self.window.first:
            yield from self._behind(self._read_by(interval, place), position)

    def _behind(self, group: Iterable[int], position: int) -> Iterator[int]:
        for interval in group:
            while self._done[interval] < position:
                yield interval

    def _advance(self, interval: int, position: int) -> None:
        self._done[interval] = position
        self._wake(interval)

    def _wake(self, awaited: int) -> None:
        for interval in self._waiting_for.pop(awaited, ()):
            self._go_on_waiting(interval)

    def _read_by(self, interval: int, place: int) -> tuple[int, ...]:
        _, direction = self.stages[place]
        if direction == Direction.BACKWARD and self.stages[place - 1][1] == Direction.FORWARD:
            return (interval,)  # its gradient is that of the loss, which the server has made (`unfused`)
        return (self._reads_back if direction == Direction.BACKWARD else self._reads)[interval]

    def _next_task(self, interval: int) -> Task:
        epoch, place = divmod(self._done[interval], len(self.stages))
        layer, direction = self.stages[place]
        return Task(self.epochs.start + epoch, layer, direction, interval)

    def _own_position(self, task: Task) -> int:
        if task.interval not in self._reads:
            raise ValueError(f"task {task} is not of an own interval")
        return self._position(task)

    def _position(self, task: Task) -> int:
        """The stages that its interval has done before it."""
        place = self._places.get((task.layer, task.direction))
        if place is None or task.epoch not in self.epochs or task.interval not in self._done:
            raise ValueError(f"task {task} is none of this schedule")
        return (task.epoch - self.epochs.start) * len(self.stages) + place
