"""The `headrace` command: one file per subcommand."""

import sys

import typer

from headrace.cli.advise import advise_command
from headrace.cli.bench import bench
from headrace.cli.demo import demo
from headrace.cli.export import export
from headrace.cli.import_ import import_command
from headrace.cli.info import info
from headrace.cli.neighbors import neighbors
from headrace.cli.plan import plan
from headrace.cli.predict import predict
from headrace.cli.reorder import reorder
from headrace.cli.report import report
from headrace.cli.sentences import Guarded
from headrace.cli.train import train

app = typer.Typer(
    name="headrace",
    cls=Guarded,
    help="Graph neural networks and graph embeddings, trained wherever the data fits.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.command("import")(import_command)
app.command("info")(info)
app.command("reorder")(reorder)
app.command("advise")(advise_command)
app.command("plan")(plan)
app.add_typer(bench)
app.add_typer(train)
app.command("predict")(predict)
app.command("export")(export)
app.command("neighbors")(neighbors)
app.command("report")(report)
app.command("demo")(demo)


def main() -> None:
    """Entry point of the command."""
    try:
        app()
    except KeyboardInterrupt:  # before a subcommand has begun
        sys.exit(130)
