"""`node`: node classification, sampled or on the whole graph."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import headrace
from headrace._arrays import thread_count
from headrace.graph import Dataset
from headrace.loader import Batch, MovedBatch, NeighborLoader, WholeBatch
from headrace.nn import GNN
from headrace.pipeline import StageTimes, Trace
from headrace.store import Store, hot_order, rows_for
from headrace.train.checks import check_node_data, check_weights
from headrace.train.clock import Clock
from headrace.train.infer import infer, layers_of
from headrace.train.loop import Score, Step, Trainer
from headrace.train.options import NodeOptions, as_plain
from headrace.train.run import Run
from headrace.train.score import class_weights, count_right, node_loss, score
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
    check_node_data(data)
    options = replace(options, features=_scaling(data, options))  # what was found here holds for other data that it predicts
    data = with_features(data, options)
    top = _open_run(out, data, options, spec, resume) if out is not None and options.repeats > 1 else None
    results, trained = [], None
    with _torch_threads(options.threads):
        for number in range(options.repeats):
            place = None if out is None else Path(out) if top is None else top.path / f"repeat-{number}"
            once = replace(options, seed=options.seed + number, repeats=1)
            begun = place is not None and (top is None or (place / "options.json").exists())
            end, trained = _train(data, model, once, place, resume and begun, watcher, spec)
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
    return replace(data, x=data.x / data.x.sum(dim=1, keepdim=True).clamp_min(1e-12))


def _scaling(data: Dataset, options: NodeOptions) -> Literal["as_is", "rows"]:
    """What `auto` means here. A bag of words is told by being sparse and never negative."""
    assert data.x is not None
    if options.features != "auto":
        return options.features
    some = data.x[:4096]
    return "rows" if bool((some >= 0).all()) and float((some == 0).float().mean()) >= 0.5 else "as_is"


@contextmanager
def _torch_threads(threads: int | None) -> Iterator[None]:
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
) -> tuple[dict[str, Any], nn.Module]:
    torch.manual_seed(options.seed)
    if isinstance(model, nn.Module):
        built = model
    else:
        built = model() if model is not None else make_model(data, options)
    trace = Trace() if out is not None else None
    recipe = NodeRecipe(data, built, options, trace)  # before the run: what it refuses leaves no directory behind
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
    check_same(run.header["options"], as_plain(options), run.path)
    begun, now = run.header["dataset"], header_of(data, options, spec, model)["dataset"]
    for name in ("nodes", "edges", "features", "classes", "multi_label"):
        if begun[name] != now[name]:
            raise ValueError(f"{run.path} was begun on another dataset: it had {name} {begun[name]}, this one has {now[name]}")
    return run


# What may differ when a run goes on: it does not change what the run computes.
_FREE = {"threads", "staleness", "mode", "device_cache", "hot", "checkpoint_seconds", "log_every", "tensorboard"}


def check_same(before: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Raise ValueError if a run would go on with other options than it began with."""
    for name, value in now.items():
        if name not in _FREE and name in before and before[name] != value:
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


