"""TensorBoard events of a run. Needs the extra `tensorboard`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.train.watch import StepEvent, Watcher


def summary_writer() -> Any:
    """Torch's writer, or an error that says what is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("tensorboard needs the package of that name: pip install headrace[tensorboard]") from None
    return SummaryWriter


class TensorBoard(Watcher):
    """Writes losses, accuracies, times and throughput to a folder that `tensorboard --logdir` shows."""

    def __init__(self, folder: Path, every: int) -> None:
        self.writer: Any = summary_writer()(str(folder))
        self.every = every

    def step(self, event: StepEvent, clock: dict[str, float]) -> None:
        if event.step % self.every == 0:
            self.writer.add_scalar("train/loss", event.loss, event.step)
            if event.accuracy is not None:
                self.writer.add_scalar("train/accuracy", event.accuracy, event.step)

    def epoch(self, facts: dict[str, Any]) -> None:
        for name in ("loss", "train_accuracy", "val_accuracy", "val_loss", "epoch_seconds", "lr"):
            if facts.get(name) is not None:
                self.writer.add_scalar(f"epoch/{name}", facts[name], facts["epoch"])
        for part, seconds in facts["time"].items():
            self.writer.add_scalar(f"time/{part}", seconds, facts["epoch"])
        for name, rate in facts["throughput"].items():
            self.writer.add_scalar(f"throughput/{name}", rate, facts["epoch"])

    def close(self) -> None:
        self.writer.close()
