"""Batches with their features: on a CPU how many per second, and in how much memory; on a GPU what each tier of features gives."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace import _native
from headrace.bench import peers
from headrace.bench.measure import CPU, Row, copy_rate, needs_gpu, rate_row, time_in_turn
from headrace.bench.ops.sampling import BareSampler, check, spread
from headrace.bench.setting import BATCH, FANOUTS, Setting, features_of
from headrace.graph import Dataset
from headrace.loader import NeighborLoader
from headrace.store import BufferPool, FileRows, Tiered, hot_order

_TIER_HOPS = (10, 10, 10)


def on_cpu(setting: Setting) -> list[Row]:
    """A `Dataset` in, `Batch` out; a PyG `Data` in, `Data` out; PyG's own loader; and bare sampling plus bare gathering."""
    data = setting.dataset()
    x = features_of(data)
    batches = setting.seed_batches(data)
    seeds, size, fanouts = torch.cat(batches), len(batches[0]), list(FANOUTS)
    options: dict[str, Any] = {"input_nodes": seeds, "batch_size": size}
    loader = NeighborLoader(data, fanouts, threads=setting.threads, **options)
    first = next(iter(loader))
    check(data.graph, first.sample, fanouts)
    if not torch.equal(first.x, x[first.n_id.long()]):
        raise RuntimeError("the features of a batch are wrong: nothing is timed")
    del first

    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: drain(loader),
        "limit": _bare(data, batches, fanouts, setting.threads),
    }
    if setting.wants("pyg") and peers.pyg_backend():
        from torch_geometric.loader import NeighborLoader as PygLoader

        setting.progress("preparing PyG")
        pyg = peers.pyg_data(data)
        torch.set_num_threads(1)  # in each of its worker processes
        theirs = PygLoader(pyg, fanouts, is_sorted=True, num_workers=setting.threads, persistent_workers=True, **options)
        same = NeighborLoader(pyg, fanouts, threads=setting.threads, **options)
        name = f"PyG {peers.pyg_backend()}, {setting.threads} workers"
        runs[name] = lambda: drain(theirs)
        runs["ours, PyG Data in and out"] = lambda: drain(same)
    setting.progress("loading")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seconds = time_in_turn(runs, repeats=setting.repeats)
    work = dict.fromkeys(runs, float(len(batches)))
    case = f"batch {size}, fanout {','.join(map(str, fanouts))}, {setting.threads} threads"
    rows = [rate_row(case, "batches with features", "batches/s", work, seconds)]
    setting.progress("measuring memory in a process of its own")
    return [*rows, _memory(data, setting)]


def drain(loader: Iterable[object]) -> None:
    """Take every batch and its features, and drop them."""
    for batch in loader:
        batch.x  # type: ignore[attr-defined]  # noqa: B018 - features are gathered when asked for
        del batch


def _bare(data: Dataset, batches: list[Tensor], fanouts: list[int], threads: int) -> Callable[[], object]:
    """Sampling and then gathering, each by its bare loop: what no loader on these threads can pass."""
    samplers = [BareSampler(data.graph, fanouts, len(batches[0])) for _ in range(threads)]
    x, known = features_of(data), []
    for j, seeds in enumerate(batches):
        count, _ = samplers[0].sample(seeds, j)
        known.append(torch.from_numpy(samplers[0].nodes[:count].copy()))
    out = BufferPool().empty((max(map(len, known)), *x.shape[1:]), x.dtype)
    work: dict[str, float] = {}

    def run() -> None:
        spread("limit", list(samplers), batches, work)
        for ids in known:
            _native.bare_gather(x, ids, out[: len(ids)], threads)

    return run


