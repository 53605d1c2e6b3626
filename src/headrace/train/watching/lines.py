"""`Lines`: a run in plain lines, for logs, pipes and notebooks."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

from headrace._sizes import format_size
from headrace.train.measure import Measure
from headrace.train.watching.named_run import data_size, model_name, model_size
from headrace.train.watching.watch import StepEvent, Watcher

_EVERY_SECONDS = 10.0


class Lines(Watcher):
    """A line per epoch, and one every few seconds within an epoch, on standard error."""

    def __init__(self) -> None:
        self.batches = self.epochs = 0
        self.measures: dict[str, Measure] = {}
        self.said = 0.0

    def begin(self, header: dict[str, Any], *, epochs: int, batches: int, epoch: int, batch: int) -> None:
        self.batches, self.epochs = batches, epochs
        self.measures = {facts["name"]: Measure(**facts) for facts in header.get("measures", ())}
        place = f", going on at epoch {epoch + 1}, batch {batch + 1}" if epoch or batch else ""
        size, data = model_size(header), data_size(header)
        what = model_name(header) + f" with {size}" * bool(size) + f" on {data}" * bool(data)
        self._say(f"{what}: {epochs} epoch{'s' * (epochs != 1)} of {batches} batches, seed {header['options']['seed']}{place}")

    def step(self, event: StepEvent, clock: dict[str, float]) -> None:
        if time.monotonic() - self.said > _EVERY_SECONDS:
            scores = "".join(f" {name} {self._shown(name, value)}" for name, value in event.measures.items())
            self._say(f"epoch {event.epoch + 1}/{self.epochs} batch {event.batch}/{self.batches} loss {event.loss:.4f}{scores}")

    def validating(self, done: int, total: int) -> None:
        if time.monotonic() - self.said > _EVERY_SECONDS:
            self._say(f"evaluated {done:,} of {total:,}")

    def epoch(self, facts: dict[str, Any]) -> None:
        if facts["epoch_seconds"] < 1 and time.monotonic() - self.said < 1 and facts["epoch"] + 1 < self.epochs:
            return  # hundreds of short epochs are not worth a line each
        scores = "".join(self._scores(facts, split) for split in ("train", "val"))
        disk = facts.get("disk") or {}
        read = f", {format_size(disk['bytes_read'])} of features read" if "hit_rate" in disk else ""
        seconds = f"{facts['epoch_seconds']:.2f} s"
        self._say(f"epoch {facts['epoch'] + 1}/{self.epochs} loss {facts['loss']:.4f}{scores} in {seconds}{read}")

    def note(self, text: str) -> None:
        self._say(text)

    def end(self, facts: dict[str, Any]) -> None:
        test = self._scores(facts, "test")
        self._say(
            f"{facts['reason']} after {facts['seconds']:.1f} s{',' * bool(test)}{test} (best epoch {facts['best_epoch'] + 1})"
        )

    def _scores(self, facts: dict[str, Any], split: str) -> str:
        """The measure that decides, of a split where it is known; the others are in the log."""
        name = next(iter(self.measures), None)
        value = facts.get(f"{split}_{name}")
        return "" if name is None or value is None else f" {split} {name} {self._shown(name, value)}"

    def _shown(self, name: str, value: float) -> str:
        return self.measures[name].shown(value) if name in self.measures else f"{value:.4f}"

    def _say(self, text: str) -> None:
        self.said = time.monotonic()
        with contextlib.suppress(OSError, ValueError):  # training goes on without a line that cannot be written
            print(text, file=sys.stderr, flush=True)


def usual_watcher() -> Watcher:
    """What shows a run if nothing else was asked for: lines where somebody reads them, in a terminal or a notebook."""
    watched = "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())
    return Lines() if watched else Watcher()
