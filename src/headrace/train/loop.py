"""`Trainer`: the loop that every recipe runs in. Steps, ranks, validation, checkpoints, early stopping, log; nothing of a task."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from time import perf_counter
from typing import Any

from torch import Tensor

from headrace._memory import process_memory
from headrace.pipeline import Trace
from headrace.ranks import Alone, Exchange, Ranks
from headrace.store import kept_memory
from headrace.train.interrupt import Interrupt, Stopped, StopRequest, interruptible
from headrace.train.measure import split_scores
from headrace.train.options import LoopOptions
from headrace.train.recipe import LossError, Progress, Recipe, Step
from headrace.train.run import Run
from headrace.train.state import State, first_not_finite
from headrace.train.steps.accumulate import Accumulator
from headrace.train.steps.optimize import learning_rate
from headrace.train.steps.reading import Reading
from headrace.train.steps.sums import Sums
from headrace.train.watching.clock import Clock
from headrace.train.watching.watch import StepEvent, Watcher

_END = object()  # no batch is this
_TELL_SECONDS = 0.25  # from one look at the stages to the next
_STOP, _SAVE = 1, 2  # what a rank may ask for after a step
_GO_ON = "resume it with more epochs to go on (--resume --epochs)"


class Trainer:
    """Runs a recipe to its end, from the beginning or from a checkpoint: the same bits in either case.

    ranks: processes that train together. `run` and `watcher` are rank 0's. Whatever a clock, a signal or a validation decides is
        decided once and known to all ranks at the same step.
    accumulate: batches per step, over all ranks.
    """

    def __init__(
        self,
        recipe: Recipe,
        options: LoopOptions,
        run: Run | None,
        watcher: Watcher,
        trace: Trace | None = None,
        *,
        ranks: Ranks | None = None,
        exchange: Exchange | None = None,
        accumulate: int = 1,
    ) -> None:
        self.recipe, self.options, self.run, self.watcher, self.trace = recipe, options, run, watcher, trace
        self.ranks = ranks or Alone()
        self.accumulate = accumulate
        recipe.update = recipe.make_update(options)
        several = accumulate > 1 or self.ranks.size > 1 or bool(recipe.own_gradients)
        self.accumulator = Accumulator(recipe, self.ranks, exchange) if several else None
        self.state = State()
        self.best_state: dict[str, Any] | None = None
        self.clock = Clock(trace)
        self.ended: dict[str, Any] | None = None
        self._last: dict[str, Any] | None = None  # at the end of a run: weights of its last epoch, where the best are others
        self._unread: Callable[[], None] | None = None  # a step whose numbers are still on their way
        self._resumed_seconds, self._begin, self._saved, self._told = 0.0, perf_counter(), perf_counter(), 0.0

    def fit(self, header: dict[str, Any]) -> dict[str, Any]:
        """Train; returns the last line of the log. Raises KeyboardInterrupt, with a checkpoint written, if asked to stop."""
        if self.ended is not None:
            return self.ended
        self._begin = self._saved = perf_counter()
        state, epochs = self.state, self.options.epochs
        batches = self.recipe.num_batches(min(state.epoch, epochs - 1))
        self.watcher.begin(header, epochs=epochs, batches=batches, epoch=state.epoch, batch=state.batch)
        with interruptible() as interrupt, kept_memory():
            try:
                while state.epoch < epochs and not state.stopped:
                    self._epoch(interrupt)
                end = self._finish(interrupt)
                if any(self.ranks.all_gather(interrupt.asked)):  # after the last look: what follows this run is not wanted
                    raise Stopped
                return end
            except StopRequest:
                self.recipe.assemble()
                self.save()
                self.ranks.barrier()  # none ends before the checkpoint is written
                reasons = [reason for reason in self.ranks.all_gather(self.recipe.must_stop()) if reason]
                raise Stopped(*reasons[:1]) from None
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

    def epoch(self, interrupt: Interrupt | None = None) -> None:
        """Train one epoch, or what is left of it; or to where it may stop, if asked to. For benchmarks: `fit` trains to the end."""
        with kept_memory(), suppress(StopRequest):
            self._epoch(interrupt or Interrupt())

    def _epoch(self, interrupt: Interrupt) -> None:
        state = self.state
        self.clock.seconds = dict(state.sums.time)
        count = self.recipe.num_batches(state.epoch)
        self._batches(count, interrupt)
        while state.batch < count:  # batches in flight had to land
            self._batches(count, interrupt)
        self._end_epoch(interrupt)

    def _batches(self, count: int, interrupt: Interrupt) -> None:
        """Steps to the end of the epoch; or to a save or a stop, if batches in flight must land for it."""
        state, asked, begin = self.state, 0, perf_counter()
        batches = self.recipe.batches(state.epoch, state.batch)
        try:
            while state.batch < count:
                if self.accumulator is None:
                    with self.clock("wait", state.batch):
                        batch = next(batches, _END)
                    if batch is _END:  # all that was in flight has landed
                        break
                    self._step(batch)
                    del batch  # its buffers serve the next one
                    asked |= self._ask(interrupt)
                else:
                    asked |= self._wide_step(self.accumulator, batches, count, self._ask(interrupt))
                self._remember_time(begin)
                begin = perf_counter()
                if asked and not self.recipe.land():
                    self._do(asked)
                    asked, begin = 0, perf_counter()
            else:
                next(batches, None)  # what follows the last batch
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()
        self._remember_time(begin)
        if asked:
            self._do(asked)

    def _ask(self, interrupt: Interrupt) -> int:
        """The request of this rank after the next step. Rank 0 alone looks at the clock."""
        due = self.run is not None and perf_counter() - self._saved >= self.options.checkpoint_seconds
        return _STOP * (interrupt.asked or self.recipe.must_stop() is not None) | _SAVE * due

    def _do(self, asked: int) -> None:
        if asked & _STOP:
            raise StopRequest
        if asked & _SAVE:
            self.recipe.assemble()
            self.save()

    def _remember_time(self, begin: float) -> None:
        self.state.sums.seconds += perf_counter() - begin
        self.state.sums.time = dict(self.clock.seconds)
        self.state.seconds = self._resumed_seconds + perf_counter() - self._begin

    def _rate(self, done: int) -> float:
        return learning_rate(self.options, done, self.recipe.num_batches(self.state.epoch))

    def _step(self, batch: Any) -> None:
        state, update = self.state, self.recipe.update
        if update is not None:
            update.begin(self._rate(state.step))
            update.seed(state.epoch, state.batch)
        try:
            done = self.recipe.step(batch, self.clock)
        except LossError as error:
            raise self._loss_error(error.loss, state.epoch, state.batch) from None
        numbers = done.read()
        if isinstance(done.loss, Tensor) and done.loss.requires_grad:
            done = replace(done, loss=done.loss.detach())  # what is left of the graph must not outlive the step
        state.batch += 1
        state.step += 1
        self._settle()
        if numbers.on_their_way:  # the next step is launched before this one's are waited for
            self._unread = partial(self._count, done, numbers, state.epoch, state.batch, state.step)
        else:
            self._count(done, numbers, state.epoch, state.batch, state.step)

    def _wide_step(self, accumulator: Accumulator, batches: Iterator[Any], count: int, ask: int) -> int:
        state, clock = self.state, self.clock
        first, size = state.batch, min(self.accumulate, count - state.batch)
        rate = self._rate(state.step)
        wide = accumulator.step(batches, size, epoch=state.epoch, first=first, rate=rate, ask=ask, clock=clock)
        if (bad := wide.not_finite) is not None:
            raise self._loss_error(float(wide.batches[bad].loss), state.epoch, first + bad)
        for done in wide.batches:
            state.batch += 1
            state.step += 1
            self._count(done, done.read(), state.epoch, state.batch, state.step)
        return wide.asked

    def _settle(self) -> None:
        """Count the last step, if it has not been."""
        if self._unread is not None:
            count, self._unread = self._unread, None
            count()

    def _loss_error(self, loss: float, epoch: int, batch: int) -> FloatingPointError:
        rate = self._rate(max(self.state.step - 1, 0))
        return FloatingPointError(
            f"the loss is {loss} at epoch {epoch}, batch {batch}: look for huge features, or lower lr ({rate:g})"
        )

    def _count(self, done: Step, numbers: Reading, epoch: int, batch: int, step: int) -> None:
        if numbers.on_their_way:
            with self.clock("read", batch - 1):
                loss, *values = numbers.take()
        else:
            loss, *values = numbers.take()
        if not math.isfinite(loss):
            raise self._loss_error(loss, epoch, batch - 1)
        measured = dict(zip(done.sums, values, strict=True)) if values else {}
        self.state.sums.add(done, loss, measured)
        event = StepEvent(
            epoch=epoch,
            batch=batch,
            step=step,
            seconds=self._resumed_seconds + perf_counter() - self._begin,
            loss=loss,
            measures={name: value / max(done.seeds, 1) for name, value in measured.items()} if values else {},
            seeds=done.seeds,
            nodes=sum(done.nodes),
            edges=sum(done.edges),
            bytes=done.bytes,
        )
        if self.run is not None and step % self.options.log_every == 0:
            line = asdict(event)
            line.pop("bytes")
            self.run.log("step", **{**line.pop("measures"), **line})
        self.watcher.step(event, self.clock.seconds)
        if (now := perf_counter()) - self._told >= _TELL_SECONDS:
            self._told = now
            self.watcher.stages([asdict(times) for times in self.recipe.stages()])

    def _end_epoch(self, interrupt: Interrupt) -> None:
        self._settle()
        state, options, sums, begin = self.state, self.options, self.state.sums, perf_counter()
        self.recipe.assemble()
        self._check_weights(dict(self.recipe.weights()))
        training, throughput = sums.seconds, sums.throughput()
        state.train_seconds += training
        facts, stages = self.recipe.facts(), self.recipe.stages()
        last = state.epoch + 1 == options.epochs
        every = options.validate_every
        scores: dict[str, Any] | None = None
        if last or (every and (state.epoch + 1) % every == 0):
            with self.clock("validate"):
                scores = self.ranks.broadcast(self.recipe.validate(self._progress(interrupt)))
        self._judge(scores, last=last)
        self._remember_time(begin)
        time = self.clock.take()
        time["other"] = max(sums.seconds - sum(time.values()), 0.0)
        line = {
            "epoch": state.epoch,
            "step": state.step,
            "seconds": state.seconds,
            "epoch_seconds": sums.seconds,
            "train_seconds": training,
            **sums.means(),
            **split_scores(self.recipe.measures, {"val": scores}),
            "lr": self._rate(state.step - 1),
            "bytes": sums.bytes,
            "time": time,
            "throughput": throughput,
            "sampled": sums.sampled(state.batch),
            "stages": [asdict(times) for times in stages],
            **facts,
        }
        line["memory"] = {**process_memory(), **facts.get("memory", {})}
        state.epoch, state.batch, state.sums = state.epoch + 1, 0, Sums()
        if self.run is not None:
            self.run.log("epoch", **line)
        self.watcher.epoch(line)
        asked = self._ask(interrupt)
        for other in self.ranks.all_gather(asked):
            asked |= other
        if asked & _STOP:
            raise StopRequest
        if asked & _SAVE:
            self.save()

    def _judge(self, scores: dict[str, Any] | None, *, last: bool) -> None:
        if scores is not None and self.state.judge(self.recipe.measures, scores, self.options.patience):
            # The last epoch's weights are in place already: they need no copy.
            self.best_state = self.recipe.best_state() if self.recipe.keeps_best and not last else None

    def _finish(self, interrupt: Interrupt) -> dict[str, Any]:
        state, recipe = self.state, self.recipe
        if self.best_state is not None:
            recipe.swap_best(self.best_state)
            self._last, self.best_state = self.best_state, None
        splits = self.ranks.broadcast(recipe.test(self._progress(interrupt)))
        at_best = recipe.keeps_best and state.best_epoch >= 0
        splits.setdefault("val", state.best if at_best else state.last)
        end = {
            "reason": "early stop" if state.stopped else "finished",
            "seconds": self._resumed_seconds + perf_counter() - self._begin,
            "train_seconds": state.train_seconds,
            "best_epoch": state.best_epoch if at_best else state.epoch - 1,
            **split_scores(recipe.measures, splits),
            **recipe.finish(self.run),
        }
        if state.still_improves(self.options.validate_every):
            further = f"; {_GO_ON}" if self.run is not None and self.options.schedule == "constant" else ""
            self.watcher.note(f"validation was still improving when the run ended, after {state.epoch} epochs{further}")
        if self.run is not None:
            before = self.run.log_position()
            self.run.log("end", **end)
            self.save(end, before)
        self.watcher.end(end)
        self.ended = end
        return end

    def _progress(self, interrupt: Interrupt) -> Progress:
        def tell(done: int, total: int) -> None:
            if interrupt.asked and self.ranks.size == 1:  # several ranks stop together, after the validation
                raise StopRequest
            self.watcher.validating(done, total)

        return tell

    def save(self, end: dict[str, Any] | None = None, before_end: int = 0) -> None:
        """Write a checkpoint of everything the rest of the run depends on. Nothing may be in flight.

        end, before_end: the last line of the log, if the run has ended, and how long the log was before it.
        """
        if self.run is None:
            return
        self._settle()
        recipe = self.recipe
        self._check_weights(dict(recipe.weights()))
        recipe.save(
            self.run,
            {
                "state": asdict(self.state),
                "model": recipe.model.state_dict(),
                "optimizer": None if recipe.update is None else recipe.update.optimizer.state_dict(),
                "recipe": recipe.state_dict(),
                "best": self.best_state,
                "end": end,
                "last": self._last,
                "before_end": before_end,
            },
        )
        self._saved = perf_counter()

    def _check_weights(self, weights: dict[str, Tensor]) -> None:
        """Raise FloatingPointError before weights that are lost are validated, or replace a checkpoint that is not."""
        if (name := first_not_finite(weights)) is not None:
            raise FloatingPointError(
                f"the weights ({name}) are no longer finite at epoch {self.state.epoch}, batch {self.state.batch}: "
                f"lower lr ({self._rate(max(self.state.step - 1, 0)):g})"
            )

    def restore(self) -> None:
        """Go on from the run's last checkpoint, or from the beginning where there is none. Rank 0 reads it for all."""
        if self.run is None and self.ranks.rank == 0:
            raise ValueError("there is no run to resume: it has no directory")
        saved = self.ranks.broadcast(None if self.run is None else self.recipe.load(self.run))
        if saved is None:
            if self.run is not None:
                if self.run.log_position():
                    self.watcher.note("there is no checkpoint: the run begins anew")
                self.run.cut_log(0)
            return
        if self.run is not None:
            self.run.check_log(saved["log_position"])
            if not self.run.log_position():
                self.watcher.note("metrics.jsonl is gone: the log goes on without the lines before this")
        recipe = self.recipe
        self.state = State.load(saved["state"])
        recipe.model.load_state_dict(saved["model"])
        if recipe.update is not None:
            recipe.update.optimizer.load_state_dict(saved["optimizer"])
        recipe.load_state_dict(saved["recipe"])
        self.best_state, self.ended = saved["best"], saved["end"]
        self._resumed_seconds = self.state.seconds
        extended = self.ended is not None and self.state.goes_further(self.options.epochs, self.options.patience)
        if extended:
            self._extend(saved.get("last"))
        if self.run is not None:
            self.run.cut_log(saved["before_end" if extended else "log_position"])

    def _extend(self, last: dict[str, Any] | None) -> None:
        """From the end of a run, which has its best weights, back to its last epoch, with the best ones kept."""
        if last is not None:
            self.recipe.swap_best(last)
            self.best_state = last
        elif self.recipe.keeps_best and self.state.best_epoch >= 0:
            self.best_state = self.recipe.best_state()
        self.ended, self.state.stopped = None, False
