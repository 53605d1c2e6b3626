"""Seconds to sum the rows of all neighbors over a whole graph, and what the order of its nodes is worth."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace import _native
from headrace.bench import peers
from headrace.bench.measure import Row, copy_rate, needs_gpu, seconds_of, time_in_turn, time_row
from headrace.bench.ops.shapes import Shape, communities, shapes
from headrace.bench.setting import Setting, resident
from headrace.graph import Dataset, Graph, generate
from headrace.graph.reorder import rabbit
from headrace.kernels import Launch, Prepared, aggregate, prepare
from headrace.store import BufferPool
from headrace.train.options import option

WIDTH = 64
_WIDER = (100, 256)
_SCATTER_EDGES = 30_000_000  # scatter builds the messages: beyond this it takes minutes
_METRIC = "sum over all neighbors"
_CUSPARSE = "cuSPARSE (torch.sparse CSR @)"


@dataclass(frozen=True)
class AggregateSetting(Setting):
    """Options of `headrace bench aggregate`."""

    wide: bool = option(False, "on a CPU, also sum rows of 100 and 256, for which the bare loop gives no limit")


def on_cpu(setting: AggregateSetting) -> list[Row]:
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
    if setting.wide:
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
    return time_row(case, _METRIC, seconds)


def _wide_row(graph: Graph, width: int, setting: Setting) -> Row:
    """Rows too broad for the loop that gives the limit, in slices of columns where those pay, against all columns at once."""
    setting.progress(f"aggregating rows of {width}")
    x = resident(torch.randn(graph.num_nodes, width, generator=torch.Generator().manual_seed(0)))
    out, other = (BufferPool().empty(x.shape, x.dtype) for _ in range(2))
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: _sum(x, graph.indptr, graph.indices, out, setting.threads),
        "all columns at once": lambda: _sum(x, graph.indptr, graph.indices, other, setting.threads, tile=width),
    }
    for run in runs.values():
        run()
    _check(out, [other])
    seconds = time_in_turn(runs, repeats=setting.repeats, warmup=0)
    return time_row(f"d={width} float32, {setting.threads} threads", _METRIC, seconds)


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
    return time_row(case, _METRIC, {**seconds, "limit": moved / speed})


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
    wide = _sparse(graph.indptr, graph.indices.long(), torch.float32)
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


def _sparse(indptr: Tensor, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """The graph as a square matrix of ones."""
    nodes, ones = len(indptr) - 1, torch.ones(len(indices), dtype=dtype, device=indptr.device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(indptr, indices, ones, (nodes, nodes), check_invariants=False)


def on_cuda(setting: Setting) -> list[Row]:
    """The limit is a read of one row per entry at the rate of a copy, which counts what it reads and what it writes."""
    device = needs_gpu()
    rate = 2 * copy_rate(device, device, repeats=setting.repeats)
    graph = setting.dataset().graph
    shape = Shape(graph.indptr.to(device), graph.indices.to(device))
    rows: list[Row] = []
    for width in (100, 256):
        for dtype in (torch.float32, torch.bfloat16):
            setting.progress(f"aggregating {dtype} rows of {width}")
            rows += _whole_graph(setting, shape, width, dtype, rate)
    del shape
    for name, make in shapes(device).items():
        rows.append(_one_shape(setting, name, make(), rate))
    return [*rows, *_ordered(setting, device, rate)]


class _Case:
    """Rows of x over a graph on a GPU, with the sum by cuSPARSE, which ours must equal before anything is timed."""

    def __init__(self, shape: Shape, width: int, dtype: torch.dtype, repeats: int) -> None:
        self.shape, self.repeats = shape, repeats
        nodes, entries = len(shape.indptr) - 1, len(shape.indices)
        generator = torch.Generator(shape.indptr.device).manual_seed(0)
        self.x = torch.randn(nodes, width, device=shape.indptr.device, generator=generator).to(dtype)
        self._csr = _sparse(shape.indptr.int(), shape.indices, dtype)
        self._sum = self._csr @ self.x
        size = self.x.element_size()
        self.bytes = 4 * entries + 8 * nodes + nodes * width * size + entries * width * size

    def ours(self, prepared: Prepared) -> float:
        return self.checked(lambda: aggregate(self.x, self.shape.indptr, self.shape.indices, prepared=prepared))

    def cusparse(self) -> float:
        return seconds_of(lambda: self._csr @ self.x, self.x.device, repeats=self.repeats)

    def checked(self, work: Callable[[], Tensor]) -> float:
        _check(work(), [self._sum])
        return seconds_of(work, self.x.device, repeats=self.repeats)

    def prepared(self, launch: Launch | None = None) -> Prepared:
        return prepare(self.shape, launch, width=self.x.shape[1], dtype=self.x.dtype)


def _whole_graph(setting: Setting, shape: Shape, width: int, dtype: torch.dtype, rate: float) -> list[Row]:
    case = _Case(shape, width, dtype, setting.repeats)
    chosen = case.prepared()
    ours, others, limit = case.ours(chosen), {_CUSPARSE: case.cusparse()}, case.bytes / rate
    setting.progress(f"chosen: {chosen.launch}")
    messages = len(shape.indices) * width * dtype.itemsize
    if dtype == torch.float32 and messages * 1.3 < torch.cuda.mem_get_info(case.x.device)[0]:
        owner = torch.repeat_interleave(torch.arange(len(case.x), device=case.x.device), shape.indptr.diff())
        columns = shape.indices.long()
        others["gather and index_add"] = seconds_of(
            lambda: torch.zeros_like(case.x).index_add_(0, owner, case.x[columns]),
            case.x.device,
            repeats=min(setting.repeats, 3),
            warmup=1,
        )
    name = f"whole graph, {_name(dtype)} rows of {width}"
    return [
        Row(name, _METRIC, "s", ours, others, limit),
        Row(name, "of the bound where every entry reads its row", "share", limit / ours),
    ]


def _one_shape(setting: Setting, name: str, shape: Shape, rate: float) -> Row:
    """The router's choice; what the other variants would have taken is told on the way."""
    case = _Case(shape, WIDTH, torch.float32, setting.repeats)
    chosen = case.prepared()
    ours, peer = case.ours(chosen), case.cusparse()
    others = [
        Launch("row", columns=64, entries=8, warps=1, stages=3),
        Launch("row", columns=64, entries=4, warps=1, stages=1),
        Launch("row", columns=64, entries=2, rows=4, warps=1, stages=1),
        Launch("split", columns=64, entries=2, rows=4, warps=1, stages=1, group=256),
        Launch("split", columns=64, entries=8, warps=1, stages=3, group=1024),
        Launch("window", columns=64, entries=16, warps=4, stages=2),
    ]
    times = [f"chosen {_brief(chosen.launch)} {ours * 1e3:.3f} ms", f"cuSPARSE {peer * 1e3:.3f}"]
    times += [f"{_brief(launch)} {case.ours(case.prepared(launch)) * 1e3:.3f}" for launch in others if launch != chosen.launch]
    setting.progress(f"{name}: {', '.join(times)}")
    return Row(f"{name}, fp32 rows of {WIDTH}", _METRIC, "s", ours, {_CUSPARSE: peer}, case.bytes / rate)


