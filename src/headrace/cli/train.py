"""`headrace train`: a recipe per subcommand."""

from __future__ import annotations

import json as json_module
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headrace.cli.options import refused, takes
from headrace.cli.shown.live import LiveView
from headrace.cli.shown.plan import show_plan
from headrace.cli.shown.progress import progress_shown
from headrace.cli.shown.results import show_result
from headrace.cli.torchrun import is_first, leave, on_all, told_by_first
from headrace.cluster import Part, is_partition
from headrace.graph import Dataset
from headrace.graph.known.named import named, named_snapshots
from headrace.plan import PlannedLink, planned_link
from headrace.ranks import Ranks, join
from headrace.train import CheckpointError, LinkOptions, NodeOptions, Run, SnapshotOptions, Watcher
from headrace.train import link as train_link
from headrace.train import node as train_node
from headrace.train import snapshot as train_snapshot
from headrace.train.links.link import check_ranks
from headrace.train.loop import Stopped
from headrace.train.options import from_plain
from headrace.train.run import new_folder
from headrace.train.watching.lines import Lines

train = typer.Typer(name="train", help="Train a model.", no_args_is_help=True)

DATASET = "a dataset directory, a known name (cora), or generate:products,scale=0.05"
_CHECKPOINTS = [f"{place}{file}" for place in ("", "repeat-*/") for file in ("checkpoints/last.pt", "rows/extra.*.bin")]


@train.command("node")
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
    _train("node", options, chosen, dataset, out, options.model, resume=resume, json=json, train=train_node)


@train.command("link")
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
    _train("link", options, chosen, dataset, out, name, resume=resume, json=json, train=train_link, planned=planned, suits=True)


@train.command("snapshot")
@takes(SnapshotOptions, config=True)
def snapshot(
    options: SnapshotOptions,
    chosen: dict[str, Any],
    dataset: Annotated[str, typer.Argument(help=f"{DATASET}; or generate:snapshots?nodes=1000&edges=20000", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="the run's directory (default: runs/DATASET-MODEL-1, -2, ...)")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run at --out from its last checkpoint")] = False,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object at the end")] = False,
) -> None:
    """Train a recurrent model to forecast numbers of nodes on a sequence of graphs.

    Ends with the errors on the last snapshots, beside those of zero, of the last value and of a linear model on the same windows.
    """
    _train("snapshot", options, chosen, dataset, out, options.model, resume=resume, json=json, train=train_snapshot)


def _opened(dataset: str, task: str, ranks: Ranks, options: Any) -> Any:
    """The dataset, or this rank's part of it; or its snapshots."""
    if task == "snapshot":
        return named_snapshots(dataset, every=options.every or None)
    if task == "node" and is_partition(dataset):
        return Part.open(dataset, ranks.rank, verify="small")
    return named(dataset)


def _train(
    task: str,
    options: Any,
    chosen: dict[str, Any],
    dataset: str,
    out: Path | None,
    name: str,
    *,
    resume: bool,
    json: bool,
    train: Callable[..., Any],
    planned: Callable[[Dataset, dict[str, Any], Path], PlannedLink] | None = None,
    suits: bool = False,
) -> None:
    """Train and show what came of it, as tables or JSON. `name` is for a new run's directory.

    `planned` makes the options from those that were chosen; with `suits`, `train` does.

    Under torchrun rank 0 decides where the run is and which options it goes on with, and is the only one to speak.
    """
    kind = type(options)
    try:
        with ExitStack() as begun, join(_device(options, chosen, out if resume else None)) as ranks:
            if task == "link":
                check_ranks(ranks)
            begin = partial(_begin, task, out, resume, f"{short_name(dataset)}-{name}", begun)
            place, values = told_by_first(ranks, begin)
            if values is not None:
                options = from_plain(kind, _for_ranks(values, ranks) | chosen)
            opened: list[Any] = []
            on_all(ranks, lambda: opened.append(_opened(dataset, task, ranks, options)))
            more = {}
            if planned is not None:
                plan = planned(opened[0], chosen, place)
                options, more = plan.options, {"plan": plan.record()}
            elif suits and values is None:
                options = chosen
            watcher = make_watcher() if is_first() else Watcher()
            with _saying_how_to_go_on(task, dataset, place, watcher):
                result = train(opened[0], options=options, out=place, resume=resume, watcher=watcher, spec=dataset, **more)
    except KeyboardInterrupt:
        raise leave(130) from None
    except (ValueError, OSError, CheckpointError, FloatingPointError) as error:
        raise refused(str(error), kind) from None
    if not is_first():
        return
    if json:
        print(json_module.dumps({**result.summary(), "options": Run(place).header["options"], "dataset": dataset}))
    else:
        try:
            show_result(place)
        except ValueError as error:
            raise refused(str(error)) from None


