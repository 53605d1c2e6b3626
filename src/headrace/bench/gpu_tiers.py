"""Batches with features in three tiers: what each gives, and how fast batches come."""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from headrace.bench.gpu import copy_rate, needs_gpu
from headrace.bench.measure import Row
from headrace.bench.setting import BATCH, Setting
from headrace.graph import Dataset
from headrace.loader import NeighborLoader
from headrace.store import FileRows, Tiered, hot_order

FANOUTS = (10, 10, 10)


def run(setting: Setting) -> list[Row]:
    """Batches of a loader that samples over UVA, with features pinned and 20 % on the GPU, then with half of them on disk. Nothing
    is trained. The limit is what the bus copies per second, and what the disk reads."""
    device = needs_gpu()
    data = setting.dataset()
    assert data.x is not None
    order = hot_order(data.graph, by="degree")
    bus = copy_rate(torch.device("cpu"), repeats=setting.repeats) / 1e9
    rows = _rows(setting, data, Tiered(data.x, device=device, device_cache=0.2, order=order), "80 % pinned", bus)
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        path = Path(folder) / "x.npy"
        setting.progress(f"writing {data.x.nbytes / 1e9:.1f} GB of features")
        np.save(path, data.x.numpy())
        disk = _disk_rate(path, setting)
        store = Tiered(FileRows(path), device=device, device_cache=0.2, host=0.3, order=order)
        rows += _rows(setting, data, store, "30 % pinned, 50 % on disk", disk)
    return rows


def _rows(setting: Setting, data: Dataset, store: Tiered, tiers: str, limit: float) -> list[Row]:
    train = data.splits["train"][: BATCH * setting.batches]
    loader = NeighborLoader(
        data, FANOUTS, train, batch_size=BATCH, shuffle=True, device="cuda", mode="uva", rows=store, staleness=4, edge_ids=False
    )
    setting.progress(f"batches with 20 % of the features on the GPU, {tiers}")
    for _ in loader:
        pass
    before, begin, nodes, edges, batches = store.use(), perf_counter(), 0, 0, 0
    for batch in loader:
        nodes += batch.n_id.numel()
        edges += batch.sample.num_edges
        batches += 1
    torch.cuda.synchronize()
    seconds = perf_counter() - begin
    after = store.use()
    case = f"{data.num_nodes / 1e6:.1f} M nodes, fanout {','.join(map(str, FANOUTS))}, 20 % of the features on the GPU, {tiers}"
    moved = sum(t.moved - b.moved for t, b in zip(after.tiers, before.tiers, strict=True)) / 1e9
    rows: list[Any] = [
        Row("gpu-tiers", case, "features", "GB/s", moved / seconds, {}, None),
        Row("gpu-tiers", case, "sampled edges", "M/s", edges / seconds / 1e6, {}, None),
        Row("gpu-tiers", case, "milliseconds of a batch", "ms", 1e3 * seconds / batches, {}, None),
    ]
    slowest = [t for t in zip(after.tiers, before.tiers, strict=True) if t[0].rows][-1]
    rows.append(
        Row("gpu-tiers", case, f"from {slowest[0].name}", "GB/s", (slowest[0].moved - slowest[1].moved) / seconds / 1e9, {}, limit)
    )
    for tier, old in zip(after.tiers, before.tiers, strict=True):
        rows.append(Row("gpu-tiers", f"{case}: {tier.name}", "of the rows read", "share", (tier.hits - old.hits) / max(nodes, 1)))
    return rows


def _disk_rate(path: Path, setting: Setting) -> float:
    """Gigabytes per second of random rows read by as many threads as the store has, of a file larger than what was cached."""
    store = FileRows(path)
    ids = torch.randint(0, len(store), (200_000,), generator=torch.Generator().manual_seed(0))
    begin = perf_counter()
    found = store.gather(ids)
    return found.nbytes / (perf_counter() - begin) / 1e9
