"""TensorBoard events of a run. Needs the extra `tensorboard`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.train.measure import Measure
from headrace.train.watching.watch import StepEvent, Watcher


def summary_writer() -> Any:
    """Torch's writer, or an error that says what is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("tensorboard needs the package of that name: pip install headrace[tensorboard]") from None
    return SummaryWriter


class TensorBoard(Watcher):
    """Writes losses, measures, times and throughput to a folder that `tensorboard --logdir` shows."""

    def __init__(self, folder: Path, every: int, measures: Sequence[Measure]) -> None:
        self.writer: Any = summary_writer()(str(folder))
        self.every = every
        self.measures = [measure.name for measure in measures]

    def step(self, event: StepEvent, clock: dict[str, float]) -> None:
        if event.step % self.every == 0:
            self.writer.add_scalar("train/loss", event.loss, event.step)
            for name, value in event.measures.items():
                self.writer.add_scalar(f"train/{name}", value, event.step)

    def epoch(self, facts: dict[str, Any]) -> None:
        measured = (f"{split}_{name}" for name in self.measures for split in ("train", "val"))
        for name in ("loss", *measured, "epoch_seconds", "lr"):
            if facts.get(name) is not None:
                self.writer.add_scalar(f"epoch/{name}", facts[name], facts["epoch"])
        for part, seconds in facts["time"].items():
            self.writer.add_scalar(f"time/{part}", seconds, facts["epoch"])
        for name, rate in facts["throughput"].items():
            self.writer.add_scalar(f"throughput/{name}", rate, facts["epoch"])

    def end(self, facts: dict[str, Any]) -> None:
        for name in self.measures:
            if facts.get(f"test_{name}") is not None:
                self.writer.add_scalar(f"test/{name}", facts[f"test_{name}"], facts["best_epoch"])

    def close(self) -> None:
        self.writer.close()