def _begin(task: str, out: Path | None, resume: bool, name: str, begun: ExitStack) -> tuple[Path, dict[str, Any] | None]:
    """Where the run is, and the options that it goes on with, if it does. A new folder is removed if it is empty at the end."""
    if not resume:
        return (out if out is not None else begun.enter_context(new_folder(Path("runs"), name))), None
    if out is None:
        raise ValueError("resume goes on with the run at out: say which, with --out")
    header = Run(out).header
    if header["task"] != task:
        raise ValueError(f"{out} is a run of train {header['task']}: resume it by that command, not by train {task}")
    return out, header["options"]


def _device(options: Any, chosen: dict[str, Any], resumed: Path | None) -> str:
    """The device that ranks meet for: the one asked for, or that of the run that goes on, where this rank can read it."""
    if resumed is not None and "device" not in chosen:
        with suppress(OSError, ValueError, KeyError):
            return str(Run(resumed).header["options"]["device"]).partition(":")[0]
    return str(options.device)


def _for_ranks(values: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """A run's options. They name rank 0's GPU; each of several ranks has its own."""
    return values if ranks.size == 1 else values | {"device": values["device"].partition(":")[0]}


def _planned(data: Dataset, chosen: dict[str, Any], place: Path) -> PlannedLink:
    """The options that a plan makes of those that were chosen; printed before anything is trained."""
    with progress_shown() as show:
        planned = planned_link(data, chosen, folder=place.parent, progress=lambda text: show(text, 0, None))
    show_plan(planned.plan, Console(stderr=True))
    return planned


def run_node(data: Dataset, options: NodeOptions, out: Path, spec: str, watcher: Watcher) -> None:
    """Train; on Ctrl-C say how to go on."""
    with _saying_how_to_go_on("node", spec, out, watcher):
        train_node(data, options=options, out=out, watcher=watcher, spec=spec)


@contextmanager
def _saying_how_to_go_on(task: str, spec: str, out: Path, watcher: Watcher) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        watcher.close()
        command = shlex.join(["headrace", "train", task, spec, "--out", str(out), "--resume"])
        if is_first():
            if isinstance(error, Stopped) or any(any(out.glob(file)) for file in _CHECKPOINTS):
                told = f"interrupted; a checkpoint is in {out}. To go on:\n  {command}"
            elif (out / "options.json").exists():
                told = f"interrupted before the first checkpoint of {out}. To begin it again:\n  {command}"
            else:
                told = "interrupted before the run began: nothing was written"
            typer.echo(told, err=True)
        raise
    finally:
        watcher.close()


def make_watcher() -> Watcher:
    """A live view on a terminal, lines elsewhere; on standard error in either case."""
    console = Console(stderr=True)
    return LiveView(console) if console.is_terminal else Lines()


def short_name(spec: str) -> str:
    """A name for a run from what its dataset is called."""
    if spec.startswith("generate:"):
        return re.split("[?,]", spec.removeprefix("generate:"))[0] or "run"
    return spec.rstrip("/").split("/")[-1] or "run"
