"""Bytes of sampled rows gathered per second into GPU memory: all there, part of it, or none."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headrace.bench.gpu import copy_rate, needs_gpu, seconds_of
from headrace.bench.gpu_sampling import seed_batches
from headrace.bench.measure import Row
from headrace.bench.setting import BATCH, FANOUTS, Setting
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
    x, graph = data.x, data.graph
    sampler = NeighborSampler(graph, FANOUTS, device=device)
    seeds = seed_batches(data, BATCH, min(setting.batches, 8))
    ids = [sampler.sample(s, 0, j).nodes for j, s in enumerate(seeds)]
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
    counts = access_counts((i.cpu() for i in ids), data.num_nodes)
    orders = {
        "degree": hot_order(graph, by="degree"),
        "probability": hot_order(graph, by="probability", seeds=data.splits["train"], fanouts=FANOUTS, batch_size=BATCH),
        "planned": hot_order(graph, by="planned", batches=(i.cpu() for i in ids)),
    }
    for by, order in orders.items():
        setting.progress(f"gathering with {SHARE:.0%} hot by {by}")
        found = from_store(Tiered(x, device=device, device_cache=SHARE, order=order))
        hits = expected_hit_rate(counts, order, SHARE)
        limit = 1 / ((1 - hits) / bus + hits / inside)
        case = f"{SHARE:.0%} on the GPU by {by}"
        rows.append(Row("gpu-gather", case, "rows of sampled nodes", "GB/s", found, {"all in pinned memory": cold}, limit))
        rows.append(Row("gpu-gather", case, "hit rate", "share", hits, {}, None))
    return rows
