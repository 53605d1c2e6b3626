"""`headrace train temporal`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headrace._memory import machine_memory
from headrace.cli.options import refused, takes
from headrace.cli.shown.plan import show_plan
from headrace.cli.torchrun import is_first
from headrace.cli.train.task import DATASET, train_task
from headrace.graph import Dataset
from headrace.plan import PlannedTemporal, planned_temporal
from headrace.ranks import join, machine
from headrace.train import TemporalOptions
from headrace.train import temporal as train_temporal
from headrace.train.events.options import AUTO


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
    latest events; --json has heuristics that need no learning beside them. With --parallel auto a plan for the ranks there are, and
    its reasons, come first. Ctrl-C writes a checkpoint and says how to go on.
    """
    if resume and chosen.get("parallel") == AUTO:
        raise refused("a run that goes on has its options already: leave out --parallel auto")
    planned = _planned if options.parallel == AUTO else None
    train_task(
        "temporal", options, chosen, dataset, out, options.model, resume=resume, json=json, train=train_temporal, planned=planned
    )


def _planned(data: Dataset, chosen: dict[str, Any], place: Path) -> PlannedTemporal:
    """The options that a plan makes of those that were chosen, for the ranks there are; rank 0 prints it before the training."""
    with join() as ranks:
        machines = len(set(ranks.all_gather(machine())))
        memory = min(ranks.all_gather(machine_memory() * 3 // 4))
        planned = planned_temporal(data, chosen, ranks=ranks.size, machines=machines, memory=memory)
    if is_first():
        show_plan(planned.plan, Console(stderr=True))
    return planned
