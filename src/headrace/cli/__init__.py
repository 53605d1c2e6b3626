"""The `headrace` command: one file per subcommand."""

import platform
import sys
from typing import Annotated

import torch
import typer

import headrace
from headrace.cli.advise import advise_command
from headrace.cli.bench import bench
from headrace.cli.datasets.example import example
from headrace.cli.datasets.import_ import import_command
from headrace.cli.datasets.info import info
from headrace.cli.datasets.partition import partition
from headrace.cli.datasets.reorder import reorder
from headrace.cli.demo import demo
from headrace.cli.plan import plan
from headrace.cli.shown.sentences import Guarded
from headrace.cli.shown.streams import with_streams
from headrace.cli.train import train
from headrace.cli.trained.cost import cost
from headrace.cli.trained.export import export
from headrace.cli.trained.neighbors import neighbors
from headrace.cli.trained.predict import predict
from headrace.cli.trained.report import report

app = typer.Typer(
    name="headrace",
    cls=Guarded,
    help="Graph neural networks and graph embeddings, trained wherever the data fits.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


def _say_version(asked: bool) -> None:
    if asked:
        print(f"headrace {headrace.__version__}, torch {torch.__version__}, Python {platform.python_version()}")
        raise typer.Exit


@app.callback()
def _command(
    version: Annotated[bool, typer.Option("--version", help="print versions", is_eager=True, callback=_say_version)] = False,
) -> None: ...


app.command("import")(import_command)
app.command("example")(example)
app.command("info")(info)
app.command("reorder")(reorder)
app.command("partition")(partition)
app.command("advise")(advise_command)
app.command("plan")(plan)
app.add_typer(bench)
app.add_typer(train)
app.command("predict")(predict)
app.command("export")(export)
app.command("neighbors")(neighbors)
app.command("report")(report)
app.command("cost")(cost)
app.command("demo")(demo)


def main() -> None:
    """Entry point of the command."""
    try:
        with_streams(app)
    except KeyboardInterrupt:  # before a subcommand has begun
        sys.exit(130)
