"""`Trainer`: the loop that every recipe runs in. Steps, validation, checkpoints, early stopping, the log; nothing of a task."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from headrace._memory import process_memory
from headrace.pipeline import StageTimes, Trace
from headrace.store import kept_memory
from headrace.train.clock import Clock
from headrace.train.interrupt import Interrupt, interruptible
from headrace.train.optimize import learning_rate, make_optimizer
from headrace.train.options import RunOptions
from headrace.train.random import random_state, set_random_state
from headrace.train.reading import Reading
from headrace.train.run import Run
from headrace.train.watch import StepEvent, Watcher


@dataclass(frozen=True)
class Step:
    """What a recipe says of one batch: its loss, and what it took."""

    loss: Tensor
    seeds: int
    right: Tensor | float  # predictions that are correct, of `seeds`
    nodes: tuple[int, ...] = ()  # seeds, then what each hop added
    edges: tuple[int, ...] = ()  # that each hop drew
    bytes: int = 0  # of features read
    ready: bool = False  # whether the gradients are there already


@dataclass(frozen=True)
class Score:
    """A validation: more accurate is better, and of equals the one with the smaller loss."""

    accuracy: float
    loss: float

    def better_than(self, other: Score | None) -> bool:
        return other is None or (self.accuracy, -self.loss) > (other.accuracy, -other.loss)


class Recipe(Protocol):
    """A task: what a batch is, what its loss is, how good the model is."""

    model: nn.Module

    @property
    def num_batches(self) -> int: ...

    def batches(self, epoch: int, first: int) -> Iterator[Any]:
        """The batches of an epoch from batch `first` on. They depend on the seed, the epoch and their index alone."""
        ...

    def loss(self, batch: Any, clock: Clock) -> Step: ...

    def validate(self, progress: Any) -> Score | None: ...

    def test(self, progress: Any) -> dict[str, float | None]:
        """Accuracies that the run ends with, of the best weights."""
        ...

    def stages(self) -> list[StageTimes]:
        """What the pipeline's stages spent their time on, in this epoch so far."""
        ...

    def facts(self) -> dict[str, Any]:
        """Of the epoch that just ended, for the log: memory, cache."""
        ...


@dataclass
class State:
    """Where a run stands. With the weights, the optimizer and the random state it is all that the rest of the run depends on."""

    epoch: int = 0
    batch: int = 0  # batches of the epoch that are done
    step: int = 0
    seconds: float = 0.0
    best: dict[str, float] | None = None
    best_epoch: int = -1
    stale: int = 0  # validations since the best
    stopped: bool = False  # by patience
    sums: dict[str, Any] = field(default_factory=dict)  # of the epoch so far


_END = object()  # no batch is this
_TELL_SECONDS = 0.25  # from one look at the stages to the next


class _StopError(Exception):
    """Somebody asked to stop, in a place where the state is whole."""


