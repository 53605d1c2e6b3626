"""`temporal`: link prediction on a stream of events, by a model with node memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace._memory import require_memory
from headrace.graph import Dataset, EventSplits, EventStream
from headrace.nn import TGN
from headrace.nn.tgn.forms import FORMS
from headrace.temporal import Schedule, cut_events, deal_trainers, parse_parallel
from headrace.temporal.statistics import age_statistics
from headrace.train.events.forward import Forward
from headrace.train.events.heads import make_head
from headrace.train.events.joint import JointRecipe
from headrace.train.events.options import AUTO, TemporalOptions
from headrace.train.events.recipe import TemporalRecipe
from headrace.train.events.static import check_features, learned_rows
from headrace.train.fit import Setup, describe, fit
from headrace.train.measure import Spread
from headrace.train.options import LoopOptions
from headrace.train.recipe import Recipe
from headrace.train.run import Run
from headrace.train.watching.watch import Watcher

_FIGURES = ("ap", "auc", "mrr", "hits@1", "hits@3", "hits@10", "mean_rank", "f1_micro", "f1_macro")


@dataclass(frozen=True)
class TemporalResult:
    """What training gave: figures of the test events over the repeats, and the last repeat's model at its best."""

    test: dict[str, Any]  # ap, auc, mrr, hits@10, ...; inductive.ap and so on: a Spread each; protocol, heuristic
    val: dict[str, Spread]
    events_per_second: float
    seconds: float
    model: nn.Module
    run: Path | None = None

    def summary(self) -> dict[str, Any]:
        """As `result.json` and `--json` have it."""
        return {
            "test": {name: _plain(value) for name, value in self.test.items()},
            "val": {name: _plain(value) for name, value in self.val.items()},
            "events_per_second": self.events_per_second,
            "seconds": self.seconds,
            "run": None if self.run is None else str(self.run),
        }


def temporal(
    data: Dataset | EventStream,
    options: TemporalOptions | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
    spec: str | None = None,
    plan: dict[str, Any] | None = None,
) -> TemporalResult:
    """Train a model with node memory to predict which events come, and test it on the latest of them.

    data: a stream, or a dataset whose events have times. out, resume, watcher: as in `train.node`. plan: what the options come from
    (`PlannedTemporal.record`), kept with the run.

    >>> import headrace as hr
    >>> data = hr.generate.events(nodes=60, events=2000)
    >>> options = hr.train.TemporalOptions(epochs=1, hidden=16, neighbors=5)
    >>> result = hr.train.temporal(data, options)
    >>> sorted(result.test["heuristic"])
    ['edgebank', 'recency']
    """
    options = TemporalOptions() if options is None else options
    if not isinstance(options, TemporalOptions):
        raise TypeError(f"options must be TemporalOptions, not {type(options).__name__}")
    if options.parallel == AUTO:
        raise ValueError(
            "parallel auto is resolved by the command: here, take the options of hr.plan.planned_temporal(data).options"
        )
    stream = EventStream.of(data, label=options.label)
    splits = stream.splits()
    features = data.x if isinstance(data, Dataset) else None
    if options.static == "features":
        check_features(features, stream)
    i, j, k = parse_parallel(options.parallel)
    attends = options.model != "jodie" or options.static == "learned"
    if attends and options.hidden % options.heads:
        raise ValueError(f"hidden must be a multiple of heads, not {options.hidden} with {options.heads} heads: change one of them")
    _require(stream, options, k)
    classes = make_head(stream, options, splits.train).classes
    cuts = cut_events(stream, 0, splits.train, options.batch_size, options.cut)
    schedule = Schedule(i, j, k, len(cuts) - 1)
    options = options.resolved(int(os.environ.get("WORLD_SIZE", "1")))
    if resume and out is not None:
        _check_lanes(Path(out), options)
    swept = replace(options, epochs=schedule.sweeps(options.epochs), accumulate=options.batches_per_step)

    def make(setup: Setup) -> Recipe:
        deal_trainers(i, j, k, setup.ranks.machines)  # refuses what does not fit, before anything takes long
        static = _static(stream, splits, features, setup)
        torch.manual_seed(setup.options.seed)
        width = 0 if static is None else static.shape[1]
        tgn = _tgn(setup.options, stream, width, classes=classes)
        learned = setup.options.static == "learned"
        model = Forward(tgn, static, keeps=learned, drops=setup.options.static_dropout if learned else 0.0)
        recipe = recipe_of(
            stream,
            splits,
            model,
            setup.options,
            setup.trace,
            ranks=setup.ranks,
            exchange=setup.exchange,
            saves=setup.folder is not None,
        )
        setup.opened.callback(recipe.close)
        if isinstance(recipe, JointRecipe) and setup.options.capture == "auto" and recipe.device.type == "cuda":
            which = "steps are recorded once and replayed as one launch" if recipe.captured else "steps are not recorded"
            setup.watcher.note(f"{which} (capture auto: {recipe.capture_reason}); a resumed run goes on as it began")
        if setup.heartbeat is not None:
            setup.opened.enter_context(setup.heartbeat.waits_for(recipe.copies.waits))
        return recipe

    first = options.static == "learned"  # the rows are a run of their own, in the run's folder
    header = _header(stream, spec, options.epochs, plan)
    ends, recipe = fit(make, swept, header=header, out=out, resume=resume, watcher=watcher, folder_first=first)
    path = None if out is None else Path(out)
    seconds = sum(end["seconds"] for end in ends)
    trained = sum(end["train_seconds"] for end in ends)
    events = splits.train * j * k * swept.epochs * len(ends)
    result = TemporalResult(_test(ends), _spread(ends, "val"), events / trained, seconds, recipe.model.eval(), path)
    if out is not None and recipe.ranks.rank == 0:  # type: ignore[attr-defined]
        Run(out).save_result(result.summary())
    return result


