"""`node`: node classification, sampled or on the whole graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headrace.cluster import Part
from headrace.graph import Dataset
from headrace.graph.convert import as_dataset
from headrace.graph.saved.fingerprint import fingerprints
from headrace.nn import GNN
from headrace.train.fit import FREE, Setup, describe, fit
from headrace.train.measure import Spread, spreads
from headrace.train.nodes.checks import check_model_size, check_node_data, check_own_rows
from headrace.train.nodes.features import Scaling, scaled
from headrace.train.nodes.options import NodeOptions
from headrace.train.nodes.over_ranks.over_parts import SplitData, own_part
from headrace.train.nodes.over_ranks.parallel import over_ranks
from headrace.train.nodes.own_rows import OwnRows
from headrace.train.nodes.recipe import NodeRecipe
from headrace.train.nodes.splits import num_splits, over_splits, split_numbers, with_split
from headrace.train.nodes.storage.stored import StoredData, stored_data
from headrace.train.options import LoopOptions
from headrace.train.recipe import Recipe
from headrace.train.run import Run
from headrace.train.watching.watch import Watcher

Model = nn.Module | Callable[[], nn.Module] | None
Stored = StoredData | SplitData  # where features are not whole in memory


@dataclass(frozen=True)
class NodeResult:
    """What training gave: each measure of each split, over the repeats, and the last repeat's model at its best."""

    scores: dict[str, Spread]  # `test_accuracy`, `val_macro_f1` and the like; of several labels `test_micro_f1`
    seconds: float
    model: nn.Module
    run: Path | None = None

    @property
    def test_accuracy(self) -> Spread | None:
        """A number: the mean over the repeats; its `values` and `std` too. None where there is no such split."""
        return self._accuracy("test")

    @property
    def val_accuracy(self) -> Spread | None:
        """The accuracy over repeats of the validation nodes, which chose the best weights."""
        return self._accuracy("val")

    def _accuracy(self, split: str) -> Spread | None:
        if "train_micro_f1" in self.scores:
            raise AttributeError(f"nodes with several labels have no accuracy: see scores['{split}_micro_f1']")
        return self.scores.get(f"{split}_accuracy")

    def summary(self) -> dict[str, Any]:
        """The result as `result.json` and `--json` write it."""
        scores = {name: values.plain() for name, values in self.scores.items()}
        return {**scores, "seconds": self.seconds, "run": None if self.run is None else str(self.run)}


def node(
    data: Dataset | Part,
    options: NodeOptions | Mapping[str, Any] | None = None,
    *,
    model: Model = None,
    out: str | Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
    spec: str | None = None,
) -> NodeResult:
    """Train a model to classify the nodes of `data`, with the splits `train`, `val` and `test`.

    data: a `Dataset`, or a graph of PyG, NetworkX, SciPy or DGL that has labels and splits (`Dataset.from_pyg` and the like); or
        this rank's `cluster.Part`.
    options: all of them; or some by name, in a dict, as `train.link` takes them.
    model: a module whose `forward` takes a batch and gives a row per seed; or a function that makes one (each repeat makes its
        own); or None for the `headrace.nn.GNN` that the options describe. A module with `layers` is validated exactly (`infer`).
    out: the run's directory: options, metrics, a timeline, checkpoints. Without it nothing is written.
    resume: go on with the run at `out` from its last checkpoint. The end is the same, bit by bit, as if it had never stopped.

    watcher: is told what happens; `Watcher()` shows nothing. Without one, lines are shown in a terminal or a notebook.

    Ctrl-C finishes the step, writes a checkpoint and raises KeyboardInterrupt.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=2000, edges=40000, classes=4, features=16)
    >>> options = hr.train.NodeOptions(hidden=32, fanout=(10, 5), epochs=20, lr=0.01, batch_size=64)
    >>> result = hr.train.node(data, options=options)
    >>> result.test_accuracy > 0.7
    True
    """
    options = NodeOptions(**(options or {})) if options is None or isinstance(options, Mapping) else options
    if not isinstance(options, NodeOptions):
        raise TypeError(f"options must be NodeOptions, not {type(options).__name__}: a model is passed as model=")
    part = SplitData.of(data, options) if isinstance(data, Part) else None
    if part is None and (options.topology == "split" or options.flow != "none"):
        part = own_part(as_dataset(data), options, partial(_built, model, options))
    data = as_dataset(data) if part is None else part.data
    numbers = split_numbers(data, options)
    options = over_splits(options, len(numbers))
    if isinstance(model, nn.Module) and options.repeats > 1:
        raise ValueError("repeats need a model each: pass a function that makes one")
    for number in reversed(numbers):
        first = number == numbers[0]
        rows = first and options.storage == "memory" and part is None
        check_node_data(with_split(data, number), rows=rows, own_rows=model is None)
    data = with_split(data, numbers[0])
    if data.x is None:
        check_own_rows(options)
    if len(numbers) > 1 and options.storage == "resident":
        raise ValueError("storage resident lays features out for one split: train on one of them, as with split 0")
    if model is None:
        check_model_size(data, options)
    options = options.suited(len(data.splits["train"]))
    known = fingerprints(data) if part is None else part.part.fingerprint
    scaling = part.scaling if part is not None else None if data.x is None else Scaling.of(options.features, data.x)
    path = None if out is None else Path(out)
    stored = stored_data(data, options, scaling, path) if options.storage != "memory" else part
    data = scaled(data, scaling) if stored is None else stored.data
    ends, recipe = fit(
        partial(_recipe_of_split, data, model, stored, scaling, numbers, options.seed),
        options,
        header=_header(data, spec, scaling, known, data.num_edges if part is None else part.part.num_edges),
        out=out,
        resume=resume,
        watcher=watcher,
        free=partial(_free, options.storage),
    )
    result = NodeResult(
        spreads(recipe.measures, ends),
        sum(end["seconds"] for end in ends),
        recipe.model.eval(),
        path,
    )
    if out is not None and recipe.ranks.rank == 0:  # type: ignore[attr-defined]
        Run(out).save_result(result.summary())
    return result


