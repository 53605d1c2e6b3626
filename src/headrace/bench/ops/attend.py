"""Seconds and memory of a layer of attention over a whole graph, forward and backward: GAT and GATv2.

The limit on a CPU is a bare sum of the neighbors' rows for each time that they must be read. On a GPU it is of bytes: with E edges
and rows of 64 numbers of s bytes, 64 E s are read forward, as many for the gradients of rows and as many for those of columns
(GATv2: twice), and each time E ids of 4 bytes; nodes' own rows come on top. They are divided by what a copy within the GPU reads
and writes. Caches give some of them back where neighbors are close to each other. Products with the weights are in neither.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace import _native
from headrace._memory import peak_memory, resident_memory
from headrace.bench import peers
from headrace.bench.measure import Row, copy_rate, needs_gpu, seconds_of, time_in_turn, time_row
from headrace.bench.setting import Setting
from headrace.graph import Graph
from headrace.nn import GATConv

WIDTH = 64  # of the features, and of all heads together
_EDGES = {"cpu": 4_000_000, "cuda": 20_000_000}  # PyG holds several numbers per edge and channel: about 6 and 40 GB


@dataclass(frozen=True)
class Case:
    """A kind of attention, and its heads."""

    v2: bool
    heads: int

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.heads} x {WIDTH // self.heads}"

    @property
    def kind(self) -> str:
        return "GATv2Conv" if self.v2 else "GATConv"

    @property
    def peer_name(self) -> str:
        return f"PyG {self.kind}"

    @property
    def passes(self) -> int:
        """How often the rows of all neighbors are read: forward, for the gradients of rows, and for those of columns, where GATv2
        reads both the gradients and the targets."""
        return 4 if self.v2 else 3

    @property
    def held(self) -> int:
        """How many rows of a node a step holds at least: products, output, and the gradients of the products and the features."""
        return 6 if self.v2 else 4

    def ours(self) -> nn.Module:
        return GATConv(WIDTH, WIDTH // self.heads, heads=self.heads, v2=self.v2)

    def peer(self, like: nn.Module) -> nn.Module:
        """PyG's layer with the same parameters."""
        from torch_geometric import nn as pyg

        layer: nn.Module = getattr(pyg, self.kind)(WIDTH, WIDTH // self.heads, heads=self.heads)
        layer.load_state_dict(like.state_dict())
        return layer


_CASES = tuple(Case(v2, heads) for v2 in (False, True) for heads in (4, 1))


def on_cpu(setting: Setting) -> list[Row]:
    """fp32."""
    graph = first_rows(setting.dataset().graph, _EDGES["cpu"])
    x = torch.randn(graph.num_nodes, WIDTH, generator=torch.Generator().manual_seed(0))
    torch.set_num_threads(setting.threads)
    compare = setting.wants("pyg") and peers.has_pyg()
    edges = graph.edge_index() if compare else None
    graph.reverse()
    bare, narrow = torch.empty_like(x), graph.indices.to(torch.int32)
    rows = []
    for case in _CASES:
        setting.progress(f"{case.name}, {graph.num_edges} edges")
        torch.manual_seed(0)
        layer = case.ours()
        runs: dict[str, Callable[[], object]] = {"ours": stepper(layer, x, graph)}
        if edges is not None:
            runs[case.peer_name] = stepper(case.peer(layer), x, edges)
            check(*(run() for run in runs.values()))
        runs["limit"] = lambda: _native.bare_sum(x, graph.indptr, narrow, bare, setting.threads)
        seconds = time_in_turn(runs, repeats=setting.repeats)
        seconds["limit"] *= case.passes
        rows.append(time_row(f"{case.name}, {setting.threads_named}", "forward and backward", seconds))
        if case.heads > 1:  # the heads change little of it
            rows.append(memory_row(case, graph.num_nodes, _resident(setting, graph, case, compare)))
    return rows


def first_rows(graph: Graph, count: int) -> Graph:
    """A graph of the first nodes with about so many edges: their degrees stay, and sources beyond them are folded back."""
    if graph.num_edges <= count:
        return graph
    rows = int(torch.searchsorted(graph.indptr, count))
    return Graph(graph.indptr[: rows + 1].clone(), graph.indices[: int(graph.indptr[rows])] % rows)


def stepper(layer: nn.Module, x: Tensor, where: Any) -> Callable[[], tuple[Tensor, Tensor]]:
    """A training step of the layer alone: its rows, and the gradient of x."""
    x = x.detach().requires_grad_()

    def step() -> tuple[Tensor, Tensor]:
        out = layer(x, where)
        out.backward(out.detach())
        gradient, x.grad = x.grad, None
        layer.zero_grad()
        assert gradient is not None
        return out.detach(), gradient

    return step


def check(ours: Any, theirs: Any, *, tolerance: float = 1e-4) -> None:
    """Sums of one graph in two orders: equal up to rounding."""
    for name, value, expected in zip(("rows", "gradients"), ours, theirs, strict=True):
        difference = float((value - expected).norm() / expected.norm())
        if not difference < tolerance:
            raise RuntimeError(f"the {name} of attention differ by {difference:.2g}: nothing is timed")


def memory_row(case: Case, nodes: int, peak: dict[str, float]) -> Row:
    """Bytes that a step adds at its highest."""
    rest = {name: size / 1e6 for name, size in peak.items()}
    return Row(case.name, "peak memory of a step", "MB", rest.pop("ours"), rest, 4 * nodes * WIDTH * case.held / 1e6)


def _resident(setting: Setting, graph: Graph, case: Case, compare: bool) -> dict[str, float]:
    """Bytes that a step adds to a process of its own at its highest."""
    peak = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.pt"
        torch.save((graph.indptr, graph.indices), path)
        for name, peer in {"ours": False, case.peer_name: True}.items():
            if peer and not compare:
                continue
            what = json.dumps({"path": str(path), "case": [case.v2, case.heads], "peer": peer, "threads": setting.threads})
            done = subprocess.run([sys.executable, "-m", __name__, what], capture_output=True, text=True, check=True)
            peak[name] = max(float(done.stdout), 1.0)
    return peak


def _measure(path: str, case: list[Any], peer: bool, threads: int) -> int:
    """In the process of its own: how far a step raises the resident memory."""
    torch.set_num_threads(threads)
    kind = Case(*case)
    small, graph = Graph.from_edges([0, 1], [1, 0]), Graph(*torch.load(path, weights_only=True))
    layer = kind.peer(kind.ours()) if peer else kind.ours()
    where = [small.edge_index(), graph.edge_index()] if peer else [small, graph]
    if not peer:
        graph.reverse()
    stepper(layer, torch.ones(2, WIDTH), where[0])()  # threads and libraries are there from here on
    step = stepper(layer, torch.ones(graph.num_nodes, WIDTH), where[1])
    Path("/proc/self/clear_refs").write_text("5")  # forgets the highest so far
    before = resident_memory()
    step()
    return peak_memory() - before


def on_cuda(setting: Setting) -> list[Row]:
    """fp32 and bf16, 4 heads of 16, beside PyG in fp32 over the first 20 million edges; then ours over all."""
    device = needs_gpu()
    whole = setting.dataset().graph
    rate = 2 * copy_rate(device, device, repeats=setting.repeats)
    few = first_rows(whole, _EDGES["cuda"])
    compare = setting.wants("pyg") and peers.has_pyg()
    rows = []
    for part in (few,) if few is whole else (few, whole):
        edges = part.edge_index().to(device) if compare and part is few else None
        graph = part.to(device)
        graph.reverse()
        x = torch.randn(graph.num_nodes, WIDTH, generator=torch.Generator().manual_seed(0)).to(device)
        for case in (case for case in _CASES if case.heads > 1):
            setting.progress(f"{case.name}, {graph.num_edges} edges")
            rows += _gpu_rows(case, graph, edges, x, rate, setting.repeats)
    return rows


def _gpu_rows(case: Case, graph: Graph, edges: Tensor | None, x: Tensor, rate: float, repeats: int) -> list[Row]:
    torch.manual_seed(0)
    layer, short = (case.ours().to(x.device) for _ in range(2))
    short.load_state_dict(layer.state_dict())
    ours = stepper(layer, x, graph)
    runs: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {"ours": ours}
    if edges is not None:
        runs[f"{case.peer_name} (fp32)"] = stepper(case.peer(layer).to(x.device), x, edges)
        check(*(run() for run in runs.values()))
    of_bf16 = stepper(short.bfloat16(), x.bfloat16(), graph)
    check([value.float() for value in of_bf16()], ours(), tolerance=5e-2)
    seconds, peak = {}, {}
    for name, step in runs.items():
        seconds[name] = seconds_of(step, x.device, repeats=repeats, warmup=1)
        peak[name] = _peak(step)
    rows = [memory_row(case, graph.num_nodes, peak)]
    for kind, step, size in (("fp32", ours, 4), ("bf16", of_bf16, 2)):
        own = seconds["ours"] if step is ours else seconds_of(step, x.device, repeats=repeats, warmup=1)
        read = case.passes * graph.num_edges * WIDTH * size + 3 * 4 * graph.num_edges + case.held * x.numel() * size
        name = f"{case.name} {kind}, {graph.num_edges / 1e6:.0f} M edges"
        rows.append(time_row(name, "forward and backward", seconds | {"ours": own, "limit": read / rate}))
    return rows


def _peak(step: Callable[[], object]) -> float:
    """Bytes that a step adds at its highest."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    return float(torch.cuda.max_memory_allocated() - before)


if __name__ == "__main__":
    print(_measure(**json.loads(sys.argv[1])))
