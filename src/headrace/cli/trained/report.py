"""`headrace report`: what happened in training runs, as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import refused
from headrace.train.report import write_report


def report(
    runs: Annotated[list[Path], typer.Argument(help="run directories; several are drawn over one another", show_default=False)],
    out: Annotated[Path, typer.Option(help="the page to write")] = Path("report.html"),
) -> None:
    """Write a self-contained HTML page about one or several training runs, finished or not."""
    try:
        write_report(runs, out)
    except (OSError, ValueError) as error:
        raise refused(str(error)) from None
    print(f"{out} ({out.stat().st_size / 1e3:,.0f} kB)")
