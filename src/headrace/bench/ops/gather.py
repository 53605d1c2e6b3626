"""Bytes of sampled rows gathered per second: in host memory, or into GPU memory from it, from the host or from both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace.bench.measure import CPU, Row, copy_rate, needs_gpu, rate_row, seconds_of, time_in_turn
from headrace.bench.setting import BATCH, FANOUTS, Setting, features_of, resident
from headrace.graph import Dataset
from headrace.kernels import gather
from headrace.sample import NeighborSampler
from headrace.store import ArrayStore, BufferPool, Tiered, access_counts, expected_hit_rate, hot_order

_SHARE = 0.2  # of the rows on the GPU
_CASES: dict[str, dict[str, Any]] = {
    "fanout 15,10,5": {"fanouts": FANOUTS},
    "fanout 25,10": {"fanouts": (25, 10)},
    "LABOR, batch_dependency 64, fanout 15,10,5": {"fanouts": FANOUTS, "labor": True, "batch_dependency": 64},
}


def on_cpu(setting: Setting) -> list[Row]:
    """The features of sampled nodes into a warm buffer, with torch's ways beside it."""
    data = setting.dataset()
    x = features_of(data)
    sampler = NeighborSampler(data.graph, FANOUTS, threads=setting.threads)
    samples = [sampler.sample(seeds, 0, j) for j, seeds in enumerate(setting.seed_batches(data, min(setting.batches, 8)))]
    ids = [s.nodes.clone() for s in samples]
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        table = x if dtype == x.dtype else resident(x.to(dtype))
        for threads in sorted({1, setting.threads}):
            setting.progress(f"gathering {dtype} with {threads} thread(s)")
            rows.append(_host_row(table, ids, threads, setting.repeats))
    return rows


def _host_row(table: Tensor, ids: list[Tensor], threads: int, repeats: int) -> Row:
    wide = [i.long() for i in ids]
    out = BufferPool().empty((max(map(len, ids)), *table.shape[1:]), table.dtype)
    first = out[: len(ids[0])]
    gather(table, ids[0], out=first.fill_(float("nan")), threads=threads)
    if not torch.equal(first, table[wide[0]]):
        raise RuntimeError("the gathered rows are wrong: nothing is timed")
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: _each(ids, lambda i: gather(table, i, out=out[: len(i)], threads=threads)),
        "limit": lambda: _each(wide, lambda i: _native.bare_gather(table, i, out[: len(i)], threads)),
        "torch index_select out=": lambda: _each(wide, lambda i: torch.index_select(table, 0, i, out=out[: len(i)])),
        "torch index_select": lambda: _each(wide, lambda i: torch.index_select(table, 0, i)),
        "torch x[ids]": lambda: _each(wide, lambda i: table[i]),
    }
    torch.set_num_threads(threads)
    seconds = time_in_turn(runs, repeats=repeats)
    work = dict.fromkeys(runs, sum(map(len, ids)) * table[0].nbytes / 1e9)
    case = f"{str(table.dtype).removeprefix('torch.')}, {threads} thread{'s' * (threads > 1)}"
    return rate_row(case, "rows of sampled nodes", "GB/s", work, seconds)


def _each(ids: list[Tensor], run: Callable[[Tensor], object]) -> None:
    for i in ids:  # each result is dropped at once, as a training loop does
        run(i)


def on_cuda(setting: Setting) -> list[Row]:
    """Rows of the nodes of real batches. The limit of what lies in host memory is a copy of one piece over the bus, and of what
    lies on the GPU a copy within it."""
    device = needs_gpu()
    data = setting.dataset()
    x = features_of(data)
    limits = Limits(*(copy_rate(source, device, repeats=setting.repeats) for source in (CPU, device)))
    batches = Batches.sampled(setting, data, device, FANOUTS)
    rows = []
    if x.nbytes < torch.cuda.mem_get_info(device)[0] // 2:
        setting.progress("gathering from GPU memory")
        rows.append(_in_gpu_memory(x.to(device), batches, limits))
    setting.progress("gathering over the bus")
    rows.append(_over_the_bus(setting, x, batches, limits))
    for case, how in _CASES.items():
        rows += _with_hot_rows(setting, data, case, Batches.sampled(setting, data, device, **how), how["fanouts"], limits)
    return rows


