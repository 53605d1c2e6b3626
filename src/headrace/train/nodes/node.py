"""`node`: node classification, sampled or on the whole graph."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

import headrace
from headrace._arrays import thread_count
from headrace.graph import Dataset
from headrace.nn import GNN
from headrace.pipeline import Trace
from headrace.train.loop import Trainer
from headrace.train.nodes.checks import check_node_data
from headrace.train.nodes.features import row_scaled
from headrace.train.nodes.recipe import NodeRecipe
from headrace.train.nodes.stored import StoredData, stored_data
from headrace.train.options import NodeOptions, as_plain
from headrace.train.run import Run
from headrace.train.tensorboard import TensorBoard, summary_writer
from headrace.train.watch import Watcher, Watchers

Model = nn.Module | Callable[[], nn.Module] | None


@dataclass(frozen=True)
class NodeResult:
    """What training gave: accuracies of every repeat (micro-F1 where nodes have several labels), and the last model at its best."""

    test_accuracy: list[float]
    val_accuracy: list[float]
    seconds: float
    model: nn.Module
    run: Path | None = None

    def summary(self) -> dict[str, Any]:
        """As `result.json` and `--json` have it."""
        return {
            "test_accuracy": spread(self.test_accuracy),
            "val_accuracy": spread(self.val_accuracy),
            "seconds": self.seconds,
            "run": None if self.run is None else str(self.run),
        }


def node(
    data: Dataset,
    model: Model = None,
    options: NodeOptions | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
    spec: str | None = None,
) -> NodeResult:
    """Train a model to classify the nodes of `data`, with the splits `train`, `val` and `test`.

    model: a module whose `forward` takes a batch and gives a row per seed; or a function that makes one (each repeat makes its
        own); or None for the `headrace.nn.GNN` that the options describe. A module with `layers` is validated exactly (`infer`).
    out: the run's directory: options, metrics, a timeline, checkpoints. Without it nothing is written.
    resume: go on with the run at `out` from its last checkpoint. The end is the same, bit by bit, as if it had never stopped.

    Ctrl-C finishes the step, writes a checkpoint and raises KeyboardInterrupt.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=2000, edges=40000, classes=4, features=16)
    >>> options = hr.train.NodeOptions(hidden=32, fanout=(10, 5), epochs=20, lr=0.01, batch_size=64)
    >>> result = hr.train.node(data, options=options)
    >>> result.test_accuracy[0] > 0.7
    True
    """
    options = options or NodeOptions()
    if resume and out is None:
        raise ValueError("resume goes on with the run at out: say which")
    if isinstance(model, nn.Module) and options.repeats > 1:
        raise ValueError("repeats need a model each: pass a function that makes one")
    if options.tensorboard:
        summary_writer()  # is it there?
    check_node_data(data, rows=options.storage == "memory")
    options = replace(options, features=_scaling(data, options))  # what was found here holds for other data that it predicts
    stored = stored_data(data, options, None if out is None else Path(out)) if options.storage != "memory" else None
    data = with_features(data, options) if stored is None else stored.data
    top = _open_run(out, data, options, spec, resume) if out is not None and options.repeats > 1 else None
    results, trained = [], None
    with torch_threads(options.threads):
        for number in range(options.repeats):
            place = None if out is None else Path(out) if top is None else top.path / f"repeat-{number}"
            once = replace(options, seed=options.seed + number, repeats=1)
            begun = place is not None and (top is None or (place / "options.json").exists())
            end, trained = _train(data, model, once, place, resume and begun, watcher, spec, stored)
            results.append(end)
    assert trained is not None
    result = NodeResult(
        [r["test_accuracy"] for r in results if r["test_accuracy"] is not None],
        [r["val_accuracy"] for r in results if r["val_accuracy"] is not None],
        sum(r["seconds"] for r in results),
        trained,
        None if out is None else Path(out),
    )
    if out is not None:
        (top or Run(out)).save_result(result.summary())
    return result


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, standard deviation and the values themselves."""
    return {
        "mean": statistics.fmean(values) if values else None,
        "std": statistics.stdev(values) if len(values) > 1 else 0.0 if values else None,
        "values": list(values),
    }


def with_features(data: Dataset, options: NodeOptions) -> Dataset:
    """The dataset with its features as the options want them."""
    assert data.x is not None
    if _scaling(data, options) == "as_is":
        return data
    return replace(data, x=row_scaled(data.x))


