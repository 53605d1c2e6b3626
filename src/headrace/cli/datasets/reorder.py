"""`headrace reorder`: a dataset whose neighbors stand together."""

from __future__ import annotations

import json as json_module
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from headrace.cli.options import refused
from headrace.cli.shown.progress import progress_shown, terminable
from headrace.graph import Dataset, Graph
from headrace.graph.known.named import named
from headrace.graph.reorder import ORDERS, cache_misses
from headrace.graph.reorder.cache import last_level_cache
from headrace.graph.topology.properties import properties

_SHOWN = {
    "edge_span": "edge span",
    "window_reuse": "reuse in 32 rows",
    "cache_misses": "reads that miss the cache",
}


def reorder(
    dataset: Annotated[str, typer.Argument(help="a dataset directory, a known name or generate:...")],
    out: Annotated[Path, typer.Argument(help="the directory to write")],
    order: Annotated[str, typer.Option("--order", help="the order", metavar="|".join([*ORDERS, "auto"]))] = "rabbit",
    epochs: Annotated[int, typer.Option("--epochs", help="planned epochs, which auto weighs the cost against")] = 100,
    dim: Annotated[int | None, typer.Option("--dim", help="width of the rows; the features' unless given")] = None,
    ids: Annotated[str, typer.Option("--ids", help="extra arrays that hold node ids, with commas between")] = "",
    keep: Annotated[str, typer.Option("--keep", help="extra arrays that stay as they are, with commas between")] = "",
    json: Annotated[bool, typer.Option("--json", help="print one object in place of the table")] = False,
) -> None:
    """Relabel the nodes of a dataset so that neighbors have ids close together, and show what that changes.

    The ids from before are kept in the dataset. With --order auto nothing is written unless the order is predicted to pay.
    """
    start = time.perf_counter()
    try:
        data = named(dataset)
        with terminable(), progress_shown() as show:
            moved = data.reorder(
                order,
                epochs=epochs,
                dim=dim,
                ids=_names(ids),
                keep=_names(keep),
                progress=lambda done, total: show("ordering", done, total),
            )
            changed = moved.graph is not data.graph
            if changed:
                show("writing", 0, None)
                moved.save(out)
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {out} is as it was", err=True)
        raise typer.Exit(130) from None
    except (ImportError, OSError, ValueError) as error:
        raise refused(str(error)) from None
    width = dim or data.num_features or 64
    before = _figures(data.graph, width)
    report = {
        "order": moved.info["order"] if changed else None,
        "reason": moved.info.get("order_reason") if order == "auto" else None,
        "path": str(out) if changed else None,
        "seconds": time.perf_counter() - start,
        "dim": width,
        "before": before,
        "after": _figures(moved.graph, width) if changed else before,
    }
    if json:
        print(json_module.dumps(report))
    else:
        _print(report, data)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _figures(graph: Graph, width: int) -> dict[str, float | None]:
    misses = cache_misses(graph, cache_bytes=last_level_cache(), row_bytes=4 * width)
    return properties(graph, width).as_dict() | {"cache_misses": misses}


def _print(report: dict[str, Any], data: Dataset) -> None:
    if report["reason"]:
        print(report["reason"])
    if report["path"] is None:
        print("nothing was written")
        return
    size = f"{data.num_nodes:,} nodes and {data.num_edges:,} edges"
    print(f"{report['path']}: {size}, order {report['order']}, {report['seconds']:.1f} s")
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for key, name in _SHOWN.items():
        digits = ",.0f" if key == "edge_span" else ".2f" if key == "window_reuse" else ".1%"
        table.add_row(name, *(format(report[when][key], digits) for when in ("before", "after")))
    Console().print(table)