@dataclass(frozen=True)
class Limits:
    """Bytes per second of plain copies."""

    bus: float
    inside: float

    def mixed(self, hits: float) -> float:
        """If a share of the bytes is on the GPU."""
        return 1 / ((1 - hits) / self.bus + hits / self.inside)


@dataclass(frozen=True)
class Batches:
    """The nodes of batches one after the other, and room for the rows of each."""

    x: Tensor
    ids: list[Tensor]
    out: Tensor
    repeats: int

    @classmethod
    def sampled(cls, setting: Setting, data: Dataset, device: torch.device, fanouts: tuple[int, ...], **how: Any) -> Batches:
        x, sampler = features_of(data), NeighborSampler(data.graph, fanouts, device=device, **how)
        seeds = setting.seed_batches(data, min(setting.batches, 8))
        ids = [sampler.sample(s, 0, number).nodes for number, s in enumerate(seeds)]
        out = torch.empty((max(map(len, ids)), *x.shape[1:]), dtype=x.dtype, device=device)
        return cls(x, ids, out, setting.repeats)

    def rate(self, gather: Callable[[Tensor, Tensor], object]) -> float:
        """Bytes per second of gather(ids, out)."""
        size = sum(map(len, self.ids)) * self.x[0].nbytes
        return size / seconds_of(lambda: [gather(i, self.out[: len(i)]) for i in self.ids], self.out.device, repeats=self.repeats)

    def store_rate(self, store: ArrayStore | Tiered) -> float:
        if not torch.equal(store.gather(self.ids[0], check=False).cpu(), self.x[self.ids[0].cpu().long()]):
            raise RuntimeError(f"the rows gathered from {store} are wrong: nothing is timed")
        return self.rate(lambda i, out: store.gather(i, out=out, check=False))


def _row(case: str, ours: float, peers: dict[str, float], limit: float) -> Row:
    return Row(case, "rows of sampled nodes", "GB/s", ours / 1e9, {n: p / 1e9 for n, p in peers.items()}, limit / 1e9)


def _in_gpu_memory(table: Tensor, batches: Batches, limits: Limits) -> Row:
    peers = {
        "index_select": batches.rate(lambda i, _: torch.index_select(table, 0, i)),
        "index_select out=": batches.rate(lambda i, out: torch.index_select(table, 0, i, out=out)),
    }
    return _row("all on the GPU", batches.store_rate(ArrayStore(table)), peers, limits.inside)


def _over_the_bus(setting: Setting, x: Tensor, batches: Batches, limits: Limits) -> Row:
    host = torch.empty(batches.out.shape, dtype=x.dtype, pin_memory=True)

    def by_torch(i: Tensor, out: Tensor) -> None:
        torch.index_select(x, 0, i.cpu().long(), out=host[: len(i)])
        out.copy_(host[: len(i)], non_blocking=True)
        torch.cuda.synchronize()

    torch.set_num_threads(setting.threads)
    peers = {f"torch on the CPU, {setting.threads} threads, and a copy": batches.rate(by_torch)}
    cold = Tiered(x, device=batches.out.device, device_cache=0)
    return _row("all in pinned memory (UVA)", batches.store_rate(cold), peers, limits.bus)


def _with_hot_rows(
    setting: Setting, data: Dataset, case: str, batches: Batches, fanouts: tuple[int, ...], limits: Limits
) -> list[Row]:
    """A fifth of the rows on the GPU, chosen in several ways. The best that any choice can do for these batches is "planned"."""
    device, graph = batches.out.device, data.graph
    cold = batches.store_rate(Tiered(batches.x, device=device, device_cache=0))
    counts = access_counts((i.cpu() for i in batches.ids), data.num_nodes)
    orders = {
        "degree": hot_order(graph, by="degree"),
        "probability": hot_order(graph, by="probability", seeds=data.splits["train"], fanouts=fanouts, batch_size=BATCH),
        "planned": hot_order(graph, by="planned", batches=(i.cpu() for i in batches.ids)),
    }
    rows = []
    for by, order in orders.items():
        setting.progress(f"{case}: gathering with {_SHARE:.0%} hot by {by}")
        hits = expected_hit_rate(counts, order, _SHARE)
        rate = batches.store_rate(Tiered(batches.x, device=device, device_cache=_SHARE, order=order))
        name = f"{_SHARE:.0%} on the GPU by {by}, {case}"
        rows.append(_row(name, rate, {"all in pinned memory": cold}, limits.mixed(hits)))
        rows.append(Row(name, "hit rate", "share", hits, {}, None))
    return rows
