"""`headrace import`: edge lists to a dataset directory."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from headrace.graph.ingest import IngestError, IngestOptions, IngestReport, format_size, help_of, ingest

_EVERY_SECONDS = 5.0


def import_command(
    edges: Annotated[list[Path], typer.Argument(help=help_of("edges"), show_default=False)],
    output: Annotated[Path, typer.Argument(help=help_of("output"), show_default=False)],
    format: Annotated[str, typer.Option(help=help_of("format"), metavar="auto|csv|tsv|parquet|npy")] = "auto",
    src_column: Annotated[str | None, typer.Option(help=help_of("src_column"))] = None,
    dst_column: Annotated[str | None, typer.Option(help=help_of("dst_column"))] = None,
    weight_column: Annotated[str | None, typer.Option(help=help_of("weight_column"))] = None,
    header: Annotated[str, typer.Option(help=help_of("header"), metavar="auto|yes|no")] = "auto",
    delimiter: Annotated[str | None, typer.Option(help=help_of("delimiter"))] = None,
    comment: Annotated[str, typer.Option(help=help_of("comment"))] = "#",
    ids: Annotated[str, typer.Option(help=help_of("ids"), metavar="auto|int|string")] = "auto",
    num_nodes: Annotated[int | None, typer.Option(help=help_of("num_nodes"))] = None,
    undirected: Annotated[bool, typer.Option("--undirected", help=help_of("undirected"))] = False,
    deduplicate: Annotated[bool, typer.Option("--deduplicate", help=help_of("deduplicate"))] = False,
    self_loops: Annotated[str, typer.Option(help=help_of("self_loops"), metavar="keep|add|drop")] = "keep",
    edge_ids: Annotated[bool, typer.Option("--edge-ids", help=help_of("edge_ids"))] = False,
    nodes: Annotated[Path | None, typer.Option(help=help_of("nodes"))] = None,
    id_column: Annotated[str | None, typer.Option(help=help_of("id_column"))] = None,
    label_column: Annotated[str | None, typer.Option(help=help_of("label_column"))] = None,
    split_column: Annotated[str | None, typer.Option(help=help_of("split_column"))] = None,
    feature_columns: Annotated[str | None, typer.Option(help=help_of("feature_columns"), metavar="A,B,C")] = None,
    features: Annotated[Path | None, typer.Option(help=help_of("features"))] = None,
    labels: Annotated[Path | None, typer.Option(help=help_of("labels"))] = None,
    split: Annotated[Path | None, typer.Option(help=help_of("split"))] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help=help_of("skip_bad"))] = False,
    memory: Annotated[str, typer.Option(help=help_of("memory"))] = "1GiB",
    threads: Annotated[int | None, typer.Option(help=help_of("threads"))] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of the summary.")] = False,
) -> None:
    """Import edge lists, with features, labels and splits, into a dataset directory.

    Works within the memory it is given, however large the files are. What was at OUTPUT stays whole until the new dataset
    is complete; Ctrl-C leaves it as it was.
    """
    given: dict[str, Any] = dict(locals())
    del given["json_"]
    given["edges"] = tuple(edges)
    given["feature_columns"] = tuple(name.strip() for name in feature_columns.split(",")) if feature_columns else ()
    try:
        with _terminable(), _progress() as progress:
            report = ingest(IngestOptions(**given), progress)
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {output} is as it was, and no temporary files are left", err=True)
        raise typer.Exit(130) from None
    except (IngestError, OSError) as error:
        typer.echo(f"headrace import: {_as_options(str(error))}", err=True)
        raise typer.Exit(2) from None
    if json_:
        print(json.dumps(asdict(report), default=str))
    else:
        _print_summary(report)


def _as_options(message: str) -> str:
    """A message of the library in the words of the command line: `num_nodes` is `--num-nodes` here."""
    names = "|".join(option.name for option in fields(IngestOptions) if "_" in option.name)
    return re.sub(rf"(?<![\w./-])({names})(?![\w./])", lambda match: "--" + match[1].replace("_", "-"), " ".join(message.split()))


def _print_summary(report: IngestReport) -> None:
    lines = [
        ("nodes", f"{report.num_nodes:,}"),
        ("edges", f"{report.num_edges:,}"),
        ("rows read", f"{report.rows:,}"),
        ("bad rows skipped", f"{report.bad_rows:,}"),
    ]
    if report.nodes_without_row:
        lines.append(("nodes without a row", f"{report.nodes_without_row:,}"))
    lines += [
        ("size", format_size(report.bytes)),
        ("time", f"{report.seconds:.1f} s ({report.rows / max(report.seconds, 1e-9):,.0f} edges/s)"),
        ("peak memory", format_size(report.peak_memory)),
    ]
    print(report.path)
    for name, value in lines:
        print(f"  {name:<20} {value}")
    for example in report.bad_examples:
        print(f"  skipped: {example}")


@contextmanager
def _terminable() -> Iterator[None]:
    """Treat a request to terminate as Ctrl-C, so that temporary files go too."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread: signals are somebody else's
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Bars on a terminal; elsewhere a line per step and every few seconds, on standard error."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                for earlier in tasks.values():
                    bars.update(earlier, visible=False)
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield show


def _lines() -> Callable[[str, int, int | None], None]:
    shown: tuple[str, float] = ("", 0.0)

    def show(what: str, done: int, total: int | None) -> None:
        nonlocal shown
        now = time.monotonic()
        if what == shown[0] and now - shown[1] < _EVERY_SECONDS:
            return
        shown = (what, now)
        typer.echo(f"{what} {100 * done // total}%" if total else what, err=True)

    return show
