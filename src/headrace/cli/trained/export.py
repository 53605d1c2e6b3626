"""`headrace export`: the rows that a run trained, for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace._sizes import format_size
from headrace.cli.options import refused
from headrace.cli.shown.progress import progress_shown, terminable
from headrace.graph import Dataset
from headrace.graph.known.named import named
from headrace.train import CheckpointError, Run
from headrace.train.inference.export import export as export_rows


def export(
    run: Annotated[Path, typer.Argument(help="the directory of a run of train link", show_default=False)],
    format: Annotated[str, typer.Option("--format", help="what to write", metavar="parquet|npy")] = "parquet",
    out: Annotated[Path | None, typer.Option("--out", help="the file to write (default: embeddings.FORMAT)")] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="the dataset that has the names (default: the one the run was trained on)")
    ] = None,
) -> None:
    """Write the embeddings of nodes and relations that a finished run trained, with names where the dataset has them.

    Relations go to a second file, NAME.relations.FORMAT, and with npy names to NAME.names.txt. Files appear when all are complete.
    """
    place = Path(f"embeddings.{format}") if out is None else out
    try:
        with terminable(), progress_shown() as show:
            data = names_for(run, dataset)
            exported = export_rows(
                run,
                place,
                format=format,  # type: ignore[arg-type]
                data=data,
                progress=lambda done, total: show("exporting", done, total),
            )
    except KeyboardInterrupt:
        told = f"{place} is complete" if place.exists() else "nothing was written"  # it is the last file to be put in place
        typer.echo(f"interrupted: {told}", err=True)
        raise typer.Exit(130) from None
    except (ValueError, OSError, CheckpointError) as error:
        raise refused(str(error)) from None
    for file in exported.files:
        print(f"{file}: {format_size(file.stat().st_size)}")
    names = "with names" if exported.named else "without names"
    print(f"{exported.nodes:,} nodes {names}, {exported.dim} floats each; {exported.relations:,} relations")


def names_for(run: Path, dataset: str | None) -> Dataset | None:
    """The dataset whose names are shown: the one that was asked for, or the run's own if it is still there."""
    if dataset is not None:
        return named(dataset)
    spec = Run(run).header["dataset"].get("spec")
    if spec is None or spec.startswith("generate:"):  # made by a program, or from nothing: there are no names
        return None
    try:
        return named(spec)
    except (OSError, ValueError) as error:
        typer.echo(f"names are left out, for the run's dataset cannot be opened (--dataset names another): {error}", err=True)
        return None
