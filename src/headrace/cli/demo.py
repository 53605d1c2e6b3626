"""`headrace demo`: the loader end to end on a generated graph."""

from __future__ import annotations

from time import perf_counter
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from headrace.graph import generate
from headrace.loader import NeighborLoader


def demo(
    nodes: Annotated[int, typer.Option(help="nodes of the generated graph")] = 100_000,
    seed: Annotated[int, typer.Option(help="of the graph and of the batches")] = 0,
) -> None:
    """Generate a graph, load an epoch of sampled batches from it with their features, and say where the time went."""
    console = Console()
    begin = perf_counter()
    data = generate.community(nodes=nodes, edges=50 * nodes, classes=16, features=100, splits=(0.5, 0.1, 0.4), seed=seed)
    console.print(f"generated {data} in {perf_counter() - begin:.1f} s")

    loader = NeighborLoader(data, [15, 10, 5], "train", batch_size=1024, shuffle=True, seed=seed)
    edges = rows = 0
    checksum = 0.0
    begin = perf_counter()
    for batch in track(loader, "loading an epoch", console=console, total=len(loader)):
        assert batch.x is not None
        edges += batch.sample.num_edges
        rows += len(batch.x)
        checksum += float(batch.x[: batch.batch_size].sum())
        del batch
    seconds = perf_counter() - begin

    table = Table(title="one epoch, fanout 15,10,5, batches of 1024", title_justify="left", show_header=False)
    table.add_row("batches", f"{len(loader)} in {seconds:.2f} s ({len(loader) / seconds:.1f} per second)")
    table.add_row("sampled edges", f"{edges:,} ({edges / seconds / 1e6:.1f} M per second)")
    table.add_row("feature rows", f"{rows:,} ({rows * 4 * data.num_features / seconds / 1e9:.1f} GB per second)")
    for stage in loader.stage_times:
        table.add_row(
            f"{stage.name} ({stage.threads} thread{'s' * (stage.threads > 1)})",
            f"busy {stage.busy:.2f} s, starved {stage.starved:.2f} s, held {stage.held:.2f} s",
        )
    use = loader.memory()
    table.add_row("memory", f"data {data.nbytes / 2**20:.0f} MiB, batch buffers {use.peak / 2**20:.0f} MiB at most")
    table.add_row("checksum", f"{checksum:.4f} (the same for any number of threads)")
    console.print(table)
