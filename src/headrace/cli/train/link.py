"""`headrace train link`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headrace.cli.options import refused, takes
from headrace.cli.shown.plan import show_plan
from headrace.cli.shown.progress import progress_shown
from headrace.cli.train.task import DATASET, train_task
from headrace.graph import Dataset
from headrace.plan import PlannedLink, planned_link
from headrace.train import LinkOptions
from headrace.train import link as train_link


@takes(LinkOptions, config=True, unless="plan")
def link(
    options: LinkOptions,
    chosen: dict[str, Any],
    dataset: Annotated[str, typer.Argument(help=DATASET, show_default=False)],
    out: Annotated[Path | None, typer.Option(help="the run's directory (default: runs/DATASET-DECODER-1, -2, ...)")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run at --out from its last checkpoint")] = False,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan", help="plan storage, partitions, buffer, order, batch size and staleness, unless given, for --memory"
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object at the end")] = False,
) -> None:
    """Train embeddings of nodes and relations to predict edges, of a knowledge graph or of any graph.

    Shows the run as it goes, writes it to a directory (options, metrics, timeline, checkpoints), and ends with how the true ends of
    the test edges rank. Ctrl-C writes a checkpoint and says how to go on. With --plan, the plan and its reasons come first, and
    its predictions are shown beside what was measured at the end.
    """
    if plan and resume:
        raise refused("a run that goes on has its options already: leave out --plan")
    name = chosen.get("decoder", options.decoder)
    planned = _planned if plan else None
    train_task("link", options, chosen, dataset, out, name, resume=resume, json=json, train=train_link, planned=planned, suits=True)


def _planned(data: Dataset, chosen: dict[str, Any], place: Path) -> PlannedLink:
    """The options that a plan makes of those that were chosen; printed before anything is trained."""
    with progress_shown() as show:
        planned = planned_link(data, chosen, folder=place.parent, progress=lambda text: show(text, 0, None))
    show_plan(planned.plan, Console(stderr=True))
    return planned
