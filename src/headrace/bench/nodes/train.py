"""Training of GraphSAGE with three layers, end to end, beside the time its matrix products alone would take.

On a CPU a step, beside PyG and DGL; on a GPU an epoch, by where batches are sampled and features live, and where its time goes.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from headrace.bench import peers
from headrace.bench.measure import Epochs, Row, needs_gpu, product_rate, time_in_turn
from headrace.bench.setting import BATCH, FANOUTS, Setting, check_trainable
from headrace.graph import Dataset
from headrace.loader import NeighborLoader
from headrace.nn import GNN
from headrace.train import NodeOptions, infer
from headrace.train.loop import Trainer
from headrace.train.nodes.recipe import NodeRecipe

_HIDDEN, _DROPOUT, _RATE = 256, 0.5, 0.003
_PARTS = ("wait", "gather", "forward", "backward", "step")
_PLACES: dict[str, dict[str, Any]] = {
    "all on the GPU": {"mode": "gpu", "capture": "never"},
    "all on the GPU, captured": {"mode": "gpu", "capture": "always"},
    "UVA and 20 % of the features hot": {"mode": "uva", "device_cache": "20%", "capture": "never"},
    "UVA and 20 % of the features hot, captured": {"mode": "uva", "device_cache": "20%", "capture": "always"},
    "UVA, features pinned": {"mode": "uva", "device_cache": "0%", "capture": "never"},
    "mixed, features on the GPU": {"mode": "mixed", "capture": "never"},
    "CPU threads sample, features on the GPU": {"mode": "cpu", "capture": "never"},
}


def on_cpu(setting: Setting) -> list[Row]:
    """Ours in fp32 and bf16, PyG with trimming, DGL: seconds per step, where they go, and accuracy after as many steps."""
    data = setting.dataset()
    check_trainable(data)
    batches = setting.seed_batches(data)
    torch.set_num_threads(setting.threads)
    train = replace(data, splits={**data.splits, "train": torch.cat(batches)})
    first = _model(data)
    runs: dict[str, peers.Training] = {
        "ours": _Ours(train, first, _options("fp32", setting.threads, batch_size=len(batches[0]))),
        "ours, bf16": _Ours(train, first, _options("bf16", setting.threads, batch_size=len(batches[0]))),
    }
    sage = peers.Sage(FANOUTS, len(batches[0]), _HIDDEN, _DROPOUT, _RATE)
    weights = {name.replace("layers.", "convs.").replace(".conv.", "."): value for name, value in first.state_dict().items()}
    if setting.wants("pyg") and peers.pyg_backend():
        setting.progress("preparing PyG")
        pyg = peers.PygTraining(train, weights, sage)
        _check_equal(train, first, pyg, len(batches[0]))
        runs[f"PyG {peers.pyg_backend()}, trimmed"] = pyg
    if setting.wants("dgl") and peers.has_dgl():
        setting.progress("preparing DGL")
        runs["DGL"] = peers.DglTraining(train, weights, sage)
    setting.progress("training")
    seconds = time_in_turn({name: training.epoch for name, training in runs.items()}, repeats=setting.repeats)
    per_step = {name: s / len(batches) for name, s in seconds.items()}
    parts = {name: {p: s / len(batches) for p, s in training.parts().items()} for name, training in runs.items()}
    ours: _Ours = runs["ours"]  # type: ignore[assignment]
    setting.progress("measuring matrix products")
    floors = {kind: ours.flop / product_rate(dtype) for kind, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))}
    setting.progress("scoring the models")
    accuracy = {name: _accuracy(data, first, training) for name, training in runs.items()}
    return _rows(setting, per_step, parts, floors, accuracy, ours.flop, len(batches) * (setting.repeats + 1))


def _rows(
    setting: Setting,
    per_step: dict[str, float],
    parts: dict[str, dict[str, float]],
    floors: dict[str, float],
    accuracy: dict[str, float],
    flop: float,
    steps: int,
) -> list[Row]:
    others = {name: s for name, s in per_step.items() if not name.startswith("ours")}
    case = f"SAGE 3 x {_HIDDEN}, fanout {','.join(map(str, FANOUTS))}, {setting.threads} threads"
    rows = []
    for kind, name in (("fp32", "ours"), ("bf16", "ours, bf16")):
        metric = f"step, {flop / 1e9:.1f} GFLOP of products"
        rows.append(Row(f"{case}, {kind}", metric, "s", per_step[name], others, floors[kind]))
    for part in _PARTS:
        theirs = {name: p[part] for name, p in parts.items() if name != "ours" and part in p}
        if part in parts["ours"] or theirs:
            rows.append(Row(f"{case}, part: {part}", part, "s", parts["ours"].get(part, 0.0), theirs))
    better = {name: a for name, a in accuracy.items() if name != "ours"}
    rows.append(Row(f"{case}, after {steps} steps", "test accuracy", "share", accuracy["ours"], better))
    return rows


class _Ours:
    """Our trainer, an epoch at a time."""

    def __init__(self, data: Dataset, first: GNN, options: NodeOptions) -> None:
        self.data, self.model, self.seen = data, _model(data), Epochs()
        self.model.load_state_dict(first.state_dict())
        self.trainer = Trainer(NodeRecipe(data, self.model, options), options, None, self.seen)

    def epoch(self) -> None:
        self.trainer.epoch()

    def parts(self) -> dict[str, float]:
        return {part: statistics.median(f["time"].get(part, 0.0) for f in self.seen.facts[1:]) for part in _PARTS}

    def weights(self) -> dict[str, torch.Tensor]:
        return {name.removeprefix("layers.").replace(".conv.", "."): w for name, w in self.model.state_dict().items()}

    @property
    def flop(self) -> float:
        return step_flop(self.data, self.seen.facts[-1]["sampled"]["nodes"])


def _model(data: Dataset) -> GNN:
    return GNN(data.num_features, _HIDDEN, data.num_classes, layers=len(FANOUTS), dropout=_DROPOUT)


def _options(precision: str, threads: int, **more: Any) -> NodeOptions:
    how: dict[str, Any] = {"hidden": _HIDDEN, "dropout": _DROPOUT, "lr": _RATE, "fanout": FANOUTS, "precision": precision}
    return NodeOptions(**how, epochs=10**6, validate="none", threads=threads, **more)


def step_flop(data: Dataset, nodes: list[float]) -> float:
    """Of the matrix products of a step: each layer's, forward, for the weights and (but in the first) for its input."""
    widths = [data.num_features, *[_HIDDEN] * (len(FANOUTS) - 1), data.num_classes]
    targets = [sum(nodes[: depth + 1]) for depth in range(len(FANOUTS))][::-1]  # of each layer
    total = 0.0
    for i, rows in enumerate(targets):
        total += (2 if i == 0 else 3) * 2 * 2 * rows * widths[i] * widths[i + 1]
    return total


