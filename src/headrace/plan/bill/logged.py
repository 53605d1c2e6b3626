"""`LoggedUse`: what a run directory says of the time, the servers and the calls that a run took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.cluster.bill.calls import Call, read_calls
from headrace.train.report.read import Record, number, record
from headrace.train.run import Run


@dataclass(frozen=True)
class LoggedUse:
    """What a run used so far; of a run with repeats, all of them one after the other."""

    path: Path
    seconds: float
    servers: int
    epochs: int
    ended: bool
    on_gpu: bool
    communication: float | None  # seconds in exchanges over seconds of epochs, on rank 0; None where there is one rank
    calls: Sequence[Call]


def read_use(path: Path) -> LoggedUse:
    """Read a run directory, finished or not. ValueError or OSError say what is missing or damaged."""
    if not path.exists():
        raise FileNotFoundError(f"there is no run at {path}")
    options = Run(path).header["options"]
    folders = sorted(folder for folder in path.glob("repeat-*") if folder.is_dir()) or [path]
    logs = [Run(folder).metrics() for folder in folders]
    times = [max((number(line.get("seconds")) or 0.0 for line in log), default=0.0) for log in logs]
    if not any(times):
        raise ValueError(f"{path} has no step in its log: there is nothing to pay for yet")
    calls = [
        replace(call, began=call.began + math.fsum(times[:place]))
        for place, folder in enumerate(folders)
        for call in read_calls(folder)
    ]
    epochs = [line for log in logs for line in log if line.get("kind") == "epoch"]
    sizes = [number(record(line.get("ranks")).get("size")) or 1 for line in epochs]
    return LoggedUse(
        path,
        math.fsum(times),
        servers=int(max(sizes, default=1)),
        epochs=len(epochs),
        ended=all(any(line.get("kind") == "end" for line in log) for log in logs),
        on_gpu=str(options.get("device", "")).startswith("cuda"),
        communication=_communication(epochs),
        calls=calls,
    )


def _communication(epochs: Sequence[Record]) -> float | None:
    """Where exchanges of several threads go on at once, the seconds of each count, so that it may be above 1."""
    phases = [record(record(line.get("ranks")).get("phases")) for line in epochs]
    seconds = math.fsum(number(line.get("epoch_seconds")) or 0.0 for line in epochs)
    if not any(phases) or not seconds:
        return None
    return math.fsum(number(record(phase).get("seconds")) or 0.0 for names in phases for phase in names.values()) / seconds
