"""Bytes of sampled rows gathered per second."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headrace import _native
from headrace.bench.measure import Row, rate_row, time_in_turn
from headrace.bench.setting import FANOUTS, Setting, resident
from headrace.kernels import gather
from headrace.sample import NeighborSampler
from headrace.store import BufferPool


def run(setting: Setting) -> list[Row]:
    """The features of sampled nodes into a warm buffer, with torch's ways beside it."""
    data = setting.dataset()
    if data.x is None:
        raise ValueError("this dataset has no features to gather")
    x = data.x
    sampler = NeighborSampler(data.graph, FANOUTS, threads=setting.threads)
    samples = [sampler.sample(seeds, 0, j) for j, seeds in enumerate(setting.seed_batches(data, min(setting.batches, 8)))]
    ids = [s.nodes.clone() for s in samples]
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        table = x if dtype == x.dtype else resident(x.to(dtype))
        for threads in sorted({1, setting.threads}):
            setting.progress(f"gathering {dtype} with {threads} thread(s)")
            rows.append(_row(table, ids, threads, setting.repeats))
    return rows


def _row(table: Tensor, ids: list[Tensor], threads: int, repeats: int) -> Row:
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
    return rate_row("gather", case, "rows of sampled nodes", "GB/s", work, seconds)


def _each(ids: list[Tensor], run: Callable[[Tensor], object]) -> None:
    for i in ids:  # each result is dropped at once, as a training loop does
        run(i)
