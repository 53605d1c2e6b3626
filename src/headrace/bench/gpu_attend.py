"""Seconds and memory of a layer of attention over a whole graph on a GPU, forward and backward: GAT and GATv2, 4 heads of 16.

The limit is of bytes: with E edges and rows of 64 numbers of s bytes, 64 E s are read forward, as many for the gradients of rows
and as many for those of columns (GATv2: twice), and each time E ids of 4 bytes; nodes' own rows come on top. They are divided by
what a copy within the GPU reads and writes. Caches give some of them back where neighbors are near each other.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from headrace.bench.attend import CASES, PEER, WIDTH, Case, check, first_rows, memory_row, stepper
from headrace.bench.gpu import copy_rate, needs_gpu, seconds_of
from headrace.bench.measure import Row, time_row
from headrace.bench.setting import Setting
from headrace.graph import Graph

_EDGES = 20_000_000  # PyG holds several numbers per edge and channel: with these, about 40 GB


def run(setting: Setting) -> list[Row]:
    """In fp32 and bf16, against PyG's layer in fp32 with equal weights over the first 20 million edges; and ours over all."""
    device = needs_gpu()
    whole = setting.dataset().graph
    rate = 2 * copy_rate(device, repeats=setting.repeats)
    few = first_rows(whole, _EDGES)
    compare = setting.wants("pyg") and importlib.util.find_spec("torch_geometric") is not None
    rows = []
    for here in (few,) if few is whole else (few, whole):
        edges = here.edge_index().to(device) if compare and here is few else None
        graph = here.to(device)
        graph.reverse()
        x = torch.randn(graph.num_nodes, WIDTH, generator=torch.Generator().manual_seed(0)).to(device)
        for case in (case for case in CASES if case.heads > 1):
            setting.progress(f"{case.name}, {graph.num_edges} edges")
            rows += _rows(case, graph, edges, x, rate, setting.repeats)
    return rows


def _rows(case: Case, graph: Graph, edges: Tensor | None, x: Tensor, rate: float, repeats: int) -> list[Row]:
    torch.manual_seed(0)
    layer, short = (case.ours().to(x.device) for _ in range(2))
    short.load_state_dict(layer.state_dict())
    ours = stepper(layer, x, graph)
    runs: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {"ours": ours}
    if edges is not None:
        peer = PEER.format(case.kind) + " (fp32)"
        runs[peer] = stepper(case.peer(layer).to(x.device), x, edges)
        check(*(run() for run in runs.values()))
    of_bf16 = stepper(short.bfloat16(), x.bfloat16(), graph)
    check([found.float() for found in of_bf16()], ours(), tolerance=5e-2)
    seconds, peak = {}, {}
    for name, step in runs.items():
        seconds[name] = seconds_of(step, repeats=repeats, warmup=1)
        peak[name] = _peak(step)
    rows = [memory_row("gpu-attend", case, graph.num_nodes, peak)]
    for kind, step, size in (("fp32", ours, 4), ("bf16", of_bf16, 2)):
        own = seconds["ours"] if step is ours else seconds_of(step, repeats=repeats, warmup=1)
        read = case.passes * graph.num_edges * WIDTH * size + 3 * 4 * graph.num_edges + case.held * x.numel() * size
        name = f"{case.name} {kind}, {graph.num_edges / 1e6:.0f} M edges"
        rows.append(time_row("gpu-attend", name, "forward and backward", seconds | {"ours": own, "limit": read / rate}))
    return rows


def _peak(step: Callable[[], object]) -> float:
    """Bytes that a step adds at its highest."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    return float(torch.cuda.max_memory_allocated() - before)
