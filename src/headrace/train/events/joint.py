"""`JointRecipe`: the trainers of a process as lanes of one batch, which a GPU computes in one go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

from torch import Tensor

from headrace.pipeline import Pipeline, Stage
from headrace.ranks import Exchange
from headrace.temporal import EventBatch, JointBatch, JointEvents, LaneMemory, Room, Turn
from headrace.train.captured import CapturedStep, captures
from headrace.train.events.recipe import TemporalRecipe
from headrace.train.recipe import Step
from headrace.train.watching.clock import Clock

_MAKERS = 8  # threads that make batches, at the most: more wait for one another


class JointRecipe(TemporalRecipe):
    """Link prediction on a stream of events, where a batch of the loop is an iteration of the schedule: that of all trainers.

    Its loss is the mean over the iteration's events, so its gradient is the one that trainers apart sum up. Copies of the memory
    are slices of one table. On a GPU an iteration is recorded once and replayed: it gathers memory, updates and writes it, embeds,
    and goes backward.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        if self.ranks.size > 1:
            raise ValueError(f"lanes together are of one process, and there are {self.ranks.size} ranks: leave lanes out")
        self._size = int(self.make.cuts.diff().max())
        self._sets_made: dict[tuple[int, int], _Once] = {}  # by trainer and position, of turns that stay
        steps = self.options.epochs * self.schedule.iterations
        on_gpu, asked = self.device.type == "cuda", self.options.capture
        begins, self.capture_reason = captures(self.model.tgn, asked, on_gpu=on_gpu, sampled=True, steps=steps)
        self.captured = CapturedStep(self.model, self._loss_of, Room) if begins else None

    def _copies(self, exchange: Exchange | None) -> LaneMemory:
        tgn, options = self.model.tgn, self.options
        ends = 2 + options.negatives * self.head.draws
        grown = sum(prod(self._hops()[:hop]) for hop in range(len(self._hops()) + 1))
        held = min(int(self.make.cuts.diff().max()) * ends * grown, self.stream.num_nodes)
        sizes = {"memory": tgn.memory_width, "mail": tgn.mail_width, "held": held}
        return LaneMemory(self.schedule, self.stream.num_nodes, **sizes, device=self.device)

    def num_batches(self, epoch: int) -> int:
        return self.schedule.iterations

    def owners(self, epoch: int, first: int, count: int) -> Sequence[int] | None:
        return None

    def batches(self, epoch: int, first: int) -> Iterator[JointBatch]:  # type: ignore[override]
        self._prepare(epoch)
        self._sets_made.clear()
        ahead = self.options.staleness
        makers = min(max(ahead, 1), _MAKERS) if self.device.type == "cuda" else 1
        stage = Stage("prepare", lambda iteration: self.iteration(epoch, iteration), threads=makers)
        iterations = range(first, self.schedule.iterations)
        self._sweep = epoch
        self._pipeline = Pipeline(iterations, [stage], staleness=ahead, trace=self.trace)
        return iter(self._pipeline)

    def iteration(self, sweep: int, iteration: int) -> JointBatch:
        turns = self.schedule.turns(iteration)
        sets = self._sets_of([turn for turn in turns if turn is not None], sweep)
        lanes = [None if turn is None else self.copies.lane(turn, next(sets)) for turn in turns]
        batch = JointBatch(
            lanes,
            self._size,
            self.copies.spare_row,
            holds=self.schedule.j > 1 and self.has_memory,
            with_edges=self.edge_x is not None,
            device=self.device,
        )
        room = None if self.captured is None else self.captured.room
        own = batch.room()
        batch.laid_out(own if room is None or not room.holds(own) else room)  # type: ignore[arg-type]
        return batch

    def _sets_of(self, turns: Sequence[Turn], sweep: int) -> Iterator[list[EventBatch]]:
        """All sets of each turn. Of trainers that stay, they are made when one begins (or goes on, in a run that is resumed)."""
        if self.schedule.j == 1:
            return iter([[events] for events in self._made([asked for turn in turns for asked in self._asked(sweep, turn)])])
        return iter([self._kept_sets(turn, sweep) for turn in turns])

    def _kept_sets(self, turn: Turn, sweep: int) -> list[EventBatch]:
        key = turn.trainer, turn.position
        sets = self._sets_made.setdefault(key, _Once(lambda: self._sets(sweep, turn))).get()
        if turn.stay + 1 == self.schedule.j:
            self._sets_made.pop(key, None)
        return sets

    def loss(self, batch: JointBatch, clock: Clock) -> Step:  # type: ignore[override]
        with clock("forward"):
            self.copies.reset(batch)
            replayed = None if self.captured is None else self.captured(batch)
            (loss,) = replayed or self._loss_of(batch.joined())
            self.copies.note(batch, self._base(self._sweep))
        events = [lane.events for lane in batch.parts]
        roots, distinct = sum(len(part.age) for part in events), sum(len(part.nodes) for part in events)
        edges = sum(len(part.dt) for part in events)
        return Step(loss, batch.events, nodes=(roots, distinct), edges=(edges,), ready=replayed is not None)

    def _loss_of(self, events: JointEvents) -> tuple[Tensor]:
        def write(letters: Tensor) -> None:
            self.copies.write(events, letters)

        losses = self.losses(self.copies.read(events), events, write)
        return ((losses * events.weight).sum(),)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.copies.state_dict()
        return state if self.captured is None else state | {"captured": self.captured.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.copies.load_state_dict(state["memory"], state["slots"])
        if self.options.capture == "auto":  # as the run began, however many steps it has by now
            self.captured = CapturedStep(self.model, self._loss_of, Room) if "captured" in state else None
        if self.captured is not None and "captured" in state:
            self.captured.load_state_dict(state["captured"])


class _Once:
    """What several threads ask for and one makes, when it is first asked for."""

    def __init__(self, make: Callable[[], list[EventBatch]]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._made: list[EventBatch] | None = None

    def get(self) -> list[EventBatch]:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made