def _check_equal(data: Dataset, first: GNN, pyg: peers.PygTraining, batch: int) -> None:
    """The same weights on the same batch give the same rows, or nothing is timed."""
    one = next(iter(NeighborLoader(data, FANOUTS, "train", batch_size=batch)))
    first.eval()
    with torch.no_grad():
        ours, theirs = first(one), pyg.rows(one.to_pyg())
    first.train()
    if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4):
        raise RuntimeError(f"our rows and PyG's differ by {float((ours - theirs).abs().max()):.2e}: nothing is timed")


def _accuracy(data: Dataset, like: GNN, training: peers.Training) -> float:
    """Of the trained weights in our model: the same judge for everybody."""
    like.load_state_dict({_our_name(name): value for name, value in training.weights().items()})
    return _model_accuracy(data, like)


def _model_accuracy(data: Dataset, model: GNN) -> float:
    """Over all neighbors, on (at most) 20,000 test nodes."""
    nodes = data.splits["test"][:20_000]
    assert data.y is not None
    return float((infer(model, data, nodes).argmax(dim=1) == data.y[nodes]).float().mean())


def _our_name(name: str) -> str:
    number, _, rest = name.partition(".")
    return f"layers.{number}.conv.{rest}"


def on_cuda(setting: Setting) -> list[Row]:
    """An epoch over all training nodes. The limit is the time of the matrix products alone."""
    device = needs_gpu()
    data = setting.dataset()
    rows = []
    for precision in ("fp32", "bf16"):
        for place, how in _PLACES.items():
            if precision == "bf16" and place.startswith(("mixed", "CPU")):
                continue
            setting.progress(f"{place}, {precision}")
            options = _options(precision, setting.threads, batch_size=BATCH, staleness=4, device=str(device), **how)
            rows += _epoch_rows(setting, data, place, options, device)
    return rows


def _epoch_rows(setting: Setting, data: Dataset, place: str, options: NodeOptions, device: torch.device) -> list[Row]:
    torch.manual_seed(0)
    model, seen = _model(data), Epochs()
    trainer = Trainer(NodeRecipe(data, model, options), options, None, seen)
    seconds = []
    for _ in range(setting.repeats + 1):
        torch.cuda.synchronize()
        begin = perf_counter()
        trainer.epoch()
        torch.cuda.synchronize()
        seconds.append(perf_counter() - begin)
    steps, last = trainer.recipe.num_batches(0), seen.facts[-1]
    dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
    floor = steps * step_flop(data, last["sampled"]["nodes"]) / product_rate(dtype, device)
    case = f"{place}, {options.precision}, SAGE 3 x {_HIDDEN}, {steps} batches of {BATCH}"
    rows = [Row(case, "epoch", "s", statistics.median(seconds[1:]), {}, floor)]
    for part in last["time"]:
        spent = statistics.median(facts["time"].get(part, 0.0) for facts in seen.facts[1:])
        rows.append(Row(f"{case}, part: {part}", "milliseconds of a step", "ms", 1e3 * spent / steps))
    for stage in last["stages"]:
        rows.append(Row(f"{case}, stage: {stage['name']}", "busy for a batch", "ms", 1e3 * stage["busy"] / max(stage["items"], 1)))
    accuracy = _model_accuracy(data, model)
    return [*rows, Row(f"{case}, after {setting.repeats + 1} epochs", "test accuracy", "share", accuracy)]