_CHILD = """
import json, sys, headrace as hr, torch
from headrace._memory import peak_memory, resident_memory
path, threads, batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.ones(1 << 20).sum()  # starts torch's own threads
base = resident_memory()
data = hr.open(path)
size = data.graph.nbytes + data.x.nbytes
# The whole of it into memory, as it would be without the memory map: what comes on top is the loader's.
touched = int(data.graph.indptr.sum()) + int(data.graph.indices.sum()) + float(data.x.sum())
seeds = data.splits["train"][: 1024 * batches]
loader = hr.loader.NeighborLoader(data, [15, 10, 5], seeds, batch_size=1024, threads=threads)
for batch in loader:
    batch.x
print(json.dumps({"peak": peak_memory() - base, "size": size, "pool": loader.memory().peak}))
"""


def _memory(data: Dataset, setting: Setting) -> Row:
    """Peak resident memory of a process that loads, over the bytes of the graph and the features."""
    with tempfile.TemporaryDirectory() as folder:
        path = setting.data
        if path is None:
            path = str(Path(folder) / "data")
            data.save(path)
        command = [sys.executable, "-c", _CHILD, path, str(setting.threads), str(setting.batches)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    return Row("peak memory", "resident / (graph + features)", "x", figures["peak"] / figures["size"], {}, 1.0)


def on_cuda(setting: Setting) -> list[Row]:
    """Batches of a loader that samples over UVA, with features pinned and 20 % on the GPU, then with half of them on disk. Nothing
    is trained. The limit is what the bus copies per second, and what the disk reads."""
    device = needs_gpu()
    data = setting.dataset()
    x = features_of(data)
    order = hot_order(data.graph, by="degree")
    bus = copy_rate(CPU, device, repeats=setting.repeats) / 1e9
    rows = _tier_rows(setting, data, Tiered(x, device=device, device_cache=0.2, order=order), "80 % pinned", bus)
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        path = Path(folder) / "x.npy"
        setting.progress(f"writing {x.nbytes / 1e9:.1f} GB of features")
        np.save(path, x.numpy())
        disk = _disk_rate(path)
        store = Tiered(FileRows(path), device=device, device_cache=0.2, host=0.3, order=order)
        rows += _tier_rows(setting, data, store, "30 % pinned, 50 % on disk", disk)
    return rows


def _tier_rows(setting: Setting, data: Dataset, store: Tiered, tiers: str, limit: float) -> list[Row]:
    train = data.splits["train"][: BATCH * setting.batches]
    loader = NeighborLoader(
        data,
        _TIER_HOPS,
        train,
        batch_size=BATCH,
        shuffle=True,
        device="cuda",
        mode="uva",
        rows=store,
        staleness=4,
        edge_ids=False,
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
    case = f"{data.num_nodes / 1e6:.1f} M nodes, fanout {','.join(map(str, _TIER_HOPS))}, 20 % of the features on the GPU, {tiers}"
    moved = sum(t.moved - b.moved for t, b in zip(after.tiers, before.tiers, strict=True)) / 1e9
    rows = [
        Row(case, "features", "GB/s", moved / seconds),
        Row(case, "sampled edges", "M/s", edges / seconds / 1e6),
        Row(case, "milliseconds of a batch", "ms", 1e3 * seconds / batches),
    ]
    slowest, old = [pair for pair in zip(after.tiers, before.tiers, strict=True) if pair[0].rows][-1]
    rows.append(Row(case, f"from {slowest.name}", "GB/s", (slowest.moved - old.moved) / seconds / 1e9, {}, limit))
    for tier, old in zip(after.tiers, before.tiers, strict=True):
        rows.append(Row(f"{case}: {tier.name}", "of the rows read", "share", (tier.hits - old.hits) / max(nodes, 1)))
    return rows


def _disk_rate(path: Path) -> float:
    """Gigabytes per second of random rows read by as many threads as the store has, of a file larger than what was cached."""
    store = FileRows(path)
    ids = torch.randint(0, len(store), (200_000,), generator=torch.Generator().manual_seed(0))
    begin = perf_counter()
    rows = store.gather(ids)
    return rows.nbytes / (perf_counter() - begin) / 1e9
