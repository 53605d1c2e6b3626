"""`Watcher`: is told by the loop what happens in a run, and never changes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StepEvent:
    """One batch is done."""

    epoch: int
    batch: int  # in its epoch
    step: int  # batches done in all
    seconds: float  # since the run began
    loss: float
    measures: dict[str, float]  # means over the seeds, of the measures that the task has in training
    seeds: int
    nodes: int
    edges: int
    bytes: int  # of features read


class Watcher:
    """Is told what happens. Subclasses override what they want to know; none may change the run."""

    def begin(self, header: dict[str, Any], *, epochs: int, batches: int, epoch: int, batch: int) -> None:
        """A run of `epochs` epochs of `batches` batches starts, or goes on, at `epoch` and `batch`."""

    def step(self, event: StepEvent, clock: dict[str, float]) -> None:
        """A step is done; `clock` has the epoch's seconds by part so far."""

    def stages(self, stages: list[dict[str, Any]]) -> None:
        """What each stage of the pipeline did in this epoch so far; told a few times a second."""

    def validating(self, done: int, total: int) -> None:
        """Validation goes on."""

    def epoch(self, facts: dict[str, Any]) -> None:
        """An epoch is done: the line that goes to metrics.jsonl."""

    def note(self, text: str) -> None:
        """Something the user should know."""

    def end(self, facts: dict[str, Any]) -> None:
        """The run is done: the last line of metrics.jsonl."""

    def close(self) -> None:
        """Nothing more comes, whether the run ended or failed."""


class Watchers(Watcher):
    """Tells several watchers as if they were one."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self.watchers = list(watchers)

    def begin(self, header: dict[str, Any], *, epochs: int, batches: int, epoch: int, batch: int) -> None:
        self._each(lambda w: w.begin(header, epochs=epochs, batches=batches, epoch=epoch, batch=batch))

    def step(self, event: StepEvent, clock: dict[str, float]) -> None:
        self._each(lambda w: w.step(event, clock))

    def stages(self, stages: list[dict[str, Any]]) -> None:
        self._each(lambda w: w.stages(stages))

    def validating(self, done: int, total: int) -> None:
        self._each(lambda w: w.validating(done, total))

    def epoch(self, facts: dict[str, Any]) -> None:
        self._each(lambda w: w.epoch(facts))

    def note(self, text: str) -> None:
        self._each(lambda w: w.note(text))

    def end(self, facts: dict[str, Any]) -> None:
        self._each(lambda w: w.end(facts))

    def close(self) -> None:
        self._each(lambda w: w.close())

    def _each(self, tell: Callable[[Watcher], None]) -> None:
        for watcher in self.watchers:
            tell(watcher)
