"""Single figures of a run: what the summary says, and where the time went on average."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any

from headrace.train.measure import Measure
from headrace.train.report.curves import short
from headrace.train.report.read import LoggedRun, Record, Repeat, number, record, records

UNFINISHED = "still running or interrupted"

RANKING = ("mrr", "hits@1", "hits@3", "hits@10", "mean_rank", "candidates")  # what is known of a ranking of edges

_SPENT = ("busy", "starved", "held")


def summary(run: LoggedRun) -> dict[str, Any]:
    """The row of the summary table."""
    epochs = [epoch for repeat in run.repeats for epoch in repeat.epochs]
    times = _numbers(epoch.get("epoch_seconds") for epoch in epochs)
    peaks = _numbers(record(epoch.get("memory")).get("peak") for epoch in epochs)
    return {
        "model": str(run.options.get("model") or run.options.get("decoder") or run.about.get("task", "")),
        "parameters": _parameters(run),
        "epochs": [len(repeat.epochs) for repeat in run.repeats],
        "best_epochs": [_best_epoch(run, repeat) for repeat in run.repeats],
        "measures": measures(run),
        "ranks": ranks(run),
        "classes": classes(run),
        "phases": phases(run),
        "predicted": {name: number(value) for name, value in record(record(run.about.get("plan")).get("predicted")).items()},
        "median_epoch": short(statistics.median(times)) if times else None,
        "seconds": short(_seconds(run)),
        "peak": max(peaks, default=None),
        "status": status(run),
        "notes": _notes(run),
    }


def status(run: LoggedRun) -> str:
    """How the run ended, as far as it did."""
    ends = [repeat.end for repeat in run.repeats if repeat.end is not None]
    wanted = max(int(number(run.options.get("repeats")) or 1), len(run.repeats))
    if len(ends) < wanted:
        return UNFINISHED + (f" ({len(ends)} of {wanted} repeats done)" if run.repeated else "")
    return ", ".join(dict.fromkeys(str(end.get("reason", "ended")) for end in ends))


def measures(run: LoggedRun) -> list[dict[str, Any]]:
    """Each measure with its values in validation and test, and the best value that the dataset allows."""
    possible = record(run.dataset.get("best_possible"))
    return [
        measure.plain()
        | {split: _spread(run, split, measure) for split in ("val", "test")}
        | {"possible": short(number(possible.get(measure.name)))}
        for measure in run.measures
    ]


def ranks(run: LoggedRun) -> list[dict[str, Any]]:
    """How the true ends of test edges rank, by name: among all nodes or sampled ones, filtered or raw. Means of the repeats."""
    tests = [record((repeat.end or {}).get("test")) for repeat in run.repeats]
    rows = []
    for name in sorted({name for test in tests for name in test if isinstance(test[name], dict)}):
        means = {figure: _mean(record(test.get(name)).get(figure) for test in tests) for figure in RANKING}
        if any(value is not None for value in means.values()):  # else it is no ranking
            rows.append({"name": name.replace("_", " "), "edges": _mean(test.get("edges") for test in tests), **means})
    return rows


def classes(run: LoggedRun) -> list[dict[str, Any]]:
    """Test nodes, precision, recall and F1 of each class: the mean over the repeats that have ended."""
    tables = [table for repeat in run.repeats if (table := records(record((repeat.end or {}).get("test")).get("classes")))]
    names = record(run.about.get("dataset")).get("class_names")
    known = [str(name) for name in names] if isinstance(names, list) else []
    rows = []
    for place, same in enumerate(zip(*tables, strict=False)):
        means = {figure: _mean(row.get(figure) for row in same) for figure in ("nodes", "precision", "recall", "f1")}
        rows.append({"name": known[place] if place < len(known) else str(place), **means})
    return rows


def phases(run: LoggedRun) -> list[dict[str, Any]]:
    """What rank 0 sent to others in an epoch, and the seconds it took, by phase: the mean over all epochs."""
    known = [moved for repeat in run.repeats for epoch in repeat.epochs if (moved := record(epoch.get("ranks")))]
    names = dict.fromkeys(name for moved in known for name in record(moved.get("phases")))
    rows = []
    for name in names:
        of_phase = [record(record(moved.get("phases")).get(name)) for moved in known]
        rows.append({"name": name} | {figure: _mean(phase.get(figure) for phase in of_phase) for figure in ("sent", "seconds")})
    return rows


def time_parts(run: LoggedRun) -> dict[str, float | None]:
    """Seconds of an epoch by what the training thread did: the mean over all epochs."""
    times = [time for repeat in run.repeats for epoch in repeat.epochs if (time := record(epoch.get("time")))]
    names = dict.fromkeys(name for time in times for name in time)
    return {name: short(sum(number(time.get(name)) or 0.0 for time in times) / len(times)) for name in names}


def stages(run: LoggedRun) -> list[dict[str, Any]]:
    """Of the seconds that the threads of each stage had, the shares in which they were busy, starved and held.

    `seconds` are those that they were busy in an epoch, all together: the mean over all epochs.
    """
    totals: dict[str, dict[str, float]] = {}
    epochs = [epoch for repeat in run.repeats for epoch in repeat.epochs]
    for epoch in epochs:
        for stage in records(epoch.get("stages")):
            total = totals.setdefault(str(stage.get("name")), dict.fromkeys(("threads", "had", *_SPENT), 0.0))
            total["threads"] = threads = number(stage.get("threads")) or 1
            spent = {part: number(stage.get(part)) or 0.0 for part in _SPENT}
            # Threads that began before the epoch's clock may have spent more than it shows: shares end at 100 %.
            total["had"] += max(threads * (number(epoch.get("epoch_seconds")) or 0.0), sum(spent.values()))
            for part, seconds in spent.items():
                total[part] += seconds
    return [
        {"name": name, "threads": total["threads"], "seconds": short(total["busy"] / len(epochs))}
        | {part: short(total[part] / total["had"]) for part in _SPENT}
        for name, total in totals.items()
        if total["had"] > 0
    ]


def sampled(run: LoggedRun) -> dict[str, list[float | None]]:
    """Nodes and edges of a batch by hop: the mean over all epochs."""
    samples = [sample for repeat in run.repeats for epoch in repeat.epochs if (sample := record(epoch.get("sampled")))]
    means = {}
    for name in ("nodes", "edges"):
        rows = [row for sample in samples if isinstance(row := sample.get(name), list) and row]
        hops = max(map(len, rows), default=0)
        columns = [_numbers(row[hop] for row in rows if hop < len(row)) for hop in range(hops)]
        means[name] = [short(statistics.fmean(column)) if column else None for column in columns]
    return means


def _numbers(values: Iterable[object]) -> list[float]:
    return [known for value in values if (known := number(value)) is not None]


def _mean(values: Iterable[object]) -> float | None:
    known = _numbers(values)
    return short(statistics.fmean(known)) if known else None


def _best(run: LoggedRun, repeat: Repeat) -> Record:
    """The epoch of the best validation so far, by the measure that decides; an empty record where none was validated."""
    for measure in run.measures[:1]:
        name, choose = f"val_{measure.name}", max if measure.better == "higher" else min
        validated = [epoch for epoch in repeat.epochs if number(epoch.get(name)) is not None]
        if validated:
            return choose(validated, key=lambda epoch: epoch[name])
    return {}


def _best_epoch(run: LoggedRun, repeat: Repeat) -> float | None:
    best = number((repeat.end or {}).get("best_epoch"))
    return best if best is not None else number(_best(run, repeat).get("epoch"))


def _spread(run: LoggedRun, split: str, measure: Measure) -> dict[str, float | None] | None:
    """Mean, standard deviation and number of the repeats' values; of a run in progress, those that are known so far."""
    name = f"{split}_{measure.name}"
    result = record(run.result.get(name)) or record(record(run.result.get("repeats")).get(name))
    mean, values = number(result.get("mean")), result.get("values")
    if mean is not None:
        count = len(values) if isinstance(values, list) else len(run.repeats)
        return {"mean": short(mean), "std": short(number(result.get("std"))), "count": count}
    ended = [(repeat.end or {}).get(name) for repeat in run.repeats]
    if split == "val":
        ended = [
            value if value is not None else _best(run, repeat).get(name) for value, repeat in zip(ended, run.repeats, strict=True)
        ]
    known = _numbers(ended)
    if not known:
        return None
    return {
        "mean": short(statistics.fmean(known)),
        "std": short(statistics.stdev(known)) if len(known) > 1 else None,
        "count": len(known),
    }


def _parameters(run: LoggedRun) -> float | None:
    """The size of the model. Each repeat makes its own, so they know it where the run as a whole does not."""
    return next(iter(_numbers(about.get("parameters") for about in (run.about, *(repeat.about for repeat in run.repeats)))), None)


def _seconds(run: LoggedRun) -> float | None:
    total = number(run.result.get("seconds"))
    if total is not None:
        return total
    each = []
    for repeat in run.repeats:
        latest = [*repeat.steps[-1:], *repeat.epochs[-1:], repeat.end or {}]
        each += [max(known)] if (known := _numbers(line.get("seconds") for line in latest)) else []
    return sum(each) if each else None


def _notes(run: LoggedRun) -> list[str]:
    notes = []
    for repeat in run.repeats:
        where = f" of {repeat.label}" if repeat.label else ""
        lost = [e["epoch"] for e in repeat.epochs if isinstance(e.get("loss"), float) and not math.isfinite(e["loss"])]
        if lost:
            notes.append(f"the loss{where} is not a finite number from epoch {lost[0]} on")
        if repeat.unreadable:
            many = "s" * (repeat.unreadable > 1)
            notes.append(f"{repeat.unreadable} damaged line{many} or file{many}{where} left out")
    return notes
