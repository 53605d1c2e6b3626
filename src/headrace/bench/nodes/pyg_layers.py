"""Seconds of PyG's layers and models, forward and backward, as PyG runs them and after `headrace.pyg.accelerate`."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.bench import peers
from headrace.bench.measure import CPU, Row, copy_rate, needs_gpu, product_rate, time_in_turn, wait_for
from headrace.bench.setting import BATCH, Setting, check_trainable, features_of, threads_of
from headrace.graph import Dataset
from headrace.loader import NeighborLoader
from headrace.store import kept_memory
from headrace.train.options import option

_WIDTH, _HEADS, _RELATIONS, _FANOUTS = 64, 4, 8, [10, 5]
_STEPS = 3  # per timing of a model: the first touches memory that the others find again
_SMALL = ((30, 64), (300, 1200), (3000, 15000))  # nodes and edges of graphs whose time is mostly that of Python


@dataclass(frozen=True)
class PygSetting(Setting):
    """Options of the benchmark of PyG's layers."""

    scale: float = option(0.01, "its size, 1 being that of the published one")
    only: tuple[str, ...] = option((), "layers and models to measure, by name (SAGEConv, GAT step); all by default")


@dataclass(frozen=True)
class _Edges:
    """What the layers are called with."""

    name: str
    x: Tensor  # [nodes, _WIDTH]
    edge_index: Tensor
    inner: int = 1  # calls per timing

    def beside(self, name: str) -> list[Tensor]:
        count = self.edge_index.shape[1]
        numbers = torch.arange(count, device=self.x.device)
        if name == "GINEConv":
            return [self.x.detach()[numbers % len(self.x)]]
        return [numbers % _RELATIONS] if name == "RGCNConv" else []


def run(setting: PygSetting) -> list[Row]:
    """A row per layer and shape, then one per model and sampled step. The limit counts bytes of the sums at the rate of a copy,
    every neighbor's row read anew, and the products of a layer's linear maps; of a step, the products of its forward pass alone."""
    if not peers.has_pyg():
        raise ValueError("this benchmark compares with PyG, which is not installed: pip install torch-geometric")
    device = CPU if setting.device == "cpu" else needs_gpu()
    data = setting.dataset()
    check_trainable(data)
    rows: list[Row] = []
    with threads_of(setting.threads):
        bandwidth, products = 2 * copy_rate(device, device, repeats=3), product_rate(torch.float32, device)
        for edges in _shapes(setting, data, device):
            for name, make in _layers().items():
                if not setting.only or name in setting.only:
                    rows.append(_layer_row(setting, name, make(), edges, bandwidth, products))
        for name, model in _models(data).items():
            if not setting.only or name in setting.only:
                rows += _step_rows(setting, data, name, model, device, products)
    return rows


def _layers() -> dict[str, Callable[[], nn.Module]]:
    pyg: Any = import_module("torch_geometric.nn")

    wide, one = _WIDTH, _WIDTH // _HEADS
    return {
        "SAGEConv": lambda: pyg.SAGEConv(wide, wide),
        "SAGEConv max": lambda: pyg.SAGEConv(wide, wide, aggr="max"),
        "GCNConv": lambda: pyg.GCNConv(wide, wide),
        "GINConv": lambda: pyg.GINConv(_network()),
        "GINEConv": lambda: pyg.GINEConv(_network()),
        "GATConv": lambda: pyg.GATConv(wide, one, heads=_HEADS),
        "GATv2Conv": lambda: pyg.GATv2Conv(wide, one, heads=_HEADS),
        "TransformerConv": lambda: pyg.TransformerConv(wide, one, heads=_HEADS),
        "RGCNConv": lambda: pyg.RGCNConv(wide, wide, _RELATIONS),
        "GraphConv": lambda: pyg.GraphConv(wide, wide),
    }


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH))


