"""`headrace import`: edge lists to a dataset directory."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli.options import refused, takes
from headrace.cli.progress import progress_shown, terminable
from headrace.graph.ingest import IngestError, IngestOptions, IngestReport, format_size, ingest


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
        with terminable(), progress_shown() as progress:
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
