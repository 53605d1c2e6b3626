"""`fit`: train a recipe, once or for several seeds, alone or on several ranks, into a run directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import headrace
from headrace._arrays import thread_count
from headrace.pipeline import Trace
from headrace.ranks import Exchange, GroupRanks, Heartbeat, Ranks, device_of, guarded, join
from headrace.train.interrupt import Stopped
from headrace.train.loop import Trainer
from headrace.train.measure import Measure, spreads
from headrace.train.options import LoopOptions, as_plain
from headrace.train.recipe import Recipe
from headrace.train.run import Run
from headrace.train.watching.lines import usual_watcher
from headrace.train.watching.tensorboard import TensorBoard, summary_writer
from headrace.train.watching.watch import Watcher, Watchers

# What may differ when a run goes on, whatever the task: it does not change what the run computes.
FREE = frozenset({"threads", "checkpoint_seconds", "log_every", "tensorboard"})
_ENDS = ("epochs", "patience")  # what may differ too when a run goes on: it only decides where the run ends
_COUNTS = ("nodes", "edges", "relations", "features", "classes", "multi_label")  # by which datasets are told apart


@dataclass(frozen=True)
class Setup:
    """The surroundings of a recipe: which repeat it is, on which rank, and where it writes."""

    options: Any  # of this repeat: its seed, and the device of this rank
    folder: Path | None  # the run's directory
    trace: Trace | None
    ranks: Ranks
    accumulate: int  # batches per step, over all ranks
    watcher: Watcher
    opened: ExitStack  # closed when the run has ended
    exchange: Exchange | None = None  # between the ranks, where there are several
    heartbeat: Heartbeat | None = None

    @property
    def shared(self) -> dict[str, Any]:
        """The keyword arguments that tell a recipe of the ranks."""
        return {"ranks": self.ranks, "accumulate": self.accumulate, "exchange": self.exchange}


Make = Callable[[Setup], Recipe]
Header = Callable[[LoopOptions, Recipe | None], dict[str, Any]]


def fit(
    make: Make,
    options: LoopOptions,
    *,
    task: str = "task",
    header: Header | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
    free: Set[str] | Callable[[dict[str, Any]], Set[str]] = FREE,
    folder_first: bool = False,
) -> tuple[list[dict[str, Any]], Recipe]:
    """Train what `make` makes, to the end; returns the last line of each repeat's log, and the last repeat's recipe.

    task: its name, for the run's header and the report.
    header: all that `options.json` says of the run, where that is more than its task, options and parameters (see `describe`).
    out, resume: the run's directory, and whether to go on with the run in it, bit by bit as if it had never stopped.
    free: options that may differ when a run goes on (or a function of the options that it began with).
    watcher: is told what happens; `Watcher()` shows nothing. Without one, lines are shown in a terminal or a notebook.
    folder_first: the recipe keeps files in the directory, so that is made first; else a recipe that refuses leaves none behind.

    Under torchrun all ranks train together, and rank 0 writes. Ctrl-C writes a checkpoint and raises KeyboardInterrupt.
    """
    if resume and out is None:
        raise ValueError("resume goes on with the run at out: say which")
    watcher = usual_watcher() if watcher is None else watcher
    if options.tensorboard:
        summary_writer()  # raises if it is not installed
    stopped: Stopped | None = None
    with torch_threads(options.threads), join(options.device) as ranks, guarded(ranks) as heartbeat:
        options = replace(options, device=str(device_of(ranks, options.device)))
        path = None if out is None else Path(out)
        begun = ranks.broadcast(Run(path).header["options"] if resume and path is not None and ranks.rank == 0 else None)
        options, accumulate = _accumulated(options, begun, ranks)
        known = free if isinstance(free, Set) else free(begun or {})
        fitting = _Fitting(make, header or partial(_described, task), watcher, known, folder_first, ranks, accumulate, heartbeat)
        try:
            with ExitStack() as whole:
                ends, recipe = fitting.repeat(options, path, resume, whole)
        except Stopped as error:  # on all ranks, after the same step
            stopped = error
    if stopped is not None:
        raise stopped
    return ends, recipe


@dataclass(frozen=True)
class _Fitting:
    """The settings that all repeats share."""

    make: Make
    header: Header
    watcher: Watcher | None
    free: Set[str]
    folder_first: bool
    ranks: Ranks
    accumulate: int
    heartbeat: Heartbeat

    def repeat(
        self, options: LoopOptions, path: Path | None, resume: bool, whole: ExitStack
    ) -> tuple[list[dict[str, Any]], Recipe]:
        writes = path is not None and self.ranks.rank == 0
        if options.repeats > 1 and writes:
            assert path is not None
            whole.callback(open_run(path, self.header(options, None), resume, free=self.free).unlock)
        ends = []
        recipe: Recipe | None = None
        for number in range(options.repeats):
            once = replace(options, seed=options.seed + number, repeats=1)
            place = path if path is None or options.repeats == 1 else path / f"repeat-{number}"
            begun = self.ranks.broadcast(place is not None and (place / "options.json").exists())
            with ExitStack() as opened:
                recipe = None  # its memory serves the next
                end, recipe = self.once(once, place, resume and (begun or options.repeats == 1), opened)
            ends.append(end)
        assert recipe is not None
        if writes:
            assert path is not None
            Run(path).save_result(_summary(recipe.measures, ends))
        return ends, recipe

    def once(self, options: LoopOptions, place: Path | None, resume: bool, opened: ExitStack) -> tuple[dict[str, Any], Recipe]:
        torch.manual_seed(options.seed)
        ranks = self.ranks
        mine = place if ranks.rank == 0 else None
        run: Run | None = None
        if self.folder_first and mine is not None:
            run = open_run(mine, self.header(options, None), resume, free=self.free)
            opened.callback(run.unlock)
        watchers = Watchers([self.watcher] if self.watcher is not None and ranks.rank == 0 else [])
        trace = None if mine is None else Trace()
        exchange: Exchange | None = None
        if isinstance(ranks, GroupRanks) and ranks.size > 1:
            exchange = Exchange(ranks, device=torch.device(options.device))
            opened.callback(exchange.close)
            _agree(exchange, self.header(options, None), self.free)
        recipe = self.make(Setup(options, place, trace, ranks, self.accumulate, watchers, opened, exchange, self.heartbeat))
        header = {**self.header(options, recipe), "measures": [measure.plain() for measure in recipe.measures]}
        if run is not None:
            run.describe(measures=header["measures"], parameters=header["parameters"])
        elif mine is not None:
            run = open_run(mine, header, resume, free=self.free)
            opened.callback(run.unlock)
        if options.tensorboard and run is not None:
            board = TensorBoard(run.path / "tensorboard", options.log_every, recipe.measures)
            watchers.watchers.append(opened.enter_context(closing(board)))
        trainer = Trainer(recipe, options, run, watchers, trace, ranks=ranks, exchange=exchange, accumulate=self.accumulate)
        if resume:
            trainer.restore()
        return trainer.fit({**header, **({} if run is None else run.header)}), recipe


def _accumulated(options: LoopOptions, begun: dict[str, Any] | None, ranks: Ranks) -> tuple[LoopOptions, int]:
    """The options with `accumulate` as a number: as the run began, or a batch for each rank."""
    if "accumulate" not in {f.name for f in fields(options)}:
        return options, 1
    if getattr(options, "flow", "none") != "none":  # a step is an epoch, and every rank has its rows of it
        return replace(options, accumulate=ranks.size), ranks.size  # type: ignore[call-arg]
    if (own := getattr(options, "batches_per_step", None)) is not None:  # the task's, whatever the number of ranks
        return replace(options, accumulate=own), own  # type: ignore[call-arg]
    asked: int = options.accumulate or (begun or {}).get("accumulate", 0) or ranks.size  # type: ignore[attr-defined]
    if asked < ranks.size:
        raise ValueError(
            f"accumulate {asked} makes a step of {asked} batches, and there are {ranks.size} ranks: raise it, or use fewer ranks"
        )
    return replace(options, accumulate=asked), asked  # type: ignore[call-arg]


def _agree(exchange: Exchange, header: dict[str, Any], free: Set[str]) -> None:
    """ValueError on all ranks where they are not of one mind: version, data, or options that change what is computed."""
    same = {"version of headrace": header["headrace"], "task": header["task"]}
    same |= {f"data ({name})": str(value) for name, value in header["dataset"].items() if name != "spec"}
    same |= {f"option {name}": str(value) for name, value in header["options"].items() if name not in free | {"device"}}
    try:
        exchange.agree(same, problem=None, told={})
    except ValueError as error:
        raise ValueError(f"{error}. Start all ranks with the same command, version and data") from None


def _described(task: str, options: LoopOptions, recipe: Recipe | None) -> dict[str, Any]:
    parameters = None if recipe is None else sum(p.numel() for p in recipe.model.parameters())
    return describe(task, {"name": task, "nodes": 0, "edges": 0}, options, parameters)


def describe(task: str, dataset: dict[str, Any], options: LoopOptions, parameters: int | None, **more: Any) -> dict[str, Any]:
    """What `options.json` says of a run."""
    return {
        "task": task,
        "headrace": headrace.__version__,
        "dataset": {"spec": None, "best_possible": {}, **dataset},
        "options": as_plain(options),
        "parameters": parameters,
        **more,
    }


def open_run(path: Path, header: dict[str, Any], resume: bool, *, free: Set[str] = FREE) -> Run:
    """A new run at `path`, or the one there, if it is the same task on the same data with the same options; locked."""
    if not resume:
        return Run.create(path, header)
    run = Run(path)
    begun = run.header
    if begun["task"] != header["task"]:
        raise ValueError(f"{path} is a run of task {begun['task']}, not of {header['task']}")
    for name, value in header["options"].items():
        if name not in free and name not in _ENDS and name in begun["options"] and begun["options"][name] != value:
            raise ValueError(f"{path} was begun with {name} {begun['options'][name]}, not {value}: resume with the same options")
    ends = {name: header["options"][name] for name in _ENDS if name in header["options"]}
    _check_extended(path, begun["options"], ends)
    for name in _COUNTS:
        before, now = begun["dataset"].get(name), header["dataset"].get(name)
        if before != now:
            raise ValueError(f"{path} was begun on another dataset: it had {name} {before}, this one has {now}")
    before, now = (about["dataset"].get("fingerprint") or {} for about in (begun, header))
    for name in before.keys() | now.keys() if before and now else ():
        if before.get(name) != now.get(name):
            raise ValueError(
                f"{path} was begun on another dataset: this one has other {name} (as many, but not the same); "
                "resume with the data that it began with"
            )
    run.lock()
    run.describe(options=begun["options"] | ends)
    return run


def _check_extended(path: Path, begun: dict[str, Any], ends: dict[str, int]) -> None:
    before, now, schedule = begun.get("epochs", 1), ends.get("epochs", 1), begun.get("schedule", "constant")
    if now < before:
        raise ValueError(f"{path} was begun with epochs {before}, not {now}: a run that goes on can have more, not fewer")
    if now > before and schedule != "constant":
        raise ValueError(
            f"{path} was begun with epochs {before} and schedule {schedule}, by which the learning rate ends with them: "
            "a run can have more epochs with schedule constant alone"
        )


def _summary(measures: Sequence[Measure], ends: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What `result.json` says of a task that has nothing to add: the measures of each split over the repeats."""
    scores = {name: values.plain() for name, values in spreads(measures, ends).items()}
    return scores | {"seconds": sum(end["seconds"] for end in ends)}


@contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Within, torch uses so many threads."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(thread_count(threads))
    try:
        yield
    finally:
        torch.set_num_threads(before)
