"""Run directories into plain objects, whatever state the trainer left them in.

A report is wanted most of a run that is still going on or that died, so of all files only `options.json` must be whole. A
line or file that cannot be read leaves a gap and is counted; it is never an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

from headrace._sealed import unsealed
from headrace.train.measure import Measure
from headrace.train.run import FORMAT

_LARGEST = 1e100  # no figure of a run is larger, and sums of smaller ones stay finite
_REPEAT = re.compile(r"repeat-(\d+)")

Record = dict[str, Any]


@dataclass(frozen=True)
class Repeat:
    """One training from its first to its last epoch: what the files of one directory say."""

    label: str
    about: Record
    epochs: list[Record]
    steps: list[Record]
    end: Record | None
    events: list[Record]
    unreadable: int


@dataclass(frozen=True)
class LoggedRun:
    """What was asked for (`about`: options.json), each repeat of it, and the figures over all repeats once they are done."""

    name: str
    path: Path
    about: Record
    repeats: list[Repeat]
    result: Record

    @property
    def repeated(self) -> bool:
        return len(self.repeats) > 1 or (number(self.options.get("repeats")) or 1) > 1

    @property
    def measures(self) -> list[Measure]:
        """The measures of the task, the deciding one first. Where the run does not record them, a repeat does."""
        for about in (self.about, *(repeat.about for repeat in self.repeats)):
            if measures := [measure for facts in records(about.get("measures")) if (measure := _measure(facts)) is not None]:
                return list({measure.name: measure for measure in measures}.values())
        return []

    @property
    def options(self) -> Record:
        return record(self.about.get("options"))

    @property
    def dataset(self) -> Record:
        return record(self.about.get("dataset"))


def read_runs(paths: Sequence[Path]) -> list[LoggedRun]:
    """Read every run, once each, and give them names that differ."""
    if not paths:
        raise ValueError("a report needs at least one run")
    unique: dict[Path, Path] = {}
    for path in paths:
        unique.setdefault(path.resolve(), path)
    runs = [read_run(path) for path in unique.values()]
    names = [run.name for run in runs]
    return [replace(run, name=f"{run.name} ({run.path})") if names.count(run.name) > 1 else run for run in runs]


def read_run(path: Path) -> LoggedRun:
    """Read one run directory, or one whose `repeat-*` directories hold a training each."""
    if not path.exists():
        raise FileNotFoundError(f"there is no run at {path}")
    if not (path / "options.json").is_file():
        raise ValueError(f"{path} is no run: it has no options.json{_runs_below(path)}")
    about = _whole(path / "options.json")
    if about is None:
        raise ValueError(f"{path / 'options.json'} is damaged or cannot be read: restore it from a copy")
    if about.get("format", FORMAT) != FORMAT:
        raise ValueError(f"{path} is a run of format {about['format']}, and this version of headrace reads format {FORMAT}")
    numbered = sorted((int(match[1]), below) for below in path.iterdir() if (match := _REPEAT.fullmatch(below.name)))
    repeats = [read_repeat(below, f"repeat {position}") for position, below in numbered if below.is_dir()]
    repeats = repeats or [read_repeat(path, "")]
    result, name = _whole(path / "result.json", "seconds"), about.get("name")
    # A run that has a result has ended: a log without its last line was cut.
    cut = result is not None and any(repeat.end is None for repeat in repeats)
    if cut or (result is None and (path / "result.json").exists()):
        repeats[0] = replace(repeats[0], unreadable=repeats[0].unreadable + 1)
    return LoggedRun(
        name=name if isinstance(name, str) and name.strip() else path.resolve().name,
        path=path,
        about=about,
        repeats=repeats,
        result=result or {},
    )


def read_repeat(path: Path, label: str) -> Repeat:
    """Read the metrics and the trace of one training.

    A run that was resumed from a checkpoint writes some epochs again. The later record counts, and what the earlier attempt
    did beyond it is forgotten, as the model itself forgot it. Epochs are counted from 1 here, as on a terminal; a log counts
    them from 0.
    """
    epochs: list[Record] = []
    steps: list[Record] = []
    end: Record | None = None
    lines, unreadable = _lines(path / "metrics.jsonl")
    for logged in lines:
        line = {**logged, **{name: at + 1 for name in ("epoch", "best_epoch") if (at := number(logged.get(name))) is not None}}
        kind, epoch = line.get("kind"), number(line.get("epoch"))
        if kind == "end":
            end = line
        elif kind == "epoch" and epoch is not None:
            while epochs and epochs[-1]["epoch"] >= epoch:
                epochs.pop()
            epochs.append(line)
            end = None
        elif kind == "step" and epoch is not None:
            while steps and _place(steps[-1]) >= _place(line):
                steps.pop()
            while epochs and epochs[-1]["epoch"] > epoch:
                epochs.pop()
            steps.append(line)
            end = None
    trace, about = _whole(path / "trace.json", "traceEvents"), _whole(path / "options.json")
    events = records((trace or {}).get("traceEvents"))
    for file, content in (("trace.json", trace), ("options.json", about)):
        unreadable += content is None and (path / file).exists()
    return Repeat(label, about or {}, epochs, steps, end, events, unreadable)


def number(value: object) -> float | None:
    """The value where it is a finite number; None where it is missing, not finite or absurdly large, or something else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) < _LARGEST else None


def record(value: object) -> Record:
    """The value where it is an object; else an empty one."""
    return value if isinstance(value, dict) else {}


def records(value: object) -> list[Record]:
    """The objects in a list; none where there is no list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _measure(facts: Record) -> Measure | None:
    """The measure that these facts describe; None where they describe none."""
    try:
        measure = Measure(**facts)
        return measure if isinstance(measure.name, str) and measure.shown(0.0) else None
    except (TypeError, ValueError):
        return None


def _place(step: Record) -> tuple[float, float]:
    return number(step.get("epoch")) or 0, number(step.get("batch")) or 0


def _whole(path: Path, needed: str | None = None) -> Record | None:
    """The object in a file; None where there is none, it is damaged, or it lacks the entry that is needed."""
    try:
        value = unsealed(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return None
    return None if needed is not None and needed not in value else value


def _lines(path: Path) -> tuple[list[Record], int]:
    """The objects of a file with one per line, and how many lines could not be read.

    A last line without an end is being written right now, and not counted.
    """
    lines: list[Record] = []
    unreadable = 0
    if not path.exists():
        return lines, unreadable
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return lines, 1
    for line in StringIO(text):
        try:
            lines.append(unsealed(line))
        except ValueError:
            unreadable += bool(line.strip()) and line.endswith("\n")
    return lines, unreadable


def _runs_below(path: Path) -> str:
    """A hint at the runs below `path`, for a user who passed a directory of runs."""
    names = sorted(below.parent.name for below in path.glob("*/options.json"))[:3] if path.is_dir() else []
    return f"; did you mean {', '.join(str(path / name) for name in names)}?" if names else ""
