"""`headrace import`: edge lists to a dataset directory."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.cli.options import refused, takes
from headrace.cli.shown.progress import progress_shown, terminable
from headrace.graph.ingest import IngestError, IngestOptions, IngestReport, Understood, format_size, ingest

_COLUMNS = 12  # of a file that are shown


@takes(IngestOptions)
def import_command(
    options: IngestOptions,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of the summary.")] = False,
) -> None:
    """Import edge lists, with features, labels and splits, into a dataset directory.

    What is read from each file is shown as a table with the first rows before the work begins (not with --json).
    Several types of nodes and edges: author:writes:paper=writes.csv --nodes author=authors.csv --nodes paper=papers.csv

    Works within the memory it is given, however large the files are. What was at OUTPUT stays whole until the new dataset
    is complete; Ctrl-C leaves it as it was.
    """
    try:
        with terminable(), progress_shown() as progress:
            report = ingest(options, progress, understood=None if json else _show)
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {options.output} is as it was, and no temporary files are left", err=True)
        raise typer.Exit(130) from None
    except (IngestError, OSError) as error:
        raise refused(str(error), IngestOptions) from None
    if json:
        print(json_module.dumps(asdict(report), default=str))
    else:
        _print_summary(report)


def _show(files: list[Understood]) -> None:
    """A table for each file: its columns, what they are read as, and the first rows."""
    console = Console(stderr=True)
    for file in files:
        table = Table(title=escape(f"{file.path}: {file.what}"), title_justify="left", title_style="bold")
        read = [at for at, (_, use) in enumerate(file.columns) if use]
        shown = sorted((read + [at for at in range(len(file.columns)) if at not in read])[:_COLUMNS])
        for at in shown:
            name, use = file.columns[at]
            table.add_column(f"{escape(name)}\n{use or '[dim]not read[/dim]'}")
        for row in file.rows:
            table.add_row(*(escape(row[at]) if at < len(row) else "" for at in shown))
        console.print(table)
        for note in file.notes:
            console.print(f"  {note.replace('dst_column', '--dst-column 1')}", highlight=False, markup=False)


def _print_summary(report: IngestReport) -> None:
    lines = [
        ("nodes", f"{report.num_nodes:,}"),
        ("edges", f"{report.num_edges:,}"),
        ("rows read", f"{report.rows:,}"),
        ("bad rows skipped", f"{report.bad_rows:,}"),
    ]
    if report.num_relations:
        lines.append(("relations", f"{report.num_relations:,}"))
    if report.put_in_order:
        lines.append(("times", "rows were not in order of time: sorted"))
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
