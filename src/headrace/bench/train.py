"""One training step, end to end: GraphSAGE of three layers, beside the time its matrix products alone would take."""

from __future__ import annotations

import statistics
from dataclasses import replace
from time import perf_counter
from typing import Any, Literal

import torch

from headrace.bench import peers
from headrace.bench.measure import Row, time_in_turn
from headrace.bench.setting import FANOUTS, Setting
from headrace.graph import Dataset
from headrace.loader import NeighborLoader
from headrace.nn import GNN
from headrace.train import NodeOptions, Watcher, infer
from headrace.train.loop import Trainer
from headrace.train.nodes.recipe import NodeRecipe

HIDDEN, DROPOUT, RATE = 256, 0.5, 0.003
_PARTS = ("wait", "gather", "forward", "backward", "step")


def run(setting: Setting) -> list[Row]:
    """Ours in fp32 and bf16, PyG with trimming, DGL: seconds per step, where they go, and accuracy after as many steps."""
    data = setting.dataset()
    if data.x is None or data.y is None:
        raise ValueError("this dataset has no features or no labels to train with")
    batches = setting.seed_batches(data)
    torch.set_num_threads(setting.threads)
    train = replace(data, splits={**data.splits, "train": torch.cat(batches)})
    first = GNN(data.num_features, HIDDEN, data.num_classes, layers=len(FANOUTS), dropout=DROPOUT)
    runs: dict[str, peers.Training] = {
        "ours": _Ours(train, first, "fp32", len(batches[0]), setting.threads),
        "ours, bf16": _Ours(train, first, "bf16", len(batches[0]), setting.threads),
    }
    sage = peers.Sage(FANOUTS, len(batches[0]), HIDDEN, DROPOUT, RATE)
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
    floors = {kind: ours.flop / _product_rate(dtype) for kind, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))}
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
    case = f"SAGE 3 x {HIDDEN}, fanout {','.join(map(str, FANOUTS))}, {setting.threads} threads"
    rows = []
    for kind, name in (("fp32", "ours"), ("bf16", "ours, bf16")):
        metric = f"step, {flop / 1e9:.1f} GFLOP of products"
        rows.append(Row("train", f"{case}, {kind}", metric, "s", per_step[name], others, floors[kind]))
    for part in _PARTS:
        theirs = {name: p[part] for name, p in parts.items() if name != "ours" and part in p}
        if part in parts["ours"] or theirs:
            rows.append(Row("train", f"{case}, part: {part}", part, "s", parts["ours"].get(part, 0.0), theirs))
    better = {name: a for name, a in accuracy.items() if name != "ours"}
    rows.append(Row("train", f"{case}, after {steps} steps", "test accuracy", "share", accuracy["ours"], better))
    return rows


class _Ours:
    """Our trainer, an epoch at a time."""

    def __init__(self, data: Dataset, first: GNN, precision: Literal["fp32", "bf16"], batch: int, threads: int) -> None:
        options = NodeOptions(
            hidden=HIDDEN,
            dropout=DROPOUT,
            lr=RATE,
            fanout=FANOUTS,
            batch_size=batch,
            epochs=10**6,
            validate="none",
            precision=precision,
            threads=threads,
        )
        self.model = GNN(data.num_features, HIDDEN, data.num_classes, layers=len(FANOUTS), dropout=DROPOUT)
        self.model.load_state_dict(first.state_dict())
        self.seen = Seen()
        self.trainer = Trainer(NodeRecipe(data, self.model, options), options, None, self.seen)
        self.data = data

    def epoch(self) -> None:
        self.trainer.epoch()

    def parts(self) -> dict[str, float]:
        return {part: statistics.median(t.get(part, 0.0) for t in self.seen.times[1:]) for part in _PARTS}

    def weights(self) -> dict[str, torch.Tensor]:
        return {name.removeprefix("layers.").replace(".conv.", "."): w for name, w in self.model.state_dict().items()}

    @property
    def flop(self) -> float:
        return step_flop(self.data, self.seen.nodes)


class Seen(Watcher):
    """What the trainer says of its epochs."""

    def __init__(self) -> None:
        self.times: list[dict[str, float]] = []
        self.nodes: list[float] = []
        self.stages_seen: list[dict[str, Any]] = []

    def epoch(self, facts: dict[str, object]) -> None:
        self.times.append(facts["time"])  # type: ignore[arg-type]
        self.nodes = facts["sampled"]["nodes"]  # type: ignore[index]
        self.stages_seen = facts["stages"]  # type: ignore[assignment]


def step_flop(data: Dataset, nodes: list[float]) -> float:
    """Of the matrix products of a step: each layer's, forward, for the weights and (but in the first) for its input."""
    widths = [data.num_features, *[HIDDEN] * (len(FANOUTS) - 1), data.num_classes]
    found = [sum(nodes[: depth + 1]) for depth in range(len(FANOUTS))][::-1]  # targets of each layer
    total = 0.0
    for i, rows in enumerate(found):
        total += (2 if i == 0 else 3) * 2 * 2 * rows * widths[i] * widths[i + 1]
    return total


def _product_rate(dtype: torch.dtype) -> float:
    """Operations per second of the product of 60,000 x 256 and 256 x 256."""
    a, b = torch.randn(60_000, 256).to(dtype), torch.randn(256, 256).to(dtype)
    out = torch.empty(60_000, 256, dtype=dtype)
    times = []
    for _ in range(9):
        begin = perf_counter()
        torch.mm(a, b, out=out)
        times.append(perf_counter() - begin)
    return 2 * 60_000 * 256 * 256 / statistics.median(times)


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
    """Of the trained weights in our model over all neighbors, on (at most) 20,000 test nodes: the same judge for everybody."""
    like.load_state_dict({_our_name(name): value for name, value in training.weights().items()})
    nodes = data.splits["test"][:20_000]
    assert data.y is not None
    return float((infer(like, data, nodes).argmax(dim=1) == data.y[nodes]).float().mean())


def _our_name(name: str) -> str:
    number, _, rest = name.partition(".")
    return f"layers.{number}.conv.{rest}"
