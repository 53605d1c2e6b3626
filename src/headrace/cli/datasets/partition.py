"""`headrace partition`: a dataset cut into parts, one for each rank."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from headrace._sizes import format_size
from headrace.cli.options import refused
from headrace.cli.shown.progress import progress_shown, terminable
from headrace.cluster import PartitionSummary, estimate
from headrace.cluster import partition as partition_dataset
from headrace.graph.known.named import named


def partition(
    dataset: Annotated[str, typer.Argument(help="a dataset directory, a known name or generate:...")],
    out: Annotated[Path, typer.Argument(help="the directory to write; it must not hold anything yet")],
    parts: Annotated[int, typer.Option("--parts", help="how many parts: one for each rank that is to train")],
    by: Annotated[str, typer.Option("--by", help="who owns which node", metavar="hash|ldg|rabbit|metis")] = "hash",
    columns: Annotated[bool, typer.Option("--columns", help="give a part some columns of the features of every node")] = False,
    json: Annotated[bool, typer.Option("--json", help="print one object in place of the table")] = False,
) -> None:
    """Cut a dataset into parts for training over several machines, and show what the cut came to.

    A part has its own nodes' rows of the graph, labels, splits and features; with --columns a slice of all nodes' features. Each
    part can be copied to its machine alone. hash spreads nodes evenly; ldg keeps neighbors together within bounded memory; rabbit
    and metis (pip install pymetis) mostly cut fewer edges, with all of them in memory.
    """
    try:
        with terminable(), progress_shown() as show:
            data = named(dataset)
            needed = estimate(data, parts=parts, by=by)  # type: ignore[arg-type]
            typer.echo(
                f"needs about {format_size(needed.disk)} of disk and at most {format_size(needed.memory)} of memory", err=True
            )
            summary = partition_dataset(data, out, parts=parts, by=by, columns=columns, progress=show)  # type: ignore[arg-type]
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {out} is as it was", err=True)
        raise typer.Exit(130) from None
    except (ImportError, OSError, ValueError) as error:
        raise refused(str(error)) from None
    print_partition(summary, {"seconds": summary.seconds}, json=json)


def print_partition(summary: PartitionSummary, more: dict[str, Any], *, json: bool) -> None:
    """What the cut came to, as a table or as an object with `more`."""
    if json:
        about = {name: getattr(summary, name) for name in ("parts", "by", "columns", "left_out")}
        print(json_module.dumps({"path": str(summary.path)} | about | summary.figures() | more))
        return
    features = "features by column" if summary.columns else "features by row"
    took = f", {summary.seconds:.1f} s" if summary.seconds else ""
    print(f"{summary.path}: {summary.parts} parts by {summary.by}, {features}{took}")
    print(f"  edge cut     {summary.edge_cut:.1%} of {summary.num_edges:,} edges join two parts")
    print(f"  balance      {summary.node_balance:.3f} of nodes, {summary.edge_balance:.3f} of edges (largest part over the mean)")
    print(f"  ghosts       {summary.ghosts:,} neighbors that other parts own, for {summary.num_nodes:,} nodes")
    if summary.left_out:
        print(f"  left out     extra arrays {', '.join(summary.left_out)}: they stay with the dataset")
    table = Table(box=None, pad_edge=False)
    for name in ("part", "nodes", "edges", "cut edges", "ghosts", "size"):
        table.add_column(name, justify="right")
    for number, share in enumerate(summary.shares):
        counts = (f"{count:,}" for count in (share.nodes, share.edges, share.cut_edges, share.ghosts))
        table.add_row(str(number), *counts, format_size(share.bytes))
    Console().print(table)
