"""`headrace train`: a recipe per subcommand."""

from __future__ import annotations

import json as json_module
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace._sizes import format_size
from headrace.cli.lines import Lines
from headrace.cli.live import LiveView
from headrace.cli.options import refused, takes
from headrace.cli.progress import progress_shown
from headrace.cli.shown_plan import against_plan, show_plan
from headrace.graph import Dataset
from headrace.graph.named import named
from headrace.plan import PlannedLink, planned_link
from headrace.train import CheckpointError, LinkOptions, LinkResult, NodeOptions, NodeResult, Run, Watcher
from headrace.train import link as train_link
from headrace.train import node as train_node
from headrace.train.options import from_plain
from headrace.train.run import next_name

train = typer.Typer(name="train", help="Train a model.", no_args_is_help=True)

DATASET = "a dataset directory, a known name (cora), or generate:products?scale=0.05"


@train.command("node")
@takes(NodeOptions, config=True)
def node(
    options: NodeOptions,
    given: dict[str, Any],
    dataset: Annotated[str, typer.Argument(help=DATASET, show_default=False)],
    out: Annotated[Path | None, typer.Option(help="the run's directory (default: runs/DATASET-MODEL-1, -2, ...)")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run at --out from its last checkpoint")] = False,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object at the end")] = False,
) -> None:
    """Train a model to classify nodes.

    Shows the run as it goes, writes it to a directory (options, metrics, timeline, checkpoints), and ends with the accuracy on the
    test nodes. Ctrl-C writes a checkpoint and says how to go on.
    """
    result, data = _trained("node", options, given, dataset, out, options.model, resume=resume, json=json, train=train_node)
    if not json:
        show_result(result, data)


