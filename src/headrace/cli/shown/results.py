"""What came of a run, as tables on a terminal. Everything is read from its directory, so any task is shown alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace._sizes import format_size
from headrace.cli.shown.plan import against_plan
from headrace.train import Measure, Run
from headrace.train.measure import Spread

_SPLITS = {"test": "test", "val": "validation"}
Row = tuple[str, str]
Lines = Sequence[dict[str, Any]]


def show_result(place: Path, console: Console | None = None) -> None:
    """Print how good the model is, how true ends of edges rank where it predicts them, and where the time went."""
    console = console or Console()
    runs = [Run(path) for path in sorted(place.glob("repeat-*"))] or [Run(place)]
    header, result = runs[0].header, Run(place).result() or {}
    ends = [line for run in runs for line in run.metrics("end")]
    epochs = [line for run in runs for line in run.metrics("epoch")]
    for table in (_rankings(ends), _baselines(header, ends)):
        if table is not None:
            console.print(table)
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column()
    rows = [
        *_measured(header, ends),
        *_beside(header, ends),
        *(_spent(epochs) if epochs else ()),
        *_placed(header, result, epochs, ends),
    ]
    seconds = result.get("seconds", sum(end["seconds"] for end in ends))
    for name, text in [*rows, ("in all", f"{seconds:.1f} s"), ("run", f"{place}   (headrace report {place})")]:
        table.add_row(escape(name), escape(text))
    console.print(table)


def _measured(header: dict[str, Any], ends: Lines) -> Iterator[Row]:
    possible = header["dataset"].get("best_possible") or {}
    for measure in (Measure(**facts) for facts in header.get("measures", ())):
        for split, word in _SPLITS.items():
            values = [end[f"{split}_{measure.name}"] for end in ends if end.get(f"{split}_{measure.name}") is not None]
            if values:
                yield f"{word} {measure.name}", _with_spread(measure, values)
        if measure.name in possible:
            yield f"best possible {measure.name}", f"{measure.shown(possible[measure.name])} (this dataset allows no better)"


def _beside(header: dict[str, Any], ends: Lines) -> Iterator[Row]:
    """Of events: those with a node that training has not seen, and what needs no learning."""
    tests = [end["test"] for end in ends if isinstance(end.get("test"), dict) and "heuristic" in end["test"]]
    if not tests:
        return
    measures = [Measure(**facts) for facts in header.get("measures", ())]
    count = tests[0]["inductive_events"]

    def means(figures: Sequence[dict[str, Any]]) -> str:
        shown = [(m, [f[m.name] for f in figures if f.get(m.name) is not None]) for m in measures]
        return ", ".join(f"{measure.name} {_with_spread(measure, values)}" for measure, values in shown if values)

    if count:
        yield f"{count:,} test events with a new node", means([test["inductive"] for test in tests])
    else:
        yield "test events with a new node", "none"
    for name in tests[0]["heuristic"]:
        yield f"{name}, without learning", means([test["heuristic"][name] for test in tests])
    if "candidates" in (protocol := tests[0]["protocol"]):
        kind, batch = protocol["negatives"], f"events of a batch are {protocol['in_batch']} to one another"
        yield "ranked among", f"{protocol['candidates']} {kind} destinations; {batch}"


def _with_spread(measure: Measure, values: Sequence[float]) -> str:
    over = Spread(values)
    more = f" ± {measure.shown(over.std).removesuffix(' %')} over {len(values)} runs" if len(values) > 1 else ""
    return measure.shown(over) + more


def _rankings(ends: Lines) -> Table | None:
    """Each ranking that was asked for: among all nodes or sampled ones, filtered or raw; means where the run has repeats."""
    tests = [end["test"] for end in ends if isinstance(end.get("test"), dict)]
    names = sorted(
        name
        for name, ranking in (tests[0] if tests else {}).items()
        if isinstance(ranking, dict) and "candidates" in ranking and "mrr" in ranking
    )
    if not names:
        return None
    columns = list(tests[0][names[0]])
    table = Table(title=f"means of {len(tests)} runs" if len(tests) > 1 else None, title_justify="left")
    table.add_column("test edges", style="bold", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    for name in names:
        cells = [[test[name][column] for test in tests] for column in columns]
        table.add_row(name.replace("_", " "), *(f"{v[0]:,}" if isinstance(v[0], int) else f"{fmean(v):,.4f}" for v in cells))
    return table


def _baselines(header: dict[str, Any], ends: Lines) -> Table | None:
    """What forecasts without a network score on the same test windows, beside the run; means where it has repeats."""
    tests = [end["test"] for end in ends if isinstance(end.get("test"), dict) and end["test"].get("baselines")]
    if not tests:
        return None
    table = Table()
    table.add_column("test", style="bold", no_wrap=True)
    measures = [Measure(**facts) for facts in header.get("measures", ())]
    for measure in measures:
        table.add_column(measure.name, justify="right")
    rows = {"this run": tests, **{name: [test["baselines"][name] for test in tests] for name in tests[0]["baselines"]}}
    for name, own in rows.items():
        table.add_row(escape(name), *(measure.shown(fmean(one[measure.name] for one in own)) for measure in measures))
    return table


def _spent(epochs: Lines) -> Iterator[Row]:
    """Time and memory."""
    seconds = [line["epoch_seconds"] for line in epochs]
    yield "epoch", f"{median(seconds):.2f} s (median of {len(epochs)})"
    parts: dict[str, float] = {}
    for line in epochs:
        for part, spent in line["time"].items():
            parts[part] = parts.get(part, 0.0) + spent
    total = max(sum(seconds), 1e-9)
    shares = sorted(parts.items(), key=lambda item: -item[1])
    yield "where the time went", ", ".join(f"{part} {100 * s / total:.0f} %" for part, s in shares if s > 0.005 * total)
    last = epochs[-1]
    if "in_flight" in last:
        yield "batches in flight", f"{last['in_flight']} at most"
    yield "peak memory", _mebibytes(max(line["memory"]["peak"] for line in epochs))
    if "gpu_peak" in last["memory"]:
        yield "peak memory of the GPU", _mebibytes(last["memory"]["gpu_peak"])


def _placed(header: dict[str, Any], result: dict[str, Any], epochs: Lines, ends: Lines) -> Iterator[Row]:
    """Where features, trained rows and their neighbors were, and what reading them took."""
    last = epochs[-1] if epochs else {}
    if kept := last.get("first_sum"):
        held = last["memory"]["first_sum"]
        yield "sums of the features", kept + (f" ({_mebibytes(held)})" if held else "")
    if tiers := last.get("tiers"):
        rows = sum(tier["hits"] for tier in tiers) or 1
        yield "features read from", ", ".join(f"{t['name']} {100 * t['hits'] / rows:.0f} %" for t in tiers if t["rows"])
    if ranks := last.get("ranks"):
        moved = {name: phase for name, phase in ranks["phases"].items() if phase["sent"]}
        sent = ", ".join(f"{name} {format_size(int(p['sent']))} in {p['seconds']:.2f} s" for name, p in moved.items())
        yield "ranks", f"{ranks['size']}, parallel {ranks['parallel']}"
        yield "sent by rank 0 in an epoch", sent or "nothing"
        if "versions" in ranks:
            yield "versions of the first layer", f"{ranks['versions']} at most, {format_size(ranks['version_bytes'])} in all"
    if (disk := last.get("disk")) and "hit_rate" in disk:
        yield (
            "features on disk",
            f"{format_size(disk['bytes_read'])} read in an epoch, {disk['stall_seconds']:.1f} s waited for, "
            f"{100 * disk['resident']:.0f} % of the rows in memory, {100 * disk['hit_rate']:.0f} % of reads found there",
        )
    elif ends and (disk := ends[-1].get("disk")):
        count = sum(1 for line in epochs) / len(ends)
        yield (
            "disk",
            f"{format_size(disk['bytes_read'])} read, {format_size(disk['bytes_written'])} written in {disk['loads']} loads, "
            f"{disk['loads'] / count:.1f} an epoch; busy {100 * disk['busy']:.0f} % of the time, "
            f"{disk['stall_seconds']:.1f} s waited for",
        )
    if result.get("plan"):
        yield "epoch against its plan", against_plan(result["plan"])
    if "negatives_from" in header:
        yield "rows and state", f"{result['bytes'] / 2**20:,.1f} MiB; negatives: {header['negatives_from']}"
    if "evaluated_with" in header:
        yield "encoder", f"trained on {header['neighbors_from']}; ranked with {header['evaluated_with']}"


def _mebibytes(size: float) -> str:
    return f"{size / 2**20:,.0f} MiB"