class Trainer:
    """Runs a recipe to its end, from the beginning or from a checkpoint: the same bits in either case."""

    def __init__(self, recipe: Recipe, options: RunOptions, run: Run | None, watcher: Watcher, trace: Trace | None = None) -> None:
        self.recipe, self.options, self.run, self.watcher, self.trace = recipe, options, run, watcher, trace
        self.optimizer = make_optimizer(recipe.model, options)
        self.state = State()
        self.best_weights: dict[str, Tensor] | None = None
        self.clock = Clock(trace)
        self.ended: dict[str, Any] | None = None
        self._unread: Callable[[], None] | None = None  # a step whose numbers are still on their way
        self._resumed_seconds, self._begin, self._saved, self._told = 0.0, perf_counter(), perf_counter(), 0.0

    def fit(self, header: dict[str, Any]) -> dict[str, Any]:
        """Train; returns the last line of the log. Raises KeyboardInterrupt, with a checkpoint written, if asked to stop."""
        if self.ended is not None:
            return self.ended
        self._begin = self._saved = perf_counter()
        state = self.state
        where = {"epochs": self.options.epochs, "batches": self.recipe.num_batches, "epoch": state.epoch, "batch": state.batch}
        self.watcher.begin(header, **where)
        with interruptible() as interrupt, kept_memory():
            try:
                while state.epoch < self.options.epochs and not state.stopped:
                    self._epoch(interrupt)
                end = self._finish(interrupt)
                if interrupt.asked:  # after the last look: the run is done, but what follows it is not wanted
                    raise KeyboardInterrupt
                return end
            except _StopError:
                self.save()
                raise KeyboardInterrupt from None
            finally:
                self._close_run()

    def _close_run(self) -> None:
        """Write the timeline and close the log. A disk that is full here must not hide what happened before."""
        if self.run is None:
            return
        try:
            self.run.close()
            if self.trace is not None and self.trace.spans:
                self.run.save_trace(self.trace)
        except OSError as error:
            self.watcher.note(f"the timeline could not be written: {error.strerror or error}")

    def epoch(self) -> None:
        """Train one epoch, or what is left of it. `fit` does so to the end; a benchmark wants one at a time."""
        with kept_memory():
            self._epoch(Interrupt())

    def _epoch(self, interrupt: Interrupt) -> None:
        state, options = self.state, self.options
        if not state.sums:
            state.sums = {"loss": 0.0, "right": 0.0, "seeds": 0, "nodes": [], "edges": [], "bytes": 0, "seconds": 0.0, "time": {}}
        begin = perf_counter()
        self.clock.seconds = dict(state.sums["time"])
        batches = self.recipe.batches(state.epoch, state.batch)
        try:
            while True:
                with self.clock("wait", state.batch):
                    batch = next(batches, _END)
                if batch is _END:
                    break
                self._step(batch)
                del batch  # its buffers serve the next one
                self._remember_time(begin)
                if perf_counter() - self._saved >= options.checkpoint_seconds:
                    self.save()
                begin = perf_counter()
                if interrupt.asked:
                    raise _StopError
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()
        self._end_epoch(begin, interrupt)

    def _remember_time(self, begin: float) -> None:
        self.state.sums["seconds"] += perf_counter() - begin
        self.state.sums["time"] = dict(self.clock.seconds)
        self.state.seconds = self._resumed_seconds + perf_counter() - self._begin

    def _step(self, batch: Any) -> None:
        state, options, clock = self.state, self.options, self.clock
        rate = learning_rate(options, state.step, self.recipe.num_batches)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.recipe.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        done = self.recipe.loss(batch, clock)
        numbers = Reading(done.loss, done.right)
        later = done.loss.is_cuda  # the next step is launched before this one's numbers are waited for
        if not later:
            self._check_loss(numbers.take()[0], state.epoch, state.batch)
        if not done.ready:
            with clock("backward", state.batch):
                done.loss.backward()  # type: ignore[no-untyped-call]
        with clock("step", state.batch):
            if options.clip:
                torch.nn.utils.clip_grad_norm_(self.recipe.model.parameters(), options.clip)
            self.optimizer.step()
        state.batch += 1
        state.step += 1
        done = replace(done, loss=done.loss.detach())  # what is left of the graph must not outlive the step
        self._settle()
        self._unread = partial(self._count, done, numbers, state.epoch, state.batch, state.step)
        if not later:
            self._settle()

    def _settle(self) -> None:
        """Count the last step, if it has not been."""
        if self._unread is not None:
            count, self._unread = self._unread, None
            count()

    def _check_loss(self, loss: float, epoch: int, batch: int) -> None:
        if not math.isfinite(loss):
            rate = self.optimizer.param_groups[0]["lr"]
            raise FloatingPointError(
                f"the loss is {loss} at epoch {epoch}, batch {batch}: look for huge features, or lower lr ({rate:g})"
            )

    def _count(self, done: Step, numbers: Reading, epoch: int, batch: int, step: int) -> None:
        with self.clock("read", batch - 1) if numbers.on_their_way else nullcontext():
            loss, right = numbers.take()
        self._check_loss(loss, epoch, batch - 1)
        sums = self.state.sums
        sums["loss"] += loss * done.seeds
        sums["right"] += right
        sums["seeds"] += done.seeds
        sums["bytes"] += done.bytes
        for name, sizes in (("nodes", done.nodes), ("edges", done.edges)):
            before = sums[name] or [0] * len(sizes)
            sums[name] = [a + b for a, b in zip(before, sizes, strict=True)]
        event = StepEvent(
            epoch=epoch,
            batch=batch,
            step=step,
            seconds=self._resumed_seconds + perf_counter() - self._begin,
            loss=loss,
            accuracy=right / max(done.seeds, 1),
            seeds=done.seeds,
            nodes=sum(done.nodes),
            edges=sum(done.edges),
            bytes=done.bytes,
        )
        if self.run is not None and step % self.options.log_every == 0:
            line = asdict(event)
            line.pop("bytes")
            self.run.log("step", **line)
        self.watcher.step(event, self.clock.seconds)
        if perf_counter() - self._told >= _TELL_SECONDS:
            self._told = perf_counter()
            self.watcher.stages([asdict(times) for times in self.recipe.stages()])

    def _end_epoch(self, begin: float, interrupt: Interrupt) -> None:
        self._settle()
        state, options, sums = self.state, self.options, self.state.sums
        self._check_weights()
        batches = max(state.batch, 1)
        training = sums["seconds"]
        facts, stages = self.recipe.facts(), self.recipe.stages()
        last = state.epoch + 1 == options.epochs
        score: Score | None = None
        if last or (state.epoch + 1) % options.validate_every == 0:
            with self.clock("validate"):
                score = self.recipe.validate(self._progress(interrupt))
        if score is not None:
            if score.better_than(None if state.best is None else Score(**state.best)):
                state.best, state.best_epoch, state.stale = asdict(score), state.epoch, 0
                self.best_weights = copy.deepcopy(self.recipe.model.state_dict())
            else:
                state.stale += 1
                state.stopped = bool(options.patience) and state.stale >= options.patience
        self._remember_time(begin)
        time = self.clock.take()
        time["other"] = max(sums["seconds"] - sum(time.values()), 0.0)
        rates = {name: total / training for name, total in _totals(sums).items()} if training else {}
        line = {
            "epoch": state.epoch,
            "step": state.step,
            "seconds": state.seconds,
            "epoch_seconds": sums["seconds"],
            "loss": sums["loss"] / max(sums["seeds"], 1),
            "train_accuracy": sums["right"] / max(sums["seeds"], 1),
            "val_accuracy": None if score is None else score.accuracy,
            "val_loss": None if score is None else score.loss,
            "lr": self.optimizer.param_groups[0]["lr"],
            "time": time,
            "throughput": rates,
            "sampled": {name: [n / batches for n in sums[name]] for name in ("nodes", "edges")} if sums["edges"] else None,
            "stages": [asdict(times) for times in stages],
            **facts,
        }
        line["memory"] = {**process_memory(), **facts.get("memory", {})}
        state.epoch, state.batch, state.sums = state.epoch + 1, 0, {}
        if self.run is not None:
            self.run.log("epoch", **line)
        self.watcher.epoch(line)
        if interrupt.asked:
            raise _StopError
        if perf_counter() - self._saved >= options.checkpoint_seconds:
            self.save()

    def _finish(self, interrupt: Interrupt) -> dict[str, Any]:
        state = self.state
        if self.best_weights is not None:
            self.recipe.model.load_state_dict(self.best_weights)
        scores = self.recipe.test(self._progress(interrupt))
        end = {
            "reason": "early stop" if state.stopped else "finished",
            "seconds": self._resumed_seconds + perf_counter() - self._begin,
            "best_epoch": state.best_epoch if state.best_epoch >= 0 else state.epoch - 1,
            **scores,
        }
        if self.run is not None:
            self.run.log("end", **end)
            self.run.save_checkpoint({"model": self.recipe.model.state_dict()}, "best")
            self.save(end)
        self.watcher.end(end)
        self.ended = end
        return end

    def _progress(self, interrupt: Interrupt) -> Any:
        def tell(done: int, total: int) -> None:
            if interrupt.asked:
                raise _StopError
            self.watcher.validating(done, total)

        return tell

    def save(self, end: dict[str, Any] | None = None) -> None:
        """Write a checkpoint of everything the rest of the run depends on."""
        if self.run is None:
            return
        self._settle()
        self._check_weights()
        self.run.save_checkpoint(
            {
                "state": asdict(self.state),
                "model": self.recipe.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "best_weights": self.best_weights,
                "random": random_state(),
                "end": end,
            }
        )
        self._saved = perf_counter()

    def _check_weights(self) -> None:
        """Raise FloatingPointError before weights that are lost are validated, or replace a checkpoint that is not."""
        named = list(self.recipe.model.named_parameters())
        if not named:
            return
        finite = torch.stack([torch.isfinite(weights).all() for _, weights in named]).tolist()  # a GPU is waited for once
        for (name, _), is_finite in zip(named, finite, strict=True):
            if not is_finite:
                raise FloatingPointError(
                    f"the weights ({name}) are no longer finite at epoch {self.state.epoch}, batch {self.state.batch}: "
                    f"lower lr ({self.optimizer.param_groups[0]['lr']:g})"
                )

    def restore(self) -> None:
        """Go on from the run's last checkpoint, or from the beginning where there is none."""
        if self.run is None:
            raise ValueError("there is no run to resume: it has no directory")
        if not self.run.has_checkpoint():
            self.run.cut_log(0)
            return
        saved = self.run.load_checkpoint()
        self.state = State(**saved["state"])
        self.recipe.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.best_weights, self.ended = saved["best_weights"], saved["end"]
        set_random_state(saved["random"])
        self._resumed_seconds = self.state.seconds
        self.run.cut_log(saved["log_position"])
        if self.ended is not None and self.best_weights is not None:
            self.recipe.model.load_state_dict(self.best_weights)


def _totals(sums: dict[str, Any]) -> dict[str, float]:
    return {"seeds": sums["seeds"], "edges": sum(sums["edges"]), "bytes": sums["bytes"]}
