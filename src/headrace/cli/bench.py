"""`headrace bench NAME`: ours, peers and the limit, from one run."""

from __future__ import annotations

import dataclasses
import json as json_module
import sys
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.bench import BENCHES, Bench, Row, Setting
from headrace.cli.options import refused, takes

bench = typer.Typer(
    name="bench",
    help="Measure one operation beside the peers that are installed and the limit of the machine.",
    no_args_is_help=True,
)


def command(chosen: Bench) -> Callable[..., None]:
    """The command of one benchmark, with the options that it takes."""

    @takes(chosen.setting)
    def measure(
        options: Setting,
        json: Annotated[bool, typer.Option("--json", help="print a list of rows in place of the table")] = False,
    ) -> None:
        log = Console(stderr=True)
        setting = dataclasses.replace(options, progress=lambda text: log.print(f"[dim]{text} ...[/dim]"))
        try:
            rows = chosen.run(setting)
        except (OSError, ValueError) as error:
            raise refused(str(error), chosen.setting) from None
        if json:
            json_module.dump([row.as_dict() for row in rows], sys.stdout, indent=1)
            print()
        else:
            show(rows)

    return measure


for _each in BENCHES.values():
    bench.command(_each.name, help=_each.help)(command(_each))


def show(rows: list[Row]) -> None:
    """A table per case: each figure, and how ours compares."""
    for row in rows:
        table = Table(title=f"{row.bench}: {row.case}", title_justify="left", caption_justify="left")
        table.add_column(row.metric)
        table.add_column(row.unit, justify="right")
        table.add_column("ours is", justify="right")
        table.add_row("[bold]ours[/bold]", f"[bold]{row.ours:.4g}[/bold]", "")
        for peer, figure in row.peers.items():
            table.add_row(escape(peer), f"{figure:.4g}", f"{row.against(figure):.2f} x")
        if row.limit is not None:
            table.add_row("[italic]limit of the machine[/italic]", f"{row.limit:.4g}", f"{100 * row.against(row.limit):.0f} %")
        Console().print(table)