def _scaling(data: Dataset, options: NodeOptions) -> Literal["as_is", "rows"]:
    """What `auto` means here. A bag of words is told by being sparse and never negative."""
    assert data.x is not None
    if options.features != "auto":
        return options.features
    some = data.x[:4096]
    return "rows" if bool((some >= 0).all()) and float((some == 0).float().mean()) >= 0.5 else "as_is"


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


def _train(
    data: Dataset,
    model: Model,
    options: NodeOptions,
    out: Path | None,
    resume: bool,
    watcher: Watcher | None,
    spec: str | None,
    stored: StoredData | None,
) -> tuple[dict[str, Any], nn.Module]:
    torch.manual_seed(options.seed)
    if isinstance(model, nn.Module):
        built = model
    else:
        built = model() if model is not None else make_model(data, options)
    trace = Trace() if out is not None else None
    # Before the run: what it refuses leaves no directory behind.
    recipe = NodeRecipe(data, built, options, trace) if stored is None else stored.recipe(built, options, trace, folder=out)
    run = None if out is None else _open_run(out, data, options, spec, resume, built)
    watchers = [watcher] if watcher is not None else []
    with ExitStack() as opened:
        if options.tensorboard and run is not None:
            watchers.append(opened.enter_context(closing(TensorBoard(run.path / "tensorboard", options.log_every))))
        trainer = Trainer(recipe, options, run, Watchers(watchers), trace)
        if resume:
            trainer.restore()
        end = trainer.fit(run.header if run is not None else header_of(data, options, spec, built))
    return end, built.eval()


def _open_run(
    out: str | Path, data: Dataset, options: NodeOptions, spec: str | None, resume: bool, model: nn.Module | None = None
) -> Run:
    if not resume:
        return Run.create(out, header_of(data, options, spec, model))
    run = Run(out)
    begun = run.header["options"]
    alike = {begun.get("storage", "memory"), options.storage} <= {
        "memory",
        "disk",
    }  # of a resident run, memory says what is sampled
    check_same(begun, as_plain(options), run.path, free=_FREE | {"storage", "memory"} if alike else _FREE)
    before, now = run.header["dataset"], header_of(data, options, spec, model)["dataset"]
    for name in ("nodes", "edges", "features", "classes", "multi_label"):
        if before[name] != now[name]:
            raise ValueError(f"{run.path} was begun on another dataset: it had {name} {before[name]}, this one has {now[name]}")
    return run


# What may differ when a run goes on: it does not change what the run computes.
_FREE = {"threads", "staleness", "mode", "device_cache", "hot", "checkpoint_seconds", "log_every", "tensorboard"}


def check_same(before: dict[str, Any], now: dict[str, Any], path: Path, *, free: Set[str] = _FREE) -> None:
    """Raise ValueError if a run would go on with other options than it began with."""
    for name, value in now.items():
        if name not in free and name in before and before[name] != value:
            raise ValueError(f"{path} was begun with {name} {before[name]}, not {value}: resume with the same options")


def header_of(data: Dataset, options: NodeOptions, spec: str | None, model: nn.Module | None) -> dict[str, Any]:
    """What `options.json` says of a run."""
    best = data.info.get("best_accuracy")
    return {
        "task": "node",
        "headrace": headrace.__version__,
        "dataset": {
            "spec": spec,
            "name": data.info.get("name"),
            "nodes": data.num_nodes,
            "edges": data.num_edges,
            "features": data.num_features,
            "classes": data.num_classes,
            "multi_label": data.y is not None and data.y.dim() == 2,
            "best_accuracy": best if isinstance(best, float) else None,
        },
        "options": as_plain(options),
        "parameters": None if model is None else sum(p.numel() for p in model.parameters()),
    }


def make_model(data: Dataset, options: NodeOptions) -> GNN:
    """The model that the options describe."""
    allowed = (torch.float32, torch.bfloat16) if options.precision == "bf16" else (torch.float32,)
    if data.x is not None and data.x.dtype not in allowed:
        raise ValueError(f"features are {data.x.dtype}, and the model computes with {options.precision}: convert x with .float()")
    return GNN(
        data.num_features,
        options.hidden,
        data.num_classes,
        layers=options.depth,
        conv=options.model,
        dropout=options.dropout,
        input_dropout=options.input_dropout,
        norm=options.norm,
        residual=options.residual,
        heads=options.heads,
    )
