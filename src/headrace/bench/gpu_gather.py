"""Bytes of sampled rows gathered per second into GPU memory: all there, part of it, or none."""

from __future__ import annotations

from collections.abc import Callable
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


def run(setting: Setting) -> list[Row]:
    """Rows of the nodes of real batches. The limit of what lies in host memory is a copy of one piece over the bus, and of what
    lies on the GPU a copy within it."""
    device = needs_gpu()
    data = setting.dataset()
    if data.x is None:
        raise ValueError("this dataset has no features to gather")
    x = data.x
    ids = _sampled(setting, data, device, FANOUTS)
    gigabytes = sum(map(len, ids)) * x[0].nbytes / 1e9
    bus = copy_rate(torch.device("cpu"), repeats=setting.repeats) / 1e9
    inside = copy_rate(device, repeats=setting.repeats) / 1e9
    out = torch.empty((max(map(len, ids)), *x.shape[1:]), dtype=x.dtype, device=device)

    def rate(gather: Callable[[Tensor], object]) -> float:
        return gigabytes / seconds_of(lambda: [gather(i) for i in ids], repeats=setting.repeats)

    def from_store(store: ArrayStore | Tiered) -> float:
        found = store.gather(ids[0], check=False)
        if not torch.equal(found.cpu(), x[ids[0].cpu().long()]):
            raise RuntimeError(f"the rows gathered from {store} are wrong: nothing is timed")
        return rate(lambda i: store.gather(i, out=out[: len(i)], check=False))

    rows = []
    if x.nbytes < torch.cuda.mem_get_info(device)[0] // 2:
        setting.progress("gathering from GPU memory")
        there = x.to(device)
        peers = {
            "index_select": rate(lambda i: torch.index_select(there, 0, i)),
            "index_select out=": rate(lambda i: torch.index_select(there, 0, i, out=out[: len(i)])),
        }
        rows.append(
            Row("gpu-gather", "all on the GPU", "rows of sampled nodes", "GB/s", from_store(ArrayStore(there)), peers, inside)
        )
        del there
    setting.progress("gathering over the bus")
    host = torch.empty((max(map(len, ids)), *x.shape[1:]), dtype=x.dtype, pin_memory=True)

    def through_host(i: Tensor) -> None:
        torch.index_select(x, 0, i.cpu().long(), out=host[: len(i)])
        out[: len(i)].copy_(host[: len(i)], non_blocking=True)
        torch.cuda.synchronize()

    cold = from_store(Tiered(x, device=device, device_cache=0))
    peers = {f"torch on the CPU, {setting.threads} threads, and a copy": rate(through_host)}
    rows.append(Row("gpu-gather", "all in pinned memory (UVA)", "rows of sampled nodes", "GB/s", cold, peers, bus))
    cases: dict[str, dict[str, Any]] = {
        f"fanout {_text(FANOUTS)}": {"fanouts": FANOUTS},
        "fanout 25,10": {"fanouts": (25, 10)},
        f"LABOR, batch_dependency 64, fanout {_text(FANOUTS)}": {"fanouts": FANOUTS, "labor": True, "batch_dependency": 64},
    }
    for case, how in cases.items():
        ids = _sampled(setting, data, device, **how)
        gigabytes = sum(map(len, ids)) * x[0].nbytes / 1e9
        rows += _with_hot_rows(setting, data, device, case, ids, how["fanouts"], from_store, (bus, inside))
    return rows


def _sampled(setting: Setting, data: Dataset, device: torch.device, fanouts: tuple[int, ...], **how: Any) -> list[Tensor]:
    """The nodes of batches one after the other."""
    sampler = NeighborSampler(data.graph, fanouts, device=device, **how)
    return [sampler.sample(s, 0, j).nodes for j, s in enumerate(seed_batches(data, BATCH, min(setting.batches, 8)))]


def _text(fanouts: tuple[int, ...]) -> str:
    return ",".join(map(str, fanouts))


def _with_hot_rows(
    setting: Setting,
    data: Dataset,
    device: torch.device,
    case: str,
    ids: list[Tensor],
    fanouts: tuple[int, ...],
    from_store: Callable[[Tiered], float],
    limits: tuple[float, float],
) -> list[Row]:
    """A fifth of the rows on the GPU, chosen in several ways; the best that any choice can do for these batches is "planned"."""
    graph, x, (bus, inside) = data.graph, data.x, limits
    assert x is not None
    cold = from_store(Tiered(x, device=device, device_cache=0))
    counts = access_counts((i.cpu() for i in ids), data.num_nodes)
    rows = []
    orders = {
        "degree": hot_order(graph, by="degree"),
        "probability": hot_order(graph, by="probability", seeds=data.splits["train"], fanouts=fanouts, batch_size=BATCH),
        "planned": hot_order(graph, by="planned", batches=(i.cpu() for i in ids)),
    }
    for by, order in orders.items():
        setting.progress(f"{case}: gathering with {SHARE:.0%} hot by {by}")
        found = from_store(Tiered(x, device=device, device_cache=SHARE, order=order))
        hits = expected_hit_rate(counts, order, SHARE)
        limit = 1 / ((1 - hits) / bus + hits / inside)
        name = f"{SHARE:.0%} on the GPU by {by}, {case}"
        rows.append(Row("gpu-gather", name, "rows of sampled nodes", "GB/s", found, {"all in pinned memory": cold}, limit))
        rows.append(Row("gpu-gather", name, "hit rate", "share", hits, {}, None))
    return rows