class NodeRecipe:
    """Node classification, as the training loop sees it."""

    def __init__(self, data: Dataset, model: nn.Module, options: NodeOptions, trace: Trace | None = None) -> None:
        assert data.y is not None
        self.device = torch.device(options.device)
        self.data, self.model, self.options = data, model.to(self.device), options
        self.labels: Tensor = data.y
        self.train_nodes = data.splits["train"]
        check_weights(data, model, sampled=not options.full_batch)
        self.weight = None
        if options.class_weights == "balanced":
            self.weight = class_weights(self.labels[self.train_nodes], data.num_classes).to(self.device)
        self.rows = None if self.device.type == "cpu" or options.full_batch else self._placed_rows()
        self.loader: NeighborLoader | None = None
        self.whole: WholeBatch | MovedBatch | None = None
        if options.full_batch:
            self.whole = WholeBatch(data, options.depth).to(self.device)
        else:
            self.loader = self._loader(self.train_nodes, shuffle=True, trace=trace)
        self.exact = options.validate != "sampled" and layers_of(model) is not None
        if options.validate == "exact" and not self.exact and self.whole is None:
            raise ValueError(
                f"validate exact needs a model with layers, and {type(model).__name__} has none: choose auto or sampled"
            )

    @property
    def num_batches(self) -> int:
        return 1 if self.loader is None else len(self.loader)

    def batches(self, epoch: int, first: int) -> Iterator[Batch | None]:
        """Sampled batches; or one None, for the whole graph."""
        if self.loader is None:
            return iter([None][first:])
        self.loader.resume(epoch, first)
        return iter(self.loader)

    def loss(self, batch: Batch | None, clock: Clock) -> Step:
        return self._whole_loss(clock) if batch is None else self._batch_loss(batch, clock)

    def _whole_loss(self, clock: Clock) -> Step:
        with clock("forward"), self._precision():
            rows = self.model(self.whole)[self.train_nodes.to(self.device)]
            labels = self.labels[self.train_nodes].to(self.device)
            loss = node_loss(rows, labels, self.weight)
        return Step(loss, len(rows), count_right(rows.detach(), labels))

    def _batch_loss(self, batch: Batch, clock: Clock) -> Step:
        there = batch.to(self.device)  # where the loader has put it already, unless a model of one's own takes it elsewhere
        in_place = there.table is not None and getattr(self.model, "reads_table", False)
        if not in_place:
            with clock("gather", batch.index):
                there.x  # noqa: B018 - gathers the rows
        with clock("forward", batch.index), self._precision():
            rows = self.model(there)
            labels = there.y
            assert labels is not None
            loss = node_loss(rows, labels, self.weight)
        sample = batch.sample
        read = sample.num_edges + batch.blocks[-1].num_dst if in_place else sample.nodes.numel()
        return Step(
            loss,
            len(rows),
            count_right(rows.detach(), labels),
            sample.num_sampled_nodes,
            sample.num_sampled_edges,
            read * self.data.num_features * self.data.x.element_size(),  # type: ignore[union-attr]
        )

    def validate(self, progress: Callable[[int, int], None]) -> Score | None:
        if self.options.validate == "none" or "val" not in self.data.splits:
            return None
        return self._scores(("val",), progress)["val"]

    def test(self, progress: Callable[[int, int], None]) -> dict[str, float | None]:
        names = [name for name in ("train", "val", "test") if name in self.data.splits]
        scores = self._scores(tuple(names), progress)
        return {f"{name}_accuracy": scores[name].accuracy if name in scores else None for name in ("train", "val", "test")}

    def stages(self) -> list[StageTimes]:
        return [] if self.loader is None else self.loader.stage_times

    def facts(self) -> dict[str, Any]:
        if self.loader is None:
            return {"memory": {"data": self.data.nbytes}, "cache": None}
        use = self.loader.memory()
        return {
            "memory": {"data": self.data.nbytes, "buffers": use.in_use + use.idle, "buffers_peak": use.peak},
            "cache": {"hits": use.hits, "misses": use.misses},
        }

    def _scores(self, names: tuple[str, ...], progress: Callable[[int, int], None]) -> dict[str, Score]:
        nodes = {name: self.data.splits[name] for name in names}
        together = torch.cat(list(nodes.values()))
        with self._precision():
            rows = self._predict(together, progress)
        found: dict[str, Score] = {}
        begin = 0
        for name, ids in nodes.items():
            found[name] = score(rows[begin : begin + len(ids)].float(), self.labels[ids])
            begin += len(ids)
        return found

    def _predict(self, nodes: Tensor, progress: Callable[[int, int], None]) -> Tensor:
        """The model's rows of some nodes, as in evaluation."""
        if self.exact and self.whole is None:
            model = self.model if self.device.type == "cpu" else copy.deepcopy(self.model).cpu()
            return infer(model, self.data, nodes, progress=progress)
        self.model.eval()
        with torch.no_grad():
            if self.whole is not None:
                rows: Tensor = self.model(self.whole)
                return rows[nodes.to(self.device)].cpu()
            loader = self._loader(nodes, shuffle=False)
            parts = []
            for batch in loader:
                parts.append(self.model(batch).cpu())
                progress(min((batch.index + 1) * self.options.batch_size, len(nodes)), len(nodes))
            return torch.cat(parts)

    def _loader(self, nodes: Tensor, *, shuffle: bool, trace: Trace | None = None) -> NeighborLoader:
        options = self.options
        # A batch of one node has no variance to normalise by: of a training epoch it is left out.
        lone = shuffle and len(nodes) > 1 and len(nodes) % options.batch_size == 1 and _normalises_batches(self.model)
        return NeighborLoader(
            self.data,
            options.fanouts,
            nodes,
            batch_size=options.batch_size,
            shuffle=shuffle,
            drop_last=lone,
            seed=options.seed,
            threads=options.threads,
            staleness=options.staleness,
            device=self.device,
            mode=options.mode,
            rows=self.rows,
            trace=trace,
        )

    def _placed_rows(self) -> Store:
        """Features where the GPU reads them."""
        assert self.data.x is not None
        options = self.options
        order = partial(
            hot_order,
            self.data.graph,
            by=options.hot,
            seeds=self.train_nodes,
            fanouts=options.fanouts,
            batch_size=options.batch_size,
        )
        return rows_for(self.device, self.data.x, cache=options.cache_budget, order=order)

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.options.precision == "bf16")


def _normalises_batches(model: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
