"""A run in plain lines, for logs and pipes."""

from __future__ import annotations

import time
from typing import Any

import typer

from headrace._sizes import format_size
from headrace.train import StepEvent, Watcher

_EVERY_SECONDS = 10.0


class Lines(Watcher):
    """A line per epoch, and one every few seconds within an epoch, on standard error."""

    def __init__(self) -> None:
        self.batches = self.epochs = 0
        self.said = 0.0

    def begin(self, header: dict[str, Any], *, epochs: int, batches: int, epoch: int, batch: int) -> None:
        self.batches, self.epochs = batches, epochs
        data = header["dataset"]
        place = f", going on at epoch {epoch + 1}, batch {batch + 1}" if epoch or batch else ""
        name = header["options"].get("model") or header["options"].get("decoder", header["task"])
        what = f"{name} with {header['parameters'] or 0:,} parameters"
        self._say(
            f"{what} on {data['nodes']:,} nodes, {data['edges']:,} edges: {epochs} epochs of {batches} batches, "
            f"seed {header['options']['seed']}{place}"
        )

    def step(self, event: StepEvent, clock: dict[str, float]) -> None:
        if time.monotonic() - self.said > _EVERY_SECONDS:
            accuracy = "" if event.accuracy is None else f" accuracy {event.accuracy:.4f}"
            self._say(f"epoch {event.epoch + 1}/{self.epochs} batch {event.batch}/{self.batches} loss {event.loss:.4f}{accuracy}")

    def validating(self, done: int, total: int) -> None:
        if time.monotonic() - self.said > _EVERY_SECONDS:
            self._say(f"evaluated {done:,} of {total:,}")

    def epoch(self, facts: dict[str, Any]) -> None:
        if facts["epoch_seconds"] < 1 and time.monotonic() - self.said < 1 and facts["epoch"] + 1 < self.epochs:
            return  # hundreds of short epochs are not worth a line each
        val = facts["val_mrr"] if "val_mrr" in facts else facts["val_accuracy"]
        scores = f" train {facts['train_accuracy']:.4f}" if "train_accuracy" in facts else ""
        if val is not None:
            scores += f" val {'mrr ' if 'val_mrr' in facts else ''}{val:.4f}"
        disk = facts.get("disk") or {}
        read = f", {format_size(disk['bytes_read'])} of features read" if "hit_rate" in disk else ""
        seconds = f"{facts['epoch_seconds']:.2f} s"
        self._say(f"epoch {facts['epoch'] + 1}/{self.epochs} loss {facts['loss']:.4f}{scores} in {seconds}{read}")

    def note(self, text: str) -> None:
        self._say(text)

    def end(self, facts: dict[str, Any]) -> None:
        test = "" if facts.get("test_accuracy") is None else f", test accuracy {facts['test_accuracy']:.4f}"
        if facts.get("test"):
            ranked = facts["test"]
            test = f", test mrr {ranked['mrr']:.4f} ({ranked['ranking']}, {ranked['measure']})"
        self._say(f"{facts['reason']} after {facts['seconds']:.1f} s{test} (best epoch {facts['best_epoch'] + 1})")

    def _say(self, text: str) -> None:
        self.said = time.monotonic()
        typer.echo(text, err=True)
