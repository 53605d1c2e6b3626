"""Seconds to sum the rows of all neighbours, over the whole graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from headrace import _native
from headrace.bench import peers
from headrace.bench.measure import Row, time_in_turn, time_row
from headrace.bench.setting import Setting, resident
from headrace.graph import Dataset, Graph
from headrace.store import BufferPool

WIDTH = 64
_SCATTER_EDGES = 30_000_000  # scatter builds the messages: beyond this it takes minutes


def run(setting: Setting) -> list[Row]:
    """fp32 and bf16 rows of 64, our kernel into a warm output; peers as they come."""
    data = setting.dataset()
    graph = data.graph
    x32 = resident(torch.randn(data.num_nodes, WIDTH, generator=torch.Generator().manual_seed(0)))
    x16 = resident(x32.bfloat16())
    others: dict[str, Callable[[], object]] = _torch(data, x32) if setting.wants("torch") else {}
    if setting.wants("dgl") and peers.has_dgl():
        import dgl

        dgl_graph = peers.dgl_graph(data)
        others["DGL copy_u_sum (fp32)"] = lambda: dgl.ops.copy_u_sum(dgl_graph, x32)
    rows = []
    for x in (x32, x16):
        for threads in sorted({1, setting.threads}):
            setting.progress(f"aggregating {x.dtype} with {threads} thread(s)")
            rows.append(_row(graph, x, others, threads, setting.repeats))
    return rows


def _row(graph: Graph, x: Tensor, others: dict[str, Callable[[], object]], threads: int, repeats: int) -> Row:
    pool = BufferPool()
    out, bare = pool.empty(x.shape, x.dtype), pool.empty(x.shape, x.dtype)
    narrow = graph.indices.to(torch.int32)
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: _sum(x, graph.indptr, graph.indices, out, threads),
        "limit": lambda: _native.bare_sum(x, graph.indptr, narrow, bare, threads),
        **others,
    }
    torch.set_num_threads(threads)
    runs["ours"]()
    runs["limit"]()
    _check(out, [bare, *(other() for other in others.values())])
    seconds = time_in_turn(runs, repeats=repeats, warmup=0)
    case = f"d={WIDTH} {str(x.dtype).removeprefix('torch.')}, {threads} thread{'s' * (threads > 1)}"
    return time_row("aggregate", case, "sum over all neighbours", seconds)


def _sum(x: Tensor, indptr: Tensor, indices: Tensor, out: Tensor, threads: int) -> None:
    _native.aggregate(x, indptr, indices, out, "sum", ids=None, weight=None, position=None, scale=None, where=None, threads=threads)


def _torch(data: Dataset, x: Tensor) -> dict[str, Callable[[], object]]:
    graph, n = data.graph, data.num_nodes
    ones = torch.ones(graph.num_edges)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        wide = torch.sparse_csr_tensor(graph.indptr, graph.indices.long(), ones, (n, n), check_invariants=False)
    runs: dict[str, Callable[[], object]] = {
        "torch.sparse.mm reduce=sum (fp32)": lambda: torch.sparse.mm(wide, x, reduce="sum"),
        "torch.sparse CSR @ (fp32)": lambda: wide @ x,
    }
    if graph.num_edges <= _SCATTER_EDGES:
        rows = torch.repeat_interleave(torch.arange(n), graph.degrees())
        columns = graph.indices.long()
        runs["torch index_add (fp32)"] = lambda: torch.zeros(n, WIDTH).index_add_(0, rows, x[columns])
    return runs


def _check(out: Tensor, others: list[object]) -> None:
    """Sums of one graph in several orders: equal up to the rounding of their type."""
    tolerance = 1e-4 if out.dtype == torch.float32 else 2e-2
    for other in others:
        assert isinstance(other, Tensor)
        difference = (out.float() - other.float()).norm() / other.float().norm()
        if not difference < tolerance:
            raise RuntimeError(f"the sums differ by {float(difference):.2g}: nothing is timed")
