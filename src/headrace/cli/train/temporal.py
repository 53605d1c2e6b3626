"""`headrace train temporal`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.options import takes
from headrace.cli.train.task import DATASET, train_task
from headrace.train import TemporalOptions
from headrace.train import temporal as train_temporal


@takes(TemporalOptions, config=True)
def temporal(
    options: TemporalOptions,
    chosen: dict[str, Any],
    dataset: Annotated[str, typer.Argument(help=DATASET, show_default=False)],
    out: Annotated[Path | None, typer.Option(help="the run's directory (default: runs/DATASET-MODEL-1, -2, ...)")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run at --out from its last checkpoint")] = False,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object at the end")] = False,
) -> None:
    """Train a model with node memory to predict the events of a stream, i x j x k in parallel.

    Shows the run as it goes, writes it to a directory (options, metrics, timeline, checkpoints), and ends with figures on the
    latest events; --json has heuristics that need no learning beside them. Ctrl-C writes a checkpoint and says how to go on.
    """
    train_task("temporal", options, chosen, dataset, out, options.model, resume=resume, json=json, train=train_temporal)
