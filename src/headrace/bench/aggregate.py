"""Seconds to sum the rows of all neighbors, over the whole graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from headrace import _native
from headrace.bench import peers
from headrace.bench.measure import Row, time_in_turn, time_row
from headrace.bench.setting import Setting, resident
from headrace.graph import Dataset, Graph, generate
from headrace.store import BufferPool

WIDTH = 64
_WIDER = (100, 256)  # timed where repeats were asked for beyond the default, since the limit's loop is for rows of 64 alone
_DEFAULT_REPEATS = Setting().repeats
_SCATTER_EDGES = 30_000_000  # scatter builds the messages: beyond this it takes minutes


def run(setting: Setting) -> list[Row]:
    """fp32 and bf16 rows of 64, our kernel into a warm output; peers as they come. Then what the order of nodes is worth."""
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
    if setting.repeats > _DEFAULT_REPEATS:
        rows += [_wide_row(graph, width, setting) for width in _WIDER]
    return [*rows, _order_row(setting, min(2 * data.num_nodes, 500_000))]


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
    return time_row("aggregate", case, "sum over all neighbors", seconds)


def _wide_row(graph: Graph, width: int, setting: Setting) -> Row:
    """Rows too broad for the loop that gives the limit, in slices of columns where those pay, against all columns at once."""
    setting.progress(f"aggregating rows of {width}")
    x = resident(torch.randn(graph.num_nodes, width, generator=torch.Generator().manual_seed(0)))
    out, other = (BufferPool().empty(x.shape, x.dtype) for _ in range(2))
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: _sum(x, graph.indptr, graph.indices, out, setting.threads),
        "all columns at once": lambda: _sum(x, graph.indptr, graph.indices, other, setting.threads, tile=width),
    }
    seconds = time_in_turn(runs, repeats=setting.repeats)
    _check(out, [other])
    return time_row("aggregate", f"d={width} float32, {setting.threads} threads", "sum over all neighbors", seconds)


def _order_row(setting: Setting, nodes: int) -> Row:
    """A graph of communities in the order of these, against its ids shuffled, and the bytes that the ordered one must move.

    Those are `4 E + 8 N + N d s + (E / rho) d s` for rows that are read rho times while the cache holds them, at the speed of a
    copy from the same run.
    """
    setting.progress("aggregating over communities, in order and shuffled")
    shuffled, ordered = _communities(nodes, setting.threads)
    x = resident(torch.randn(ordered.num_nodes, WIDTH, generator=torch.Generator().manual_seed(0)))
    out, copy = (BufferPool().empty(x.shape, x.dtype) for _ in range(2))
    torch.set_num_threads(setting.threads)
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: _sum(x, ordered.indptr, ordered.indices, out, setting.threads),
        "ours, ids shuffled": lambda: _sum(x, shuffled.indptr, shuffled.indices, out, setting.threads),
        "copy": lambda: copy.copy_(x),
    }
    seconds = time_in_turn(runs, repeats=setting.repeats)
    speed = 2 * x.nbytes / seconds.pop("copy")
    rho = _reuse(ordered, _native.last_level_cache() // (WIDTH * x.element_size()))
    moved = 4 * ordered.num_edges + 8 * ordered.num_nodes + x.nbytes + ordered.num_edges / rho * WIDTH * x.element_size()
    case = f"d={WIDTH} float32, communities in order (rho {rho:.1f}), {setting.threads} threads"
    return time_row("aggregate", case, "sum over all neighbors", {**seconds, "limit": moved / speed})


def _communities(nodes: int, threads: int) -> tuple[Graph, Graph]:
    """Communities of 500 nodes whose ids carry no order, and the same graph in the order of the communities."""
    data = generate.community(nodes, 24 * nodes, classes=max(nodes // 500, 2), features=0, noise=0.0, threads=threads)
    assert data.y is not None
    place = torch.empty(data.num_nodes, dtype=torch.int32)
    place[data.y.argsort(stable=True)] = torch.arange(data.num_nodes, dtype=torch.int32)
    source, target = data.graph.edge_index()
    ordered = Graph.from_edges(place[source], place[target], data.num_nodes)
    return tuple(Graph(resident(g.indptr), resident(g.indices)) for g in (data.graph, ordered))  # type: ignore[return-value]


def _reuse(graph: Graph, room: int) -> float:
    """How often a row is read while a cache with room for `room` of them holds it: entries per different one, among so many."""
    reads = [window for window in graph.indices.split(room)[:: max(graph.num_edges // room // 16, 1)] if len(window) == room]
    return sum(map(len, reads)) / sum(len(window.unique()) for window in reads) if reads else 1.0


def _sum(x: Tensor, indptr: Tensor, indices: Tensor, out: Tensor, threads: int, tile: int | None = None) -> None:
    _native.aggregate(
        x, indptr, indices, out, "sum", ids=None, weight=None, position=None, scale=None, where=None, threads=threads, tile=tile
    )


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