@train.command("link")
@takes(LinkOptions, config=True, unless="plan")
def link(
    options: LinkOptions,
    given: dict[str, Any],
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
    name = given.get("decoder", options.decoder)
    planned = _planned if plan else None
    result, _ = _trained("link", options, given, dataset, out, name, resume=resume, json=json, train=train_link, planned=planned)
    if not json:
        show_links(result)


def _trained(
    task: str,
    options: Any,
    given: dict[str, Any],
    dataset: str,
    out: Path | None,
    name: str,
    *,
    resume: bool,
    json: bool,
    train: Callable[..., Any],
    planned: Callable[[Dataset, dict[str, Any], Path], PlannedLink] | None = None,
) -> tuple[Any, Dataset]:
    """The result of a recipe, printed if it is to be JSON, and the data it was trained on. `name` is for a new run's directory."""
    watcher = make_watcher()
    try:
        if resume:
            if out is None:
                raise ValueError("resume goes on with the run at out: say which, with --out")
            options = from_plain(type(options), {**Run(out).header["options"], **given})
        data = named(dataset)
        place = out if out is not None else next_name(Path("runs"), f"{short_name(dataset)}-{name}")
        more = {}
        if planned is not None:
            made = planned(data, given, place)
            options, more = made.options, {"plan": made.record()}
        with _saying_how_to_go_on(task, dataset, place, watcher):
            result = train(data, options=options, out=place, resume=resume, watcher=watcher, spec=dataset, **more)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (ValueError, OSError, CheckpointError, FloatingPointError) as error:
        raise refused(str(error), type(options)) from None
    if json:
        print(json_module.dumps({**result.summary(), "options": Run(place).header["options"], "dataset": dataset}))
    return result, data


def _planned(data: Dataset, given: dict[str, Any], place: Path) -> PlannedLink:
    """The options that a plan makes of those that were given; said before anything is trained."""
    with progress_shown() as show:
        made = planned_link(data, given, folder=place.parent, progress=lambda text: show(text, 0, None))
    show_plan(made.plan, Console(stderr=True))
    return made


def run_node(data: Dataset, options: NodeOptions, out: Path, spec: str, watcher: Watcher) -> NodeResult:
    """Train; on Ctrl-C say how to go on."""
    with _saying_how_to_go_on("node", spec, out, watcher):
        return train_node(data, options=options, out=out, watcher=watcher, spec=spec)


@contextmanager
def _saying_how_to_go_on(task: str, spec: str, out: Path, watcher: Watcher) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        watcher.close()
        command = shlex.join(["headrace", "train", task, spec, "--out", str(out), "--resume"])
        typer.echo(f"interrupted; a checkpoint is in {out}. To go on:\n  {command}", err=True)
        raise
    finally:
        watcher.close()


def make_watcher() -> Watcher:
    """A live view on a terminal, lines elsewhere; on standard error in either case."""
    console = Console(stderr=True)
    return LiveView(console) if console.is_terminal else Lines()


def show_result(result: NodeResult, data: Dataset) -> None:
    """A table of how good the model is and where the time went."""
    assert result.run is not None
    table = Table(show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    for name, values in (("test accuracy", result.test_accuracy), ("validation accuracy", result.val_accuracy)):
        if values:
            summary = result.summary()[name.replace("validation", "val").replace(" ", "_")]
            more = f" ± {100 * summary['std']:.2f} over {len(values)} runs" if len(values) > 1 else ""
            table.add_row(name, f"{100 * summary['mean']:.2f} %{more}")
    best = data.info.get("best_accuracy")
    if isinstance(best, float):
        table.add_row("best possible accuracy", f"{100 * best:.2f} % (the rest of the labels is noise)")
    runs = sorted(result.run.glob("repeat-*")) or [result.run]
    epochs = [line for run in runs for line in Run(run).metrics("epoch")]
    if epochs:
        seconds = sorted(e["epoch_seconds"] for e in epochs)
        table.add_row("epoch", f"{seconds[len(seconds) // 2]:.2f} s (median of {len(epochs)})")
        total = max(sum(seconds), 1e-9)
        parts: dict[str, float] = {}
        for e in epochs:
            for part, spent in e["time"].items():
                parts[part] = parts.get(part, 0.0) + spent
        shares = sorted(parts.items(), key=lambda item: -item[1])
        words = [f"{part} {100 * spent / total:.0f} %" for part, spent in shares if spent > 0.005 * total]
        table.add_row("where the time went", ", ".join(words))
        table.add_row("peak memory", f"{max(e['memory']['peak'] for e in epochs) / 2**20:,.0f} MiB")
        if "gpu_peak" in epochs[-1]["memory"]:
            table.add_row("peak memory of the GPU", f"{epochs[-1]['memory']['gpu_peak'] / 2**20:,.0f} MiB")
        if kept := epochs[-1].get("first_sum"):
            held = epochs[-1]["memory"]["first_sum"]
            table.add_row("sums of the features", kept + (f" ({held / 2**20:,.0f} MiB)" if held else ""))
        if tiers := epochs[-1].get("tiers"):
            rows = sum(tier["hits"] for tier in tiers) or 1
            read = [f"{tier['name']} {100 * tier['hits'] / rows:.0f} %" for tier in tiers if tier["rows"]]
            table.add_row("features read from", ", ".join(read))
        if disk := epochs[-1].get("disk"):
            read = [f"{format_size(disk['bytes_read'])} read in an epoch", f"{disk['stall_seconds']:.1f} s waited for"]
            read += [
                f"{100 * disk['resident']:.0f} % of the rows in memory",
                f"{100 * disk['hit_rate']:.0f} % of reads found there",
            ]
            table.add_row("features on disk", ", ".join(read))
    table.add_row("in all", f"{result.seconds:.1f} s")
    table.add_row("run", escape(f"{result.run}   (headrace report {result.run})"))
    Console().print(table)


def show_links(result: LinkResult) -> None:
    """A table of how true ends rank, each measure by its name, and where the time went."""
    assert result.run is not None
    table = Table(title_justify="left")
    measures = {name: found for name, found in result.test.items() if isinstance(found, dict)}
    columns = list(next(iter(measures.values()), {}))
    table.add_column("test edges", style="bold", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    for name, found in sorted(measures.items()):
        table.add_row(name.replace("_", " "), *(f"{v:,}" if isinstance(v := found[c], int) else f"{v:,.4f}" for c in columns))
    console = Console()
    if measures:
        console.print(table)
    facts = Table(show_header=False)
    facts.add_column(style="bold")
    facts.add_column()
    if result.val_mrr is not None:
        facts.add_row("validation mrr", f"{result.val_mrr:.4f}")
    epochs = Run(result.run).metrics("epoch")
    if epochs:
        seconds = sorted(e["epoch_seconds"] for e in epochs)
        facts.add_row("epoch", f"{seconds[len(seconds) // 2]:.2f} s (median of {len(epochs)})")
        facts.add_row("batches in flight", f"{epochs[-1]['in_flight']} at most")
        facts.add_row("peak memory", f"{max(e['memory']['peak'] for e in epochs) / 2**20:,.0f} MiB")
    if result.disk is not None and epochs:
        disk, count = result.disk, len(epochs)
        moved = f"{format_size(disk['bytes_read'])} read, {format_size(disk['bytes_written'])} written"
        busy = f"busy {100 * disk['busy']:.0f} % of the time, {disk['stall_seconds']:.1f} s waited for"
        facts.add_row("disk", f"{moved} in {disk['loads']} loads, {disk['loads'] / count:.1f} an epoch; {busy}")
    if result.plan is not None:
        facts.add_row("epoch against its plan", against_plan(result.plan))
    facts.add_row("rows and state", f"{result.bytes / 2**20:,.1f} MiB; negatives: {Run(result.run).header['negatives_from']}")
    if result.encoder is not None:
        header = Run(result.run).header
        facts.add_row("encoder", f"trained on {header['neighbors_from']}; ranked with {header['evaluated_with']}")
    facts.add_row("in all", f"{result.seconds:.1f} s")
    facts.add_row("run", escape(f"{result.run}   (headrace report {result.run})"))
    console.print(facts)


def short_name(spec: str) -> str:
    """A name for a run from what its dataset is called."""
    return spec.removeprefix("generate:").partition("?")[0].rstrip("/").split("/")[-1] or "run"
