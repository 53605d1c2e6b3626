"""Bytes of sampled rows gathered per second into GPU memory: all there, part of it, or none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.bench.gpu import copy_rate, needs_gpu, seconds_of
from headrace.bench.gpu_sampling import seed_batches
from headrace.bench.measure import Row
from headrace.bench.setting import BATCH, FANOUTS, Setting
from headrace.graph import Dataset
from headrace.sample import NeighborSampler
from headrace.store import ArrayStore, Tiered, access_counts, expected_hit_rate, hot_order

SHARE = 0.2
_CASES: dict[str, dict[str, Any]] = {
    "fanout 15,10,5": {"fanouts": FANOUTS},
    "fanout 25,10": {"fanouts": (25, 10)},
    "LABOR, batch_dependency 64, fanout 15,10,5": {"fanouts": FANOUTS, "labor": True, "batch_dependency": 64},
}


def run(setting: Setting) -> list[Row]:
    """Rows of the nodes of real batches. The limit of what lies in host memory is a copy of one piece over the bus, and of what
    lies on the GPU a copy within it."""
    device = needs_gpu()
    data = setting.dataset()
    if data.x is None:
        raise ValueError("this dataset has no features to gather")
    limits = Limits(copy_rate(torch.device("cpu"), repeats=setting.repeats), copy_rate(device, repeats=setting.repeats))
    batches = Batches.sampled(setting, data, device, FANOUTS)
    rows = []
    if data.x.nbytes < torch.cuda.mem_get_info(device)[0] // 2:
        setting.progress("gathering from GPU memory")
        rows.append(_on_the_gpu(data.x.to(device), batches, limits))
    setting.progress("gathering over the bus")
    rows.append(_over_the_bus(setting, data.x, batches, limits))
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
        assert data.x is not None
        sampler = NeighborSampler(data.graph, fanouts, device=device, **how)
        seeds = seed_batches(data, BATCH, min(setting.batches, 8))
        ids = [sampler.sample(s, 0, number).nodes for number, s in enumerate(seeds)]
        out = torch.empty((max(map(len, ids)), *data.x.shape[1:]), dtype=data.x.dtype, device=device)
        return cls(data.x, ids, out, setting.repeats)

    def rate(self, gather: Callable[[Tensor, Tensor], object]) -> float:
        """Bytes per second of gather(ids, out)."""
        size = sum(map(len, self.ids)) * self.x[0].nbytes
        return size / seconds_of(lambda: [gather(i, self.out[: len(i)]) for i in self.ids], repeats=self.repeats)

    def store_rate(self, store: ArrayStore | Tiered) -> float:
        if not torch.equal(store.gather(self.ids[0], check=False).cpu(), self.x[self.ids[0].cpu().long()]):
            raise RuntimeError(f"the rows gathered from {store} are wrong: nothing is timed")
        return self.rate(lambda i, out: store.gather(i, out=out, check=False))


def _row(case: str, ours: float, peers: dict[str, float], limit: float) -> Row:
    return Row("gpu-gather", case, "rows of sampled nodes", "GB/s", ours / 1e9, {n: p / 1e9 for n, p in peers.items()}, limit / 1e9)


def _on_the_gpu(there: Tensor, batches: Batches, limits: Limits) -> Row:
    peers = {
        "index_select": batches.rate(lambda i, _: torch.index_select(there, 0, i)),
        "index_select out=": batches.rate(lambda i, out: torch.index_select(there, 0, i, out=out)),
    }
    return _row("all on the GPU", batches.store_rate(ArrayStore(there)), peers, limits.inside)


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
        setting.progress(f"{case}: gathering with {SHARE:.0%} hot by {by}")
        hits = expected_hit_rate(counts, order, SHARE)
        found = batches.store_rate(Tiered(batches.x, device=device, device_cache=SHARE, order=order))
        name = f"{SHARE:.0%} on the GPU by {by}, {case}"
        rows.append(_row(name, found, {"all in pinned memory": cold}, limits.mixed(hits)))
        rows.append(Row("gpu-gather", name, "hit rate", "share", hits, {}, None))
    return rows
