"""Lines to draw: columns of numbers over epochs, with no more points than an eye can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from headrace.train.report.read import LoggedRun, Record, Repeat, number, record

_POINTS = 1000  # a line of a measure or the loss: about one point per pixel
_SMALL_POINTS = 200  # a line of a small chart, or of the batches behind a curve
_MANY_EPOCHS = 100  # from here on the means of epochs show the shape, and batches only noise
_DIGITS = 5

HITS = (1, 3, 10)
Column = list[float | None]


def curves(run: LoggedRun) -> list[dict[str, Column]]:
    """Loss and measures of each repeat against epoch and seconds. Repeats share the points that one line would have."""
    limit = max(_SMALL_POINTS, _POINTS // len(run.repeats))
    measured = [f"{split}_{measure.name}" for measure in run.measures for split in ("val", "train")]
    lines = []
    for repeat in run.repeats:
        columns = {name: [number(e.get(name)) for e in repeat.epochs] for name in ("epoch", "seconds", "loss", *measured)}
        for k in HITS:
            columns[f"val_hits{k}"] = [number(record(e.get("val")).get(f"hits@{k}")) for e in repeat.epochs]
        lines.append(_thinned(columns, ("loss", *measured[:1]), limit))
    return lines


def batch_losses(run: LoggedRun) -> list[dict[str, Column]]:
    """Loss of single batches, where batches were recorded often enough to say more than the epochs do."""
    return [_batch_losses(repeat) for repeat in run.repeats]


def loads(run: LoggedRun) -> list[dict[str, Column]]:
    """Throughput, memory, reuse of buffers, batches in flight and what the disk did, of each repeat, per epoch."""
    lines = []
    for repeat in run.repeats:
        rows = [_load(epoch) for epoch in repeat.epochs]
        columns = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
        lines.append(_thinned(columns, ("edges", "peak"), _SMALL_POINTS))
    return lines


def keep(columns: Sequence[Sequence[float | None]], limit: int) -> list[int]:
    """Which of many points to draw: the first, the last, and the lowest and highest of each column in every stretch between.

    Points at even distances would lose the spikes, and a spike of the loss is what a report is opened for.
    """
    length = len(columns[0]) if columns else 0
    if length <= limit:
        return list(range(length))
    stretches = max((limit - 2) // (2 * len(columns)), 1)
    bounds = [1 + (length - 2) * i // stretches for i in range(stretches + 1)]
    kept = {0, length - 1}
    for begin, stop in pairwise(bounds):
        for column in columns:
            known = [(value, i) for i in range(begin, stop) if (value := column[i]) is not None]
            kept |= {min(known)[1], max(known)[1]} if known else set()
    return sorted(kept)


def short(value: float | None) -> float | None:
    """A number with the digits that can be seen: the page holds many thousands of them."""
    if value is None:
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded


def _thinned(columns: dict[str, Column], shape: Sequence[str], limit: int) -> dict[str, Column]:
    kept = keep([columns[name] for name in shape if name in columns], limit)
    return {name: [short(column[i]) for i in kept] for name, column in columns.items() if any(v is not None for v in column)}


def _load(epoch: Record) -> dict[str, float | None]:
    throughput, memory, cache = (record(epoch.get(name)) for name in ("throughput", "memory", "cache"))
    hits, misses = number(cache.get("hits")), number(cache.get("misses"))
    row: dict[str, Any] = {name: epoch.get(name) for name in ("epoch", "seconds")}
    row |= {name: throughput.get(name) or None for name in ("seeds", "edges", "bytes")}  # 0 where a task has no such thing
    row |= {name: memory.get(name) for name in ("data", "resident", "peak", "buffers", "buffers_peak")}
    row["in_flight"] = epoch.get("in_flight")
    disk = record(epoch.get("disk"))
    row |= {f"disk_{name}": disk.get(name) for name in ("loads", "bytes_read", "bytes_written", "busy", "stall_seconds")}
    row["reuse"] = hits / (hits + misses) if hits is not None and misses is not None and hits + misses > 0 else None
    return {name: number(value) for name, value in row.items()}


def _batch_losses(repeat: Repeat) -> dict[str, Column]:
    steps = [step for step in repeat.steps if number(step.get("loss")) is not None]
    if len(steps) < 3 * max(len(repeat.epochs), 1) or len(repeat.epochs) > _MANY_EPOCHS:
        return {}
    columns: dict[str, Column] = {
        "epoch": _places(steps, repeat.epochs),
        "seconds": [number(step.get("seconds")) for step in steps],
        "loss": [number(step.get("loss")) for step in steps],
    }
    return _thinned(columns, ("loss",), _SMALL_POINTS)


def _places(steps: Sequence[Record], epochs: Sequence[Record]) -> Column:
    """Where on the axis of epochs a batch lies: those of epoch 3 from 2.5 to 3.5, around the point of their mean."""
    batches: dict[float, float] = {}
    before = 0.0
    for epoch in epochs:
        after = number(epoch.get("step"))
        if after is not None and after > before:
            batches[epoch["epoch"]] = after - before
            before = after
    usual = max([*batches.values(), *(1 + (number(step.get("batch")) or 0) for step in steps)])
    return [step["epoch"] - 0.5 + min((number(step.get("batch")) or 0) / batches.get(step["epoch"], usual), 1.0) for step in steps]