def recipe_of(
    stream: EventStream, splits: EventSplits, model: Forward, options: TemporalOptions, *more: Any, **named: Any
) -> TemporalRecipe:
    """The recipe of a process, whose lanes are together or one after the other."""
    kind = JointRecipe if options.lanes == "together" else TemporalRecipe
    return kind(stream, splits, model, options, *more, **named)


def _check_lanes(path: Path, options: TemporalOptions) -> None:
    begun = Run(path).header["options"].get("lanes", options.lanes)
    if begun != options.lanes:
        raise ValueError(
            f"{path} was begun with lanes {begun}, not {options.lanes}: resume it with the same lanes (together, in one process)"
        )


def _require(stream: EventStream, options: TemporalOptions, copies: int) -> None:
    """Memory for a row of every node, before anything as long as the largest id is made."""
    tgn = FORMS[options.model]
    rows = 0 if tgn.updater is None else 3 * options.hidden * 4 * (copies + 1)  # the evaluation has one of its own
    table = 4 * 4 * options.hidden if options.static == "learned" else 0  # with its gradient and the optimizer's state
    kept = "a copy" if copies == 1 else f"{copies} copies"
    what = f"training on {stream.num_nodes:,} nodes (the largest id is {stream.num_nodes - 1}) with {kept} of their memory"
    remedy = "number nodes from 0 without gaps (headrace import does), or lower hidden or k"
    require_memory(stream.num_nodes * (rows + table + 16) + 80 * len(stream), what, remedy)


def _tgn(options: TemporalOptions, stream: EventStream, static: int, **more: Any) -> TGN:
    pyg = {"score": "scaled", "output": "skip"} if options.attention == "pyg" else {}
    sizes = {"memory": options.hidden, "time": options.hidden, "out": options.hidden}
    form: dict[str, Any] = {"form": options.model, "heads": options.heads, "dropout": options.dropout}
    if options.model == "jodie":
        form["age_mean"], form["age_std"] = age_statistics(stream, stream.splits().train)
    return TGN(**(sizes | form | pyg | {"static": static, "edge": stream.edge_width} | more))


def _static(stream: EventStream, splits: EventSplits, features: Tensor | None, setup: Setup) -> Tensor | None:
    """Static rows: given, or learnt by a first pass with a table in memory's place; nodes unseen in training have zeros."""
    options: TemporalOptions = setup.options
    classes = make_head(stream, options, splits.train).classes
    if options.static == "none":
        if options.model == "tgat":
            raise ValueError("tgat has no memory, so nodes would be alike: use static learned or features")
        return None
    if options.static == "features":
        return check_features(features, stream)
    once = replace(options, parallel="1x1x1", epochs=options.static_epochs, accumulate=1, validate_every=0, static="none")
    layers = {} if options.model == "tgat" else {"layers": 1}
    if options.prepared is not None:  # batches without memory, and so others
        once = replace(once, prepared=str(Path(options.prepared) / "static"))

    def make(table: nn.Embedding) -> TemporalRecipe:
        model = Forward(_tgn(options, stream, options.hidden, form="tgat", classes=classes, **layers), None, table)
        return recipe_of(stream, splits, model, once, evaluates=False)

    return learned_rows(make, once, stream, splits.train, setup)


def _header(
    stream: EventStream, spec: str | None, epochs: int, plan: dict[str, Any] | None
) -> Callable[[LoopOptions, Recipe | None], dict[str, Any]]:
    def header(options: LoopOptions, recipe: Recipe | None) -> dict[str, Any]:
        parameters = None if recipe is None else sum(p.numel() for p in recipe.model.parameters())
        facts = {"spec": spec, "name": spec, "nodes": stream.num_nodes, "edges": len(stream), "features": stream.edge_width}
        more = {} if plan is None else {"plan": plan}
        return describe(
            "temporal", facts, replace(options, epochs=epochs), parameters, **more
        )  # as asked for: sweeps follow from it

    return header


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return value.plain() if isinstance(value, Spread) else value


def _spread(ends: list[dict[str, Any]], split: str) -> dict[str, Spread]:
    parts = [end[split] for end in ends if end.get(split) is not None]
    known = [name for name in _FIGURES if parts and all(part.get(name) is not None for part in parts)]
    return {name: Spread([part[name] for part in parts]) for name in known}


def _test(ends: list[dict[str, Any]]) -> dict[str, Any]:
    figures: dict[str, Any] = dict(_spread(ends, "test"))
    inductive = [end["test"]["inductive"] for end in ends]
    figures["inductive"] = _spread([{"i": part} for part in inductive], "i") if all(inductive) else None
    return figures | {name: ends[-1]["test"][name] for name in ("protocol", "heuristic", "inductive_events")}
