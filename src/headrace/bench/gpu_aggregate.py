"""Seconds to sum the rows of all neighbors on a GPU: the dataset's graph, ten shapes, and communities in and out of order."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from headrace.bench.gpu import copy_rate, needs_gpu, seconds_of
from headrace.bench.measure import Row
from headrace.bench.setting import Setting
from headrace.bench.shapes import Shape, communities, shapes
from headrace.graph import Graph
from headrace.graph.reorder import rabbit
from headrace.kernels import Launch, Prepared, aggregate, prepare

WIDTH = 64  # of the shapes' rows
_PEER = "cuSPARSE (torch.sparse CSR @)"


def run(setting: Setting) -> list[Row]:
    """The limit is a read of one row per entry at the rate of a copy, which counts what it reads and what it writes."""
    device = needs_gpu()
    rate = 2 * copy_rate(device, repeats=setting.repeats)
    graph = setting.dataset().graph
    there = Shape(graph.indptr.to(device), graph.indices.to(device))
    rows: list[Row] = []
    for width in (100, 256):
        for dtype in (torch.float32, torch.bfloat16):
            setting.progress(f"aggregating {dtype} rows of {width}")
            rows += _whole_graph(setting, there, width, dtype, rate)
    del there
    for name, make in shapes(device).items():
        rows.append(_one_shape(setting, name, make(), rate))
    return [*rows, *_ordered(setting, device, rate)]


class Case:
    """Rows of x over a graph, with the sum by cuSPARSE, which ours must equal before anything is timed."""

    def __init__(self, shape: Shape, width: int, dtype: torch.dtype, repeats: int) -> None:
        self.shape, self.repeats = shape, repeats
        nodes, entries = len(shape.indptr) - 1, len(shape.indices)
        generator = torch.Generator(shape.indptr.device).manual_seed(0)
        self.x = torch.randn(nodes, width, device=shape.indptr.device, generator=generator).to(dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that such tensors are in beta
            ones = torch.ones(entries, dtype=dtype, device=self.x.device)
            self._csr = torch.sparse_csr_tensor(shape.indptr.int(), shape.indices, ones, (nodes, nodes))
            self._sum = self._csr @ self.x
        size = self.x.element_size()
        self.bytes = 4 * entries + 8 * nodes + nodes * width * size + entries * width * size

    def ours(self, prepared: Prepared) -> float:
        return self.checked(lambda: aggregate(self.x, self.shape.indptr, self.shape.indices, prepared=prepared))

    def cusparse(self) -> float:
        return seconds_of(lambda: self._csr @ self.x, repeats=self.repeats)

    def checked(self, work: Callable[[], Tensor]) -> float:
        difference = float((work().float() - self._sum.float()).norm() / self._sum.float().norm())
        if not difference < (1e-4 if self.x.dtype == torch.float32 else 2e-2):
            raise RuntimeError(f"the sums differ by {difference:.2g}: nothing is timed")
        return seconds_of(work, repeats=self.repeats)

    def prepared(self, launch: Launch | None = None) -> Prepared:
        return prepare(self.shape, launch, width=self.x.shape[1], dtype=self.x.dtype)


def _whole_graph(setting: Setting, shape: Shape, width: int, dtype: torch.dtype, rate: float) -> list[Row]:
    case = Case(shape, width, dtype, setting.repeats)
    chosen = case.prepared()
    ours, peers, limit = case.ours(chosen), {_PEER: case.cusparse()}, case.bytes / rate
    setting.progress(f"chosen: {chosen.launch}")
    messages = len(shape.indices) * width * dtype.itemsize
    if dtype == torch.float32 and messages * 1.3 < torch.cuda.mem_get_info(case.x.device)[0]:
        owner = torch.repeat_interleave(torch.arange(len(case.x), device=case.x.device), shape.indptr.diff())
        columns = shape.indices.long()
        peers["gather and index_add"] = seconds_of(
            lambda: torch.zeros_like(case.x).index_add_(0, owner, case.x[columns]), repeats=min(setting.repeats, 3), warmup=1
        )
    name = f"whole graph, {_name(dtype)} rows of {width}"
    return [
        Row("gpu-aggregate", name, "sum over all neighbors", "s", ours, peers, limit),
        Row("gpu-aggregate", name, "of the bound where every entry reads its row", "share", limit / ours),
    ]


def _one_shape(setting: Setting, name: str, shape: Shape, rate: float) -> Row:
    """The router's choice; what the other variants would have taken is told on the way."""
    case = Case(shape, WIDTH, torch.float32, setting.repeats)
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
    told = [f"chosen {_brief(chosen.launch)} {ours * 1e3:.3f} ms", f"cuSPARSE {peer * 1e3:.3f}"]
    told += [f"{_brief(launch)} {case.ours(case.prepared(launch)) * 1e3:.3f}" for launch in others if launch != chosen.launch]
    setting.progress(f"{name}: {', '.join(told)}")
    return Row(
        "gpu-aggregate", f"{name}, fp32 rows of {WIDTH}", "sum over all neighbors", "s", ours, {_PEER: peer}, case.bytes / rate
    )


def _ordered(setting: Setting, device: torch.device, rate: float) -> list[Row]:
    """Communities whose ids say nothing, and the same in the order that is found for them."""
    setting.progress("reordering a graph of communities")
    plain = communities(400_000, 32, 100, torch.Generator(device).manual_seed(0))
    graph = Graph(plain.indptr.cpu(), plain.indices.cpu())
    graph = graph.reordered(torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0)))
    found = graph.reordered(rabbit(graph, threads=setting.threads))
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        seconds = []
        for each in (graph, found):
            case = Case(Shape(each.indptr.to(device), each.indices.to(device)), 256, dtype, setting.repeats)
            chosen = case.prepared()
            seconds.append(case.ours(chosen))
            setting.progress(f"{chosen.launch}: {seconds[-1] * 1e3:.3f} ms, cuSPARSE {case.cusparse() * 1e3:.3f} ms")
        name = f"communities of 100, shuffled and reordered, {_name(dtype)} rows of 256"
        rows.append(
            Row("gpu-aggregate", name, "sum over all neighbors", "s", seconds[1], {"before": seconds[0]}, case.bytes / rate)
        )
    return rows


def _name(dtype: torch.dtype) -> str:
    return {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]


def _brief(launch: Launch) -> str:
    return f"{launch.variant} e{launch.entries} c{launch.columns} r{launch.rows} s{launch.stages} w{launch.warps}"
