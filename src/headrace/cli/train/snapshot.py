"""`headrace train snapshot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.options import takes
from headrace.cli.train.task import DATASET, train_task
from headrace.train import SnapshotOptions
from headrace.train import snapshot as train_snapshot


@takes(SnapshotOptions, config=True)
def snapshot(
    options: SnapshotOptions,
    chosen: dict[str, Any],
    dataset: Annotated[str, typer.Argument(help=f"{DATASET}; or generate:snapshots?nodes=1000&edges=20000", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="the run's directory (default: runs/DATASET-MODEL-1, -2, ...)")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run at --out from its last checkpoint")] = False,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object at the end")] = False,
) -> None:
    """Train a recurrent model to forecast numbers or classes of nodes, or links, on a sequence of graphs.

    Ends with how good forecasts of the last snapshots are, beside those of baselines on the same windows. Options that are not
    given are those that a known dataset is usually trained with.
    """
    name = options.model
    train_task("snapshot", options, chosen, dataset, out, name, resume=resume, json=json, train=train_snapshot, suits=True)
