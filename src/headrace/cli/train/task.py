"""What all tasks of `headrace train` share: the run's place, its options, what is shown, and how to go on."""

from __future__ import annotations

import json as json_module
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from headrace.cli.options import refused
from headrace.cli.shown.live import LiveView
from headrace.cli.shown.results import show_result
from headrace.cli.torchrun import is_first, leave, on_all, told_by_first
from headrace.cluster import Part, is_partition
from headrace.graph import Dataset
from headrace.graph.known.named import named, named_snapshots
from headrace.plan import PlannedLink, PlannedTemporal
from headrace.ranks import Ranks, join
from headrace.train import CheckpointError, Run, Watcher
from headrace.train.interrupt import Stopped
from headrace.train.links.link import check_ranks
from headrace.train.options import from_plain
from headrace.train.run import new_folder
from headrace.train.watching.lines import Lines

DATASET = "a dataset directory, a known name (cora), or generate:products,scale=0.05"
_CHECKPOINTS = [f"{place}{file}" for place in ("", "repeat-*/") for file in ("checkpoints/last.pt", "rows/extra.*.bin")]


def _opened(dataset: str, task: str, ranks: Ranks) -> Any:
    """The dataset, or this rank's part of it; or snapshots that are generated."""
    if task == "snapshot" and dataset.startswith("generate:snapshots"):
        return named_snapshots(dataset)
    if task == "node" and is_partition(dataset):
        return Part.open(dataset, ranks.rank, verify="small")
    return named(dataset)


def train_task(
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
    planned: Callable[[Dataset, dict[str, Any], Path], PlannedLink | PlannedTemporal] | None = None,
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
            on_all(ranks, lambda: opened.append(_opened(dataset, task, ranks)))
            more = {}
            if planned is not None:
                plan = planned(opened[0], chosen, place)
                options, more = plan.options, {"plan": plan.record()}
            elif suits and values is None:
                options = chosen
            watcher = make_watcher() if is_first() else Watcher()
            with saying_how_to_go_on(task, dataset, place, watcher):
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


@contextmanager
def saying_how_to_go_on(task: str, spec: str, out: Path, watcher: Watcher) -> Iterator[None]:
    """Within, Ctrl-C says where the checkpoint is and by which command the run goes on."""
    try:
        yield
    except KeyboardInterrupt as error:
        watcher.close()
        command = shlex.join(["headrace", "train", task, spec, "--out", str(out), "--resume"])
        if is_first():
            if isinstance(error, Stopped) or any(any(out.glob(file)) for file in _CHECKPOINTS):
                told = f"{str(error) or 'interrupted'}; a checkpoint is in {out}. To go on:\n  {command}"
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
