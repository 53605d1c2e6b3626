"""Batches per second with their features, and the memory the loader takes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace.bench import peers
from headrace.bench.measure import Row, rate_row, time_in_turn
from headrace.bench.sampling import BareSampler, check, spread
from headrace.bench.setting import FANOUTS, Setting
from headrace.graph import Dataset
from headrace.loader import NeighborLoader
from headrace.store import BufferPool


def run(setting: Setting) -> list[Row]:
    """A `Dataset` in, `Batch` out; a PyG `Data` in, `Data` out; PyG's own loader; and bare sampling plus bare gathering."""
    data = setting.dataset()
    if data.x is None:
        raise ValueError("this dataset has no features to load")
    batches = setting.seed_batches(data)
    seeds, size, fanouts = torch.cat(batches), len(batches[0]), list(FANOUTS)
    options: dict[str, Any] = {"input_nodes": seeds, "batch_size": size}
    loader = NeighborLoader(data, fanouts, threads=setting.threads, **options)
    first = next(iter(loader))
    check(data.graph, first.sample, fanouts)
    if not torch.equal(first.x, data.x[first.n_id.long()]):
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
    rows = [rate_row("loader", case, "batches with features", "batches/s", work, seconds)]
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
    assert data.x is not None
    x = data.x
    known = []
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
    return Row("loader", "peak memory", "resident / (graph + features)", "x", figures["peak"] / figures["size"], {}, 1.0)
