"""Figures of snapshot training: baselines of the same windows, forecast against truth, how ranks were balanced."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from headrace.train.report.curves import short
from headrace.train.report.read import LoggedRun, Record, number, record, records

_MOST = 400  # steps of a run that are drawn: means of as many in turn where it has more
_PER_STEP = ("makespan", "bound", "idle", "bytes")
_BY_STEP = ("over_bound", "idle", "bytes")


def baselines(run: LoggedRun) -> list[dict[str, Any]]:
    """The run's test measures, then those of each baseline on the same windows: means over the repeats."""
    tests = [test for repeat in run.repeats if (test := record((repeat.end or {}).get("test")))]
    known = [{name: record(figures) for name, figures in record(test.get("baselines")).items()} for test in tests]
    names = dict.fromkeys(name for baselines in known for name in baselines)
    if not names:
        return []
    rows = [("this run", tests), *((name, [record(baselines.get(name)) for baselines in known]) for name in names)]
    measures = [measure.name for measure in run.measures]
    return [{"name": name} | {measure: _mean(row.get(measure) for row in part) for measure in measures} for name, part in rows]


def forecast(run: LoggedRun) -> dict[str, Any] | None:
    """Truth and forecast of the mean and of some nodes, by snapshot, of the last repeat that has them."""
    for repeat in reversed(run.repeats):
        drawn = record(record((repeat.end or {}).get("test")).get("forecast"))
        snapshots = _numbers(drawn.get("snapshots"))
        lines = [_line(line, len(snapshots)) for line in records(drawn.get("lines"))]
        whole = [line for line in lines if line is not None]
        if snapshots and whole:
            return {"snapshots": snapshots, "lines": whole}
    return None


def balance(run: LoggedRun) -> dict[str, Any]:
    """Seconds of a step, the bound on them, the idle share and bytes sent: means over the epochs; and, step by step, makespan over
    bound, the idle share and bytes."""
    known = [facts for repeat in run.repeats for epoch in repeat.epochs if (facts := record(epoch.get("balance")))]
    if not known:
        return {}
    last = run.repeats[-1]
    steps = [record(record(epoch.get("balance")).get("steps")) for epoch in last.epochs]
    columns = {name: [value for of_epoch in steps for value in _numbers(of_epoch.get(name))] for name in _BY_STEP}
    return {
        "means": {name: _mean(facts.get(name) for facts in known) for name in _PER_STEP},
        "steps": {name: _thinned(values) for name, values in columns.items()} if columns["over_bound"] else None,
        "each": -(-len(columns["over_bound"]) // _MOST) or 1,
    }


def _line(line: Record, count: int) -> dict[str, Any] | None:
    truth, forecast = _numbers(line.get("truth")), _numbers(line.get("forecast"))
    if not len(truth) == len(forecast) == count:
        return None
    return {"name": str(line.get("name")), "truth": [short(v) for v in truth], "forecast": [short(v) for v in forecast]}


def _thinned(values: list[float]) -> list[float | None]:
    size = -(-len(values) // _MOST) or 1
    return [short(statistics.fmean(values[at : at + size])) for at in range(0, len(values), size)]


def _numbers(values: object) -> list[float]:
    return [known for value in values if (known := number(value)) is not None] if isinstance(values, list) else []


def _mean(values: Iterable[object]) -> float | None:
    known = [value for entry in values if (value := number(entry)) is not None]
    return short(statistics.fmean(known)) if known else None
