"""`headrace predict`: what a trained model says of every node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import refused
from headrace.cli.train import DATASET
from headrace.graph.known.named import named
from headrace.train import CheckpointError
from headrace.train.inference.predict import write_predictions


def predict(
    run: Annotated[Path, typer.Argument(help="a run directory", show_default=False)],
    dataset: Annotated[str, typer.Argument(help=DATASET, show_default=False)],
    out: Annotated[Path, typer.Option(help="the file to write: .parquet, .csv or .npy")] = Path("predictions.parquet"),
    probabilities: Annotated[bool, typer.Option("--probabilities", help="also write the probability of every class")] = False,
) -> None:
    """Predict the class of every node with a run's best model, over all neighbors.

    Writes columns node, id (the original one, where an import made a map), label, class (its name) and probability.
    """
    try:
        count = write_predictions(run, named(dataset), out, probabilities=probabilities)
    except (ValueError, OSError, CheckpointError) as error:
        raise refused(str(error)) from None
    print(f"{out}: {count:,} nodes")
