"""`headrace import`: edge lists to a dataset directory."""

from __future__ import annotations

import json as json_module
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from headrace.cli.options import refused, takes
from headrace.graph.ingest import IngestError, IngestOptions, IngestReport, format_size, ingest

_EVERY_SECONDS = 5.0


@takes(IngestOptions)
def import_command(
    options: IngestOptions,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of the summary.")] = False,
) -> None:
    """Import edge lists, with features, labels and splits, into a dataset directory.

    Works within the memory it is given, however large the files are. What was at OUTPUT stays whole until the new dataset
    is complete; Ctrl-C leaves it as it was.
    """
    try:
        with _terminable(), _progress() as progress:
            report = ingest(options, progress)
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {options.output} is as it was, and no temporary files are left", err=True)
        raise typer.Exit(130) from None
    except (IngestError, OSError) as error:
        raise refused(str(error), IngestOptions) from None
    if json:
        print(json_module.dumps(asdict(report), default=str))
    else:
        _print_summary(report)


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