def _models(data: Dataset) -> dict[str, nn.Module]:
    pyg: Any = import_module("torch_geometric.nn")

    sizes, kinds = (features_of(data).shape[1], 256, 3, data.num_classes), {"GraphSAGE": {}, "GCN": {}, "GAT": {"heads": _HEADS}}
    return {f"{kind} step": getattr(pyg, kind)(*sizes, dropout=0.5, **more) for kind, more in kinds.items()}


def _shapes(setting: PygSetting, data: Dataset, device: torch.device) -> list[_Edges]:
    generator = torch.Generator().manual_seed(0)
    shapes = []
    for nodes, count in _SMALL:
        edge_index = torch.randint(0, nodes, (2, count), generator=generator)
        x = torch.randn(nodes, _WIDTH, generator=generator)
        shapes.append(_Edges(f"{nodes} nodes, {count} edges", x.to(device), edge_index.to(device), inner=max(15000 // count, 1)))
    batch = _batch(setting, data, _FANOUTS, 512)
    x = torch.randn(batch.num_nodes, _WIDTH, generator=generator)
    name = f"sampled batch, {batch.num_nodes} nodes, {batch.edge_index.shape[1]} edges"
    shapes.append(_Edges(name, x.to(device), batch.edge_index.to(device)))
    x = torch.randn(data.num_nodes, _WIDTH, generator=generator)
    name = f"whole graph, {data.num_nodes} nodes, {data.num_edges} edges"
    return [*shapes, _Edges(name, x.to(device), data.graph.edge_index().to(device))]


def _batch(setting: Setting, data: Dataset, fanouts: list[int], size: int) -> Any:
    seeds = setting.seed_batches(data, 1, size=size)[0]
    return next(iter(NeighborLoader(peers.pyg_data(data), fanouts, input_nodes=seeds, batch_size=len(seeds))))


def _layer_row(setting: Setting, name: str, conv: Any, edges: _Edges, bandwidth: float, products: float) -> Row:
    from headrace.pyg import accelerate

    setting.progress(f"{name}, {edges.name}")
    theirs = conv.to(edges.x.device)
    ours = copy.deepcopy(theirs)
    accelerate(ours)
    x, beside = edges.x.requires_grad_(), edges.beside(name)

    def step(layer: Any) -> Tensor:
        for _ in range(edges.inner):
            layer.zero_grad(set_to_none=True)
            x.grad = None
            out: Tensor = layer(x, edges.edge_index, *beside)
            out.sum().backward()  # type: ignore[no-untyped-call]
        wait_for(x.device)
        return out.detach()

    results = []
    for layer in (theirs, ours):
        out = step(layer)
        assert x.grad is not None
        results.append([out, x.grad, *(p.grad for p in layer.parameters())])
    _check(name, *results)
    seconds = time_in_turn({"ours": lambda: step(ours), "PyG": lambda: step(theirs)}, repeats=setting.repeats)
    count, nodes = edges.edge_index.shape[1], len(x)
    moved = 2 * (4 * count + 4 * _WIDTH * (count + nodes))  # both ways
    flop = 6 * nodes * sum(p.numel() for p in layer.parameters() if p.dim() == 2)
    limit = moved / bandwidth + flop / products
    figures = {who: total / edges.inner for who, total in seconds.items()}
    return Row(
        f"{name}, {edges.name}, {setting.threads_named}",
        "forward and backward",
        "s",
        figures["ours"],
        {"PyG": figures["PyG"]},
        limit,
    )


def _step_rows(setting: PygSetting, data: Dataset, name: str, model: Any, device: torch.device, products: float) -> list[Row]:
    """Training steps on one sampled batch: ours with `trim`, whole and with `trim_to_layer`, PyG's whole and with `trim_to_layer`.

    A step is what PyG's examples write: forward, loss, backward, update. The batch is our loader's for all, so no sampling counts;
    ours keeps freed memory, as our loader has it while batches are read.
    """
    from headrace.graph.topology.edge_rows import carried, carry
    from headrace.pyg import accelerate

    batch = _batch(setting, data, [15, 10, 5], BATCH)
    kept = carried(batch.edge_index)
    batch = batch.to(device)
    if kept is not None and device != CPU:  # as a loader on the device leaves it
        kept = dataclasses.replace(kept, indptr=kept.indptr.to(device), indices=kept.indices.to(device))
    sizes = {"num_sampled_nodes_per_hop": batch.num_sampled_nodes, "num_sampled_edges_per_hop": batch.num_sampled_edges}

    def passes(model: Any, trimmed: bool) -> Tensor:
        if kept is not None:  # as if the batch had just come: nothing is known of it but its rows
            carry(batch.edge_index, dataclasses.replace(kept, _derived={}))
        model.zero_grad(set_to_none=True)
        out = model(batch.x, batch.edge_index, **(sizes if trimmed else {}))[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size].long())
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def train(model: Any, optimizer: Any, trimmed: bool, keeps: bool) -> None:
        with kept_memory() if keeps else nullcontext():
            for _ in range(_STEPS):
                passes(model, trimmed)
                optimizer.step()
            wait_for(device)

    model = model.to(device).eval()  # dropout comes when the results are known to agree
    with _flop_counted(model) as flop:
        passes(model, trimmed=False)
    results: dict[str, list[Any]] = {}
    runs: dict[str, Callable[[], object]] = {}
    for who in ("PyG", "PyG, trim_to_layer", "ours", "ours, trim_to_layer", "ours, trim=True"):
        setting.progress(f"{name}: {who}")
        copied, trimmed = copy.deepcopy(model), who.endswith("trim_to_layer")
        if who.startswith("ours"):
            accelerate(copied, trim=who.endswith("trim=True"))
        results[who] = [passes(copied, trimmed), *(p.grad for p in copied.parameters())]
        optimizer = torch.optim.Adam(copied.parameters(), 1e-3)
        runs[who] = partial(train, copied.train(), optimizer, trimmed, who.startswith("ours"))
    for how in (", trim=True", "", ", trim_to_layer"):  # which PyG's norms of GCN notice
        _check(f"{name}{how}", results["PyG, trim_to_layer" if how == ", trim_to_layer" else "PyG"], results[f"ours{how}"])
    setting.progress(f"{name}: steps in turn")
    seconds = {who: total / _STEPS for who, total in time_in_turn(runs, repeats=setting.repeats).items()}
    case = f"{name}, {batch.num_nodes} nodes, {batch.edge_index.shape[1]} edges"
    peers_of = {who: seconds[who] for who in ("PyG", "PyG, trim_to_layer")}
    limit = sum(flop) / products
    return [
        Row(f"{case}{how}, {setting.threads_named}", "training step", "s", seconds[f"ours{how}"], peers_of, limit)
        for how in (", trim=True", "", ", trim_to_layer")
    ]


@contextmanager
def _flop_counted(model: nn.Module) -> Iterator[list[int]]:
    """Of every product with a matrix of weights in a forward pass."""
    flop: list[int] = []

    def count(module: Any, inputs: Any, out: Tensor) -> None:
        flop.append(2 * out.numel() * module.weight.shape[1])

    linear = [module for module in model.modules() if type(module).__name__ == "Linear"]
    hooks = [module.register_forward_hook(count) for module in linear]
    try:
        yield flop
    finally:
        for hook in hooks:
            hook.remove()


def _check(name: str, theirs: list[Any], ours: list[Any]) -> None:
    """Refuse to time what does not agree. A gradient that is zero but for rounding is compared with the size of the others."""
    largest = max(float(expected.abs().max()) for expected in theirs if expected is not None)
    for expected, actual in zip(theirs, ours, strict=True):
        if expected is None:
            continue
        slack = 1e-3 * float(expected.abs().max()) + 1e-6 * largest
        if not torch.allclose(actual, expected, rtol=1e-3, atol=slack):
            raise ValueError(f"{name} and its accelerated form disagree by {float((actual - expected).abs().max()):.3g}")
