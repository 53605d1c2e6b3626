"""`temporal`: link prediction on a stream of events, by a model with node memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace.graph import Dataset, EventSplits, EventStream
from headrace.nn import TGN
from headrace.temporal import Schedule, cut_events, parse_parallel
from headrace.train.events.options import TemporalOptions
from headrace.train.events.recipe import Forward, TemporalRecipe
from headrace.train.fit import Setup, describe, fit
from headrace.train.measure import Spread
from headrace.train.options import LoopOptions
from headrace.train.recipe import Recipe
from headrace.train.run import Run
from headrace.train.watching.watch import Watcher

_FIGURES = ("ap", "auc", "mrr", "hits@10")


@dataclass(frozen=True)
class TemporalResult:
    """What training gave: figures of the test events over the repeats, and the last repeat's model at its best."""

    test: dict[str, Any]  # ap, auc, mrr, hits@10; inductive.ap and so on: a Spread each; protocol, heuristic
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
) -> TemporalResult:
    """Train a model with node memory to predict which events come, and test it on the latest of them.

    data: a stream, or a dataset whose events have times. out, resume, watcher: as in `train.node`.

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
    stream = EventStream.of(data)
    splits = stream.splits()
    features = data.x if isinstance(data, Dataset) else None
    if options.static == "features" and features is None:
        raise ValueError("static features adds the nodes' features, and the data has none: use static learned or none")
    i, j, k = parse_parallel(options.parallel)
    cuts = cut_events(stream, 0, splits.train, options.batch_size, options.cut)
    plan = Schedule(i, j, k, len(cuts) - 1)
    swept = replace(options, epochs=plan.sweeps(options.epochs), accumulate=plan.trainers)

    def make(setup: Setup) -> Recipe:
        if plan.trainers % setup.ranks.size:
            fits = [n for n in range(1, plan.trainers + 1) if plan.trainers % n == 0]
            raise ValueError(f"{setup.ranks.size} ranks do not divide {options.parallel} trainers: start {_listed(fits)}")
        if setup.ranks.size > 1:
            raise ValueError("trainers of temporal training are lanes of one process as yet: start one rank")
        static = _static(stream, splits, features, setup)
        torch.manual_seed(setup.options.seed)
        width = 0 if static is None else static.shape[1]
        recipe = TemporalRecipe(stream, splits, Forward(_tgn(setup.options, stream, width), static), setup.options, setup.trace)
        setup.opened.callback(recipe.close)
        return recipe

    ends, recipe = fit(make, swept, header=_header(stream, spec, options.epochs), out=out, resume=resume, watcher=watcher)
    path = None if out is None else Path(out)
    seconds = sum(end["seconds"] for end in ends)
    trained = sum(end["train_seconds"] for end in ends)
    events = splits.train * j * k * swept.epochs * len(ends)
    result = TemporalResult(_test(ends), _spread(ends, "val"), events / trained, seconds, recipe.model.eval(), path)
    if out is not None:
        Run(out).save_result(result.summary())
    return result


def _tgn(options: TemporalOptions, stream: EventStream, static: int, **more: Any) -> TGN:
    pyg = {"score": "scaled", "output": "skip"} if options.attention == "pyg" else {}
    sizes = {"memory": options.hidden, "time": options.hidden, "out": options.hidden}
    form = {"form": options.model, "heads": options.heads, "dropout": options.dropout}
    return TGN(**(sizes | form | pyg | {"static": static, "edge": stream.edge_width} | more))


def _static(stream: EventStream, splits: EventSplits, features: Tensor | None, setup: Setup) -> Tensor | None:
    """Static rows: given, or learnt by a first pass with a table in memory's place; nodes unseen in training have zeros."""
    options: TemporalOptions = setup.options
    if options.static == "none":
        if options.model == "tgat":
            raise ValueError("tgat has no memory, so nodes would be alike: use static learned or features")
        return None
    if options.static == "features":
        assert features is not None
        return features.float()
    setup.watcher.note(f"static rows are learnt first, in {options.static_epochs} epochs")
    torch.manual_seed(options.seed)
    table = nn.Embedding(stream.num_nodes, options.hidden)
    once = replace(options, parallel="1x1x1", epochs=options.static_epochs, accumulate=1, validate_every=0, static="none")
    layers = {} if options.model == "tgat" else {"layers": 1}
    tgn = _tgn(options, stream, options.hidden, form="tgat", **layers)
    if options.prepared is not None:  # batches without memory, and so others
        once = replace(once, prepared=str(Path(options.prepared) / "static"))
    model = Forward(tgn, None, table)
    fit(lambda _: TemporalRecipe(stream, splits, model, once, evaluates=False), once, task="static", watcher=Watcher())
    seen = torch.zeros(stream.num_nodes, dtype=torch.bool)
    seen[stream.src[: splits.train].long()] = True
    seen[stream.dst[: splits.train].long()] = True
    return torch.where(seen[:, None], table.weight.detach().cpu(), 0.0)


def _header(stream: EventStream, spec: str | None, epochs: int) -> Callable[[LoopOptions, Recipe | None], dict[str, Any]]:
    def header(options: LoopOptions, recipe: Recipe | None) -> dict[str, Any]:
        parameters = None if recipe is None else sum(p.numel() for p in recipe.model.parameters())
        facts = {"spec": spec, "name": spec, "nodes": stream.num_nodes, "edges": len(stream), "features": stream.edge_width}
        return describe("temporal", facts, replace(options, epochs=epochs), parameters)  # as asked for: sweeps follow from it

    return header


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:-1])) + f" or {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])


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