def _ordered(setting: Setting, device: torch.device, rate: float) -> list[Row]:
    """Communities under shuffled ids, and the same graph reordered."""
    setting.progress("reordering a graph of communities")
    plain = communities(400_000, 32, 100, torch.Generator(device).manual_seed(0))
    graph = Graph(plain.indptr.cpu(), plain.indices.cpu())
    graph = graph.reordered(torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0)))
    ordered = graph.reordered(rabbit(graph, threads=setting.threads))
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        seconds = []
        for each in (graph, ordered):
            case = _Case(Shape(each.indptr.to(device), each.indices.to(device)), 256, dtype, setting.repeats)
            chosen = case.prepared()
            seconds.append(case.ours(chosen))
            setting.progress(f"{chosen.launch}: {seconds[-1] * 1e3:.3f} ms, cuSPARSE {case.cusparse() * 1e3:.3f} ms")
        name = f"communities of 100, shuffled and reordered, {_name(dtype)} rows of 256"
        rows.append(Row(name, _METRIC, "s", seconds[1], {"before": seconds[0]}, case.bytes / rate))
    return rows


def _name(dtype: torch.dtype) -> str:
    return {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]


def _brief(launch: Launch) -> str:
    return f"{launch.variant} e{launch.entries} c{launch.columns} r{launch.rows} s{launch.stages} w{launch.warps}"
