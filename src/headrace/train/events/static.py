"""Static rows: what a node is like whatever happened last, learnt by a first pass with a table in memory's place."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn

from headrace.graph import EventStream
from headrace.ranks import on_first
from headrace.train.events.options import TemporalOptions
from headrace.train.events.recipe import TemporalRecipe
from headrace.train.fit import Setup, describe, open_run
from headrace.train.loop import Trainer
from headrace.train.watching.watch import StepEvent, Watcher

_TELL_SECONDS = 20.0  # from one line to the next


def learned_rows(
    make: Callable[[nn.Embedding], TemporalRecipe], once: TemporalOptions, stream: EventStream, train_end: int, setup: Setup
) -> Tensor:
    """Rows of all nodes after a training with a table in memory's place; nodes that it has not seen have zeros.

    The training is a run of its own, in the folder `static` of the run's directory: what it has done it does not do again when the
    run goes on. It is rank 0's, and the others take its rows.  # -> [nodes, hidden]
    """
    return on_first(setup.ranks, lambda alive: _learned(make, once, stream, train_end, setup, alive))


def _learned(
    make: Callable[[nn.Embedding], TemporalRecipe],
    once: TemporalOptions,
    stream: EventStream,
    train_end: int,
    setup: Setup,
    alive: Callable[[], None],
) -> Tensor:
    seen = torch.zeros(stream.num_nodes, dtype=torch.bool)
    seen[stream.src[:train_end].long()] = True
    seen[stream.dst[:train_end].long()] = True
    passes = "1 epoch" if once.epochs == 1 else f"{once.epochs} epochs"
    setup.watcher.note(f"static rows of {int(seen.sum()):,} nodes are learnt first, in {passes} of the training events")
    torch.manual_seed(once.seed)
    table = nn.Embedding(stream.num_nodes, once.hidden)
    nn.init.normal_(table.weight, std=once.hidden**-0.5)
    recipe = make(table)
    setup.opened.callback(recipe.close)
    loss = _trained(recipe, once, setup, alive)
    unseen = int((~seen).sum())
    rest = f"; {unseen:,} nodes that training does not see have zeros" if unseen else ""
    setup.watcher.note(f"static rows are learnt: loss {loss:.4f}{rest}")
    return torch.where(seen[:, None], table.weight.detach().cpu(), 0.0)


def _trained(recipe: TemporalRecipe, once: TemporalOptions, setup: Setup, alive: Callable[[], None]) -> float:
    """Train, or go on, to the end; returns the last epoch's loss."""
    kept = _Kept(setup.watcher, alive)
    header = describe("static", {"nodes": recipe.stream.num_nodes, "edges": len(recipe.stream)}, once, None)
    if setup.folder is None:
        Trainer(recipe, once, None, kept).fit(header)
        return kept.loss
    place = setup.folder / "static"
    begun = (place / "options.json").exists()
    run = open_run(place, header, begun)
    setup.opened.callback(run.unlock)
    trainer = Trainer(recipe, once, run, kept)
    if begun:
        trainer.restore()
    trainer.fit(header)
    losses: list[float] = [line["loss"] for line in run.metrics("epoch")]
    return losses[-1] if losses else kept.loss


class _Kept(Watcher):
    """Shows the steps of the first pass in the run's place, and lets other ranks know that rank 0 is at work."""

    def __init__(self, watcher: Watcher, alive: Callable[[], None]) -> None:
        self._watcher, self._alive, self._told, self.loss = watcher, alive, monotonic(), float("nan")

    def step(self, event: StepEvent, clock: dict[str, float]) -> None:
        self._alive()
        if monotonic() - self._told > _TELL_SECONDS:
            self._told = monotonic()
            self._watcher.note(f"static rows: epoch {event.epoch + 1} batch {event.batch} loss {event.loss:.4f}")

    def epoch(self, facts: dict[str, Any]) -> None:
        self.loss = facts["loss"]


def check_features(features: Tensor | None, stream: EventStream) -> Tensor:
    """The nodes' features as static rows."""
    if features is None:
        raise ValueError("static features adds the nodes' features, and the data has none: use static learned or none")
    if len(features) != stream.num_nodes:
        raise ValueError(
            f"the data has features of {len(features)} nodes and events of {stream.num_nodes}: static needs a row each"
        )
    return features.float()
