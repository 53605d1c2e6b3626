"""`headrace info`: what a dataset is."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from headrace.cli.datasets.partition import print_partition
from headrace.cli.options import refused
from headrace.cluster import Part, PartitionSummary
from headrace.graph import Dataset, open_dataset
from headrace.graph.known.named import named
from headrace.graph.saved.kinds import PARTITION, kind_of
from headrace.graph.topology.properties import degree_histogram, properties

_BAR = 40


def info(
    dataset: Annotated[str, typer.Argument(help="a dataset directory, a known name, generate:..., or a partition")],
    verify: Annotated[bool, typer.Option("--verify", help="read every file and compare checksums")] = False,
    json: Annotated[bool, typer.Option("--json", help="print one object in place of the tables")] = False,
) -> None:
    """Show what a dataset is: sizes, features, labels, splits, degrees and what its order is worth."""
    if kind_of(Path(dataset)) == PARTITION:
        _show_partition(dataset, verify=verify, json=json)
        return
    try:
        data = open_dataset(dataset, verify=True) if verify and Path(dataset).exists() else named(dataset)
        if verify:
            data.graph.validate()
    except (OSError, ValueError) as error:
        raise refused(str(error)) from None
    facts = _facts(data) | {"path": dataset, "verified": verify}
    histogram = degree_histogram(data.graph)
    if json:
        bins = [{"from": low, "to": high, "nodes": count} for low, high, count in histogram]
        print(json_module.dumps(facts | {"degree_histogram": bins}))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in facts.items():
        number = isinstance(value, int) and not isinstance(value, bool)
        table.add_row(f"[bold]{name.replace('_', ' ')}[/bold]", f"{value:,}" if number else str(value))
    console = Console()
    console.print(table)
    console.print("\n[bold]in-degree[/bold]")
    most = max((count for _, _, count in histogram), default=1)
    for low, high, count in histogram:
        label = f"{low:,}" if low == high else f"{low:,}-{high:,}"
        bar = "█" * max(round(_BAR * count / most), 1 if count else 0)
        console.print(f"{label:>19}  {bar:<{_BAR}}  {count:,}", highlight=False)


def _show_partition(path: str, *, verify: bool, json: bool) -> None:
    try:
        summary = PartitionSummary.open(path)
        for number in range(summary.parts if verify else 0):
            Part.open(path, number, verify=True)
    except (OSError, ValueError) as error:
        raise refused(str(error)) from None
    print_partition(summary, {"verified": verify}, json=json)


def _facts(data: Dataset) -> dict[str, Any]:
    degrees, measured = data.graph.degrees(), properties(data.graph)
    facts: dict[str, Any] = {key: value for key, value in data.info.items() if isinstance(value, (str, int, float, bool))}
    facts |= {
        "nodes": data.num_nodes,
        "edges": data.num_edges,
        "bytes": data.nbytes,
        "index_type": str(data.graph.indices.dtype).removeprefix("torch."),
    }
    if data.num_nodes:
        facts |= {
            "mean_degree": round(measured.mean_degree, 2),
            "median_degree": int(degrees.median()),
            "max_degree": measured.max_degree,
            "degree_cv": round(measured.degree_cv, 3),
            "hubs": measured.hubs,
            "nodes_without_edges": measured.empty_rows,
            "isolated": measured.isolated,
            "symmetric": measured.symmetric,
            "edge_span": round(measured.edge_span, 1),
            "window_reuse": round(measured.window_reuse, 3),
        }
    if data.graph.weight is not None:
        facts["weights"] = str(data.graph.weight.dtype).removeprefix("torch.")
    if data.graph.time is not None:
        facts["times"] = str(data.graph.time.dtype).removeprefix("torch.")
    if data.x is not None:
        facts["features"] = f"{data.num_features} {str(data.x.dtype).removeprefix('torch.')}"
    if data.y is not None:
        facts["classes"] = data.num_classes
        if data.y.dim() == 1:
            facts["labeled_nodes"] = int((data.y >= 0).sum()) if data.y.dtype != torch.bool else len(data.y)
    facts |= {f"split_{name}": len(ids) for name, ids in data.splits.items()}
    facts |= {f"extra_{name}": f"{str(a.dtype).removeprefix('torch.')} {list(a.shape)}" for name, a in data.extra.items()}
    return facts
