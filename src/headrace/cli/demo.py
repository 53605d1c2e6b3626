"""`headrace demo`: a model trained on a generated graph, end to end."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.console import Console

from headrace.cli.options import refused
from headrace.cli.shown.results import show_result
from headrace.cli.train import make_watcher, run_node
from headrace.graph.known.named import named
from headrace.train import CheckpointError, NodeOptions
from headrace.train.report import write_report
from headrace.train.run import new_folder


def demo(
    nodes: Annotated[int, typer.Option(help="nodes of the generated graph")] = 100_000,
    epochs: Annotated[int, typer.Option(help="passes over its training nodes")] = 4,
    seed: Annotated[int, typer.Option(help="of the graph, of the batches and of the model")] = 0,
    out: Annotated[Path | None, typer.Option(help="the run's directory (default: runs/demo-1, -2, ...)")] = None,
) -> None:
    """Generate a graph, train GraphSAGE on it, say how good it is and where the time went, and write a report."""
    console = Console(stderr=True)
    spec = f"generate:community,nodes={nodes},edges={50 * nodes},classes=16,features=100,signal=0.2,splits=0.5,0.1,0.4,seed={seed}"
    try:
        begin = perf_counter()
        data = named(spec)
        console.print(f"generated {data} in {perf_counter() - begin:.1f} s", highlight=False)
        options = NodeOptions(model="sage", hidden=256, fanout=(15, 10, 5), epochs=epochs, seed=seed)
        with new_folder(Path("runs"), "demo") if out is None else nullcontext(out) as place:
            run_node(data, options, place, spec, make_watcher())
        page = place / "report.html"
        write_report([place], page)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (ValueError, OSError, CheckpointError) as error:
        raise refused(str(error)) from None
    show_result(place)
    print(f"report: {page}")
