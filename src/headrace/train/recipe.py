"""`Recipe`: a task, as the training loop sees it, and `Step`, what a recipe says of one batch."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from headrace.loader.base import Loader
from headrace.pipeline import StageTimes
from headrace.train.measure import Measure
from headrace.train.options import LoopOptions, RunOptions
from headrace.train.run import Run
from headrace.train.steps.optimize import Update
from headrace.train.steps.reading import Reading
from headrace.train.watching.clock import Clock

_PIECE = 1 << 20  # numbers that are exchanged at a time
Progress = Callable[[int, int], None]  # how much of a validation is done, of how much


class LossError(FloatingPointError):
    """The loss of a batch is not finite."""

    def __init__(self, loss: float) -> None:
        super().__init__(f"the loss is {loss}")
        self.loss = loss


@dataclass(frozen=True)
class Step:
    """One batch: its loss, and what it took."""

    loss: Tensor | float  # the mean over its seeds
    seeds: int  # examples that the batch learns from
    sums: dict[str, Tensor | float] = field(default_factory=dict)  # of measures over the seeds, such as correct predictions
    weight: Tensor | float | None = None  # what the loss is a mean over, where that is not the number of seeds
    nodes: tuple[int, ...] = ()  # seeds, then what each hop added
    edges: tuple[int, ...] = ()  # that each hop drew
    bytes: int = 0  # of features read
    ready: bool = False  # whether the gradients are in place already
    reading: Reading | None = None  # loss and sums, where they are on their way to the host already

    def read(self) -> Reading:
        """Loss and sums, which a device sends when it has come to this point; it need not have done what is launched after."""
        return self.reading or Reading(self.loss, *self.sums.values())


def swap(some: dict[str, Tensor], others: dict[str, Tensor]) -> None:
    """Exchange the values of two sets of tensors, by name, with little memory beside them."""
    for name, mine in some.items():
        mine, other = torch.atleast_1d(mine.detach(), others[name])
        rows = max(_PIECE * max(len(mine), 1) // max(mine.numel(), 1), 1)
        for a, b in zip(mine.split(rows), other.split(rows), strict=True):
            kept = a.clone()
            a.copy_(b)
            b.copy_(kept)


class Recipe:
    """A task: its batches, the loss of one, and how good the model is.

    Subclasses set `model` and `loader` (or define `batches` and `num_batches`), and define `loss`.

    The loop calls `step` for every batch. Where several batches make a step, or several ranks train, it calls `gradients` and
    sums them itself; everything else is called on every rank alike. `measures` are what `validate` and `test` return values of:
    the first decides which weights are best and when patience is over.
    """

    model: nn.Module
    loader: Loader | None = None  # what makes the batches, with a `Shard` of `Setup.accumulate` batches a step
    measures: tuple[Measure, ...] = ()
    update: Update | None = None  # set by the loop
    keeps_best: bool = True  # whether a run ends with its best weights; else with its last
    own_gradients: Sequence[nn.Parameter] = ()  # of parameters that `close_step` brings itself: ranks do not sum them

    def num_batches(self, epoch: int) -> int:
        """Batches of an epoch, over all ranks."""
        return self._batch_loader.num_batches

    def batches(self, epoch: int, first: int) -> Iterator[Any]:
        """The batches of an epoch from batch `first` on: of several ranks, those of this one.

        A batch depends on the seed, the epoch and its index alone.
        """
        self._batch_loader.resume(epoch, first)
        return iter(self._batch_loader)

    def owners(self, epoch: int, first: int, count: int) -> Sequence[int] | None:
        """The rank of each of `count` batches of a step; None where rank r of n has batches r, r + n, ... Called on every rank.

        `batches` then gives those of this rank, in order. Who makes a batch changes no result.
        """
        return None

    @property
    def _batch_loader(self) -> Loader:
        if self.loader is None:
            raise NotImplementedError(f"{type(self).__name__} has no loader: set one, or define num_batches and batches")
        return self.loader

    def loss(self, batch: Any, clock: Clock) -> Step:
        """The forward pass."""
        raise NotImplementedError

    def gradients(self, batch: Any, clock: Clock) -> Step:
        """Forward and backward pass."""
        done = self.loss(batch, clock)
        self._backward(done, clock)
        return done

    def step(self, batch: Any, clock: Clock) -> Step:
        """Forward and backward pass, and an update of the weights."""
        assert self.update is not None
        done = self.loss(batch, clock)
        numbers = done.read()  # before the backward pass is launched, so that the loop need not wait for that
        if not numbers.on_their_way and not math.isfinite(loss := numbers.take()[0]):
            raise LossError(loss)
        self._backward(done, clock)
        with clock("step"):
            self.update()
        return replace(done, reading=numbers)

    def _backward(self, done: Step, clock: Clock) -> None:
        if not done.ready:
            assert isinstance(done.loss, Tensor)
            with clock("backward"):
                done.loss.backward()  # type: ignore[no-untyped-call]

    def end_batches(self) -> None:
        """When this rank has made its batches of a step, before it tells the others: help them with theirs."""

    def close_step(self, weight: float) -> None:
        """After the batches of a step of several: set the gradients of `own_gradients`, sums over batches divided by `weight`."""

    def assemble(self) -> None:
        """Before weights are validated, copied or saved, on every rank: put together what ranks hold parts of."""

    def land(self) -> bool:
        """Start no further batch. False where a batch has no effect before its `step`, so that nothing is in flight.

        Otherwise `batches` ends after those that were in flight, and the loop saves, stops or evaluates then.
        """
        return False

    def must_stop(self) -> str | None:
        """Why the run must stop at a checkpoint after this step, such as a budget that is spent; None to go on."""
        return None

    def validate(self, progress: Progress) -> dict[str, Any] | None:
        """Values of the measures on validation data, and what else is worth logging; None where there is none."""
        return None

    def test(self, progress: Progress) -> dict[str, dict[str, Any] | None]:
        """Values of the measures by split, of the weights that the run ends with."""
        return {}

    def make_update(self, options: LoopOptions) -> Update | None:
        """What updates the weights; None for a recipe whose `step` does so by itself."""
        if not isinstance(options, RunOptions):
            raise TypeError(f"options of a recipe with weights must derive from RunOptions, and {type(options).__name__} does not")
        return Update(self.model, options)

    def state_dict(self) -> dict[str, Any]:
        """State of the task beside the model's: saved in checkpoints. On several ranks that of rank 0 is."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        """What must be finite before it is saved, by name."""
        return self.model.named_parameters()

    def best_state(self) -> dict[str, Any]:
        """A copy of the weights, which are the best so far."""
        return copy.deepcopy(self.model.state_dict())

    def swap_best(self, state: dict[str, Any]) -> None:
        """Exchange the weights with those of `state`, which `best_state` returned: it holds the others then."""
        swap(self.model.state_dict(), state)

    def save(self, run: Run, state: dict[str, Any]) -> None:
        """Write a checkpoint of the loop's state, the model's and this recipe's."""
        run.save_checkpoint(state)

    def load(self, run: Run) -> dict[str, Any] | None:
        """What `save` wrote last; None where there is no checkpoint."""
        return run.load_checkpoint() if run.has_checkpoint() else None

    def finish(self, run: Run | None) -> dict[str, Any]:
        """Write what others read from a finished run, where there is one; returns facts for the last line of the log."""
        if run is not None:
            run.save_checkpoint({"model": self.model.state_dict()}, "best")
        return {}

    def stages(self) -> list[StageTimes]:
        """What the pipeline's stages spent their time on, in this epoch so far."""
        return [] if self.loader is None else self.loader.stage_times

    def facts(self) -> dict[str, Any]:
        """Of the epoch that just ended, for the log: memory, cache."""
        return {}
