"""`headrace neighbors`: what a trained entity lies near to, and what a relation leads to from it."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.cli.options import refused
from headrace.cli.shown.progress import progress_shown, terminable
from headrace.cli.trained.export import names_for
from headrace.train import CheckpointError
from headrace.train.inference.neighbors import Neighbor, Neighbors
from headrace.train.inference.neighbors import neighbors as find_neighbors


def neighbors(
    run: Annotated[Path, typer.Argument(help="the directory of a run of train link", show_default=False)],
    entity: Annotated[str, typer.Argument(help="a name of the dataset, or the number of a node", show_default=False)],
    relation: Annotated[
        str | None, typer.Option("--relation", help="also the best tails and heads of this relation, a name or a number")
    ] = None,
    k: Annotated[int, typer.Option("--k", help="how many of each")] = 10,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="the dataset that has the names (default: the one the run was trained on)")
    ] = None,
    numbers: Annotated[bool, typer.Option("--numbers", help="ENTITY and --relation are numbers, not names")] = False,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Show the entities whose embeddings are nearest to that of ENTITY, and with a relation the likeliest tails and heads.

    Nearest is by cosine, or by the decoder's own distance (transe, rotate). Edges that are in the dataset are not left out.
    """
    try:
        with terminable(), progress_shown() as show:
            answer = find_neighbors(
                run,
                _whole(entity) if numbers else entity,
                relation=_whole(relation) if numbers and relation is not None else relation,
                k=k,
                data=names_for(run, dataset),
                progress=lambda done, total: show("looking", done, total),
            )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (ValueError, OSError, CheckpointError) as error:
        raise refused(str(error)) from None
    if json:
        print(json_module.dumps(answer.as_dict()))
    else:
        _show(answer, Console())


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number, which --numbers asks for") from None


def _show(answer: Neighbors, console: Console) -> None:
    entity = _called(answer.node, answer.name)
    console.print(_table(f"nearest to {entity} ({answer.measure})", answer.nearest))
    if answer.relation is not None:
        relation = _called(answer.relation, answer.relation_name)
        console.print(_table(f"{entity}, {relation}, ?", answer.tails))
        console.print(_table(f"?, {relation}, {entity}", answer.heads))


def _table(title: str, rows: tuple[Neighbor, ...]) -> Table:
    table = Table(title=escape(title), title_justify="left", title_style="bold")
    table.add_column("node", justify="right")
    if any(row.name is not None for row in rows):
        table.add_column("name")
    table.add_column("score", justify="right")
    for row in rows:
        table.add_row(str(row.node), *([] if row.name is None else [escape(str(row.name))]), f"{row.score:.4f}")
    return table


def _called(number: int, name: str | int | None) -> str:
    return str(number) if name is None else str(name)
