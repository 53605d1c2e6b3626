"""`headrace train node`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.options import takes
from headrace.cli.train.task import DATASET, saying_how_to_go_on, train_task
from headrace.graph import Dataset
from headrace.train import NodeOptions, Watcher
from headrace.train import node as train_node


@takes(NodeOptions, config=True)
def node(
    options: NodeOptions,
    chosen: dict[str, Any],
    dataset: Annotated[str, typer.Argument(help=DATASET, show_default=False)],
    out: Annotated[Path | None, typer.Option(help="the run's directory (default: runs/DATASET-MODEL-1, -2, ...)")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run at --out from its last checkpoint")] = False,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object at the end")] = False,
) -> None:
    """Train a model to classify nodes.

    Shows the run as it goes, writes it to a directory (options, metrics, timeline, checkpoints), and ends with the accuracy on the
    test nodes. Ctrl-C writes a checkpoint and says how to go on.
    """
    train_task("node", options, chosen, dataset, out, options.model, resume=resume, json=json, train=train_node)


def run_node(data: Dataset, options: NodeOptions, out: Path, spec: str, watcher: Watcher) -> None:
    """Train; on Ctrl-C say how to go on."""
    with saying_how_to_go_on("node", spec, out, watcher):
        train_node(data, options=options, out=out, watcher=watcher, spec=spec)
