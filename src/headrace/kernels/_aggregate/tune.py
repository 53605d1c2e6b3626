"""Which launch is fastest on this GPU, for every bucket of width, type and degree: measured once and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from headrace.kernels._aggregate import gpu as _gpu
from headrace.kernels._aggregate.launch import H200, Launch, Table
from headrace.kernels._aggregate.tuned import read_table, tuning_path, write_table
from headrace.kernels._aggregate.work import Work

_DEGREES = {"few": 3, "alike": 48, "many": 48}
_TYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
_BYTES = 2 << 30  # of rows that one trial reads: well beyond what caches hold


def tune(
    device: torch.device | str,
    *,
    path: Path | str | None = None,
    buckets: Iterable[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Table:
    """Measure the candidates of every bucket on generated graphs, and keep the fastest of each in the user's cache folder.

    `prepare` reads the file from then on. Nothing is ever measured during training. Launches differ in the order of their
    additions, so results may change in their last bits; on one machine with one table they do not.
    """
    device = torch.device(device)
    if device.type != "cuda":
        raise ValueError(f"only kernels of a GPU are tuned, not of {device}: pass device='cuda'")
    path = tuning_path(device) if path is None else Path(path)
    wanted = list(H200 if buckets is None else buckets)
    if unknown := [b for b in wanted if b not in H200]:
        raise ValueError(f"{unknown[0]!r} is no bucket: they look like {next(iter(H200))!r}")
    table = dict(read_table(path)) if path.is_file() else dict(H200)
    for bucket in wanted:
        table[bucket] = _fastest(bucket, device)
        progress(f"{bucket}: {table[bucket]}")
    write_table(path, table, torch.cuda.get_device_name(device))
    return table


def candidates(bucket: str) -> Iterator[Launch]:
    """What is tried: the launch that comes with the package, and others of one warp around it."""
    _, width, _ = _parts(bucket)
    yield H200[bucket]
    columns = sorted({c for c in (1, 16, 32, 64, 128) if min(width, 16) <= c <= min(width, 128)}, reverse=True)[:2]
    alone = product((4, 8, 16, 32), (1, 3), (1,))
    shared = product((2, 4), (1,), (2, 4, 8))
    for block, (entries, stages, rows) in product(columns, [*alone, *shared]):
        if 128 <= block * entries * rows <= 4096 or block == 1:
            launch = replace(H200[bucket], columns=block, entries=entries, stages=stages, rows=rows, warps=1)
            if launch != H200[bucket]:
                yield launch


def _fastest(bucket: str, device: torch.device) -> Launch:
    work = _trial(bucket, device)
    expected = _gpu.sum_rows(work, H200[bucket]).double()
    times = {}
    for launch in candidates(bucket):
        sums = _gpu.sum_rows(work, launch).double()
        if not torch.allclose(sums, expected, rtol=1e-2, atol=1e-2 * float(expected.abs().max())):
            raise RuntimeError(f"{launch} gives other sums than {H200[bucket]}: nothing is kept")
        times[launch] = _seconds(lambda launch=launch: _gpu.sum_rows(work, launch))  # type: ignore[misc]
    return min(times, key=times.__getitem__)


def _trial(bucket: str, device: torch.device) -> Work:
    """Neighbors at random, without the help of an order: as many in every row, or up to four times the mean where they differ."""
    size, width, degree = _parts(bucket)
    each = _DEGREES[degree]
    rows = max(min(_BYTES // (each * max(width, 16) * size), 4_000_000), 1_000)
    generator = torch.Generator(device).manual_seed(0)
    degrees = torch.full((rows,), each, device=device)
    if degree == "many":
        degrees = (4 * each * torch.rand(rows, device=device, generator=generator) ** 3).long()
    indptr = torch.nn.functional.pad(degrees.cumsum(0), (1, 0))
    indices = torch.randint(0, rows, (int(indptr[-1]),), device=device, dtype=torch.int32, generator=generator)
    x: Tensor = torch.rand(rows, width, device=device, generator=generator).to(_TYPES[size])
    return Work(x, indptr, indices)


def _parts(bucket: str) -> tuple[int, int, str]:
    size, width, degree = (part.split() for part in bucket.split(", "))
    return int(size[0]), int(width[1]), degree[1]


def _seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """The shortest of several runs, by the GPU's clock."""
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)))
    return min(times)