def _recipe_of_split(
    data: Dataset, model: Model, stored: Stored | None, scaling: Scaling | None, numbers: list[int], seed: int, setup: Setup
) -> NodeRecipe:
    """The recipe of a repeat, each on the next of several splits."""
    number = numbers[(setup.options.seed - seed) % len(numbers)]
    if num_splits(data) > 1:
        setup.watcher.note(f"official split {number} of 0 to {num_splits(data) - 1}")
        data = with_split(data, number)
        stored = None if stored is None else replace(stored, data=with_split(stored.data, number))
    return _recipe(data, model, stored, scaling, setup)


def _recipe(data: Dataset, model: Model, stored: Stored | None, scaling: Scaling | None, setup: Setup) -> NodeRecipe:
    if scaling is not None:
        setup.watcher.note(f"{scaling} (features {scaling.kind})")
    if data.x is None:
        setup.watcher.note(f"nodes have no features: each trains on a row of its own, {setup.options.hidden} learned numbers")
    built = _built(model, setup.options, data)
    recipe = over_ranks(data, built, setup) if stored is None else stored.recipe(built, setup)
    if setup.options.capture == "auto" and recipe.device.type == "cuda" and recipe.loader is not None:
        which = "steps are recorded once and replayed as one launch" if recipe.captured else "steps are not recorded"
        setup.watcher.note(f"{which} (capture auto: {recipe.capture_reason}); a resumed run goes on as it began")
    return recipe


def _built(model: Model, options: NodeOptions, data: Dataset) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    return model() if model is not None else make_model(data, options)


def _free(storage: str, begun: dict[str, Any]) -> Set[str]:
    """What may differ when a run goes on. Features in memory and on disk give the same batches; resident ones do not."""
    alike = {begun.get("storage", "memory"), storage} <= {"memory", "disk"}
    places = {"staleness", "mode", "device_cache", "hot", "share", "parallel", "topology", "slices", "replicate"}
    places |= {"intervals", "executor", "workers", "tasks_per_call", "fusion", "objects", "budget"}
    flow = begun.get("flow", "none")
    places |= {"accumulate"} if flow != "none" else set()  # a step is an epoch, on any number of servers
    places |= {"flow"} if flow in ("sync", "pipe") else set()
    return FREE | places | ({"storage", "memory"} if alike else set())


def _header(
    data: Dataset, spec: str | None, scaling: Scaling | None, known: dict[str, str] | None, edges: int
) -> Callable[[LoopOptions, Recipe | None], dict[str, Any]]:
    def header(options: LoopOptions, recipe: Recipe | None) -> dict[str, Any]:
        assert isinstance(options, NodeOptions)
        about = header_of(data, options, spec, None if recipe is None else recipe.model, scaling)
        return about | {"dataset": about["dataset"] | {"fingerprint": known, "edges": edges}}

    return header


def header_of(
    data: Dataset, options: NodeOptions, spec: str | None, model: nn.Module | None, scaling: Scaling | None = None
) -> dict[str, Any]:
    """What `options.json` says of a run."""
    best = data.info.get("best_accuracy")
    dataset = {
        "spec": spec,
        "name": data.info.get("name"),
        "nodes": data.num_nodes,
        "edges": data.num_edges,
        "features": data.num_features,
        "classes": data.num_classes,
        "multi_label": data.y is not None and data.y.dim() == 2,
        "best_possible": {"accuracy": best} if isinstance(best, float) else {},
    }
    if "class_names" in data.info:
        dataset["class_names"] = data.info["class_names"]
    more = {} if scaling is None else scaling.statistics()
    return describe("node", dataset, options, None if model is None else sum(p.numel() for p in model.parameters()), **more)


def make_model(data: Dataset, options: NodeOptions) -> GNN | OwnRows:
    """The model that the options describe; where nodes have no features, over rows of their own."""
    allowed = (torch.float32, torch.bfloat16) if options.precision == "bf16" else (torch.float32,)
    if data.x is not None and data.x.dtype not in allowed:
        raise ValueError(f"features are {data.x.dtype}, and the model computes with {options.precision}: convert x with .float()")
    network = GNN(
        data.num_features or options.hidden,
        options.hidden,
        data.num_classes,
        layers=options.depth,
        conv=options.model,
        dropout=options.dropout,
        input_dropout=options.input_dropout,
        norm=options.norm,
        residual=options.residual,
        heads=options.heads,
        inner_norm=options.inner_norm,
    )
    return network if data.x is not None else OwnRows(network, nodes=data.num_nodes, width=options.hidden)
