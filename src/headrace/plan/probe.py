"""`probe`: measure a device for about a second, by the operations that the plan is about."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from headrace._arrays import thread_count
from headrace._device import device_of
from headrace.graph import Dataset, Graph
from headrace.graph.reorder.cache import last_level_cache
from headrace.kernels import aggregate, attend
from headrace.loader import WholeBatch
from headrace.nn import GNN
from headrace.plan.machine import Machine, Product, RowRead

_USUAL_CACHE = 32 << 20
_LARGEST = 512 << 20  # of a table out of the cache: enough for any cache but the largest, and made in a tenth of a second
_DEGREE = 16
_WIDTHS = (8, 16, 64, 256)  # of rows: less than a vector, one, and more
_SIDES = (8, 64, 256)  # of products
_TYPES = (torch.float32, torch.bfloat16)
_SPENT = 3e-3  # seconds of short runs, for each of the repeats
_STREAM = 32 << 20  # bytes of an activation: what is written is new memory each time, as in training


def probe(device: str | torch.device = "cpu", *, threads: int | None = None, repeats: int = 7) -> Machine:
    """What this device does: random rows per second in and out of its cache, streams, products and the cost of a call.

    Rows are read by `aggregate` itself over random ids, so that the figures are those of the kernel that will run. On the CPU they
    are of `threads` threads (all by default). Nothing is kept: pass the result to `advise`, or `save` it.
    """
    where = device_of(device)
    workers = thread_count(threads)
    best = _timer(where, repeats)
    cache = _cache_bytes(where)
    largest = max(min(6 * cache, _LARGEST), 64 << 20)
    reads = []
    buffer = torch.ones(largest // 4, device=where)  # written, so that its pages are there
    for dtype in _TYPES:
        for table in (min(512 << 10, cache // 4), cache // 2, largest):
            reads += [_read(buffer, table, width, dtype, best, workers) for width in _WIDTHS]
    tiny = torch.ones(16, 16, device=where)
    call = best(lambda: [tiny + tiny for _ in range(50)]) / 50
    one = _random_rows(16, 4 * _DEGREE, where)
    return Machine(
        device=where.type,
        name=torch.cuda.get_device_name(where) if where.type == "cuda" else _cpu_name(),
        threads=workers,
        cache_bytes=cache,
        near_bytes=_near_bytes(where, cache),
        stream_rate=2 * _STREAM / best(lambda: buffer[: _STREAM // 4] + 1.0),
        own_rates=tuple((_name(t), _own_rate(buffer, t, best)) for t in _TYPES),
        call_seconds=call,
        sum_seconds=best(lambda: [aggregate(tiny, *one, threads=workers) for _ in range(20)]) / 20,
        layer_seconds=tuple((_name(t), _layer_seconds(t, where, best)) for t in _TYPES),
        attend_factor=_attend_factor(buffer, min(cache // 2, largest), best, workers),
        reads=tuple(reads),
        products=tuple(_product(side, dtype, where, best) for dtype in _TYPES for side in _SIDES),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _timer(device: torch.device, repeats: int) -> Callable[[Callable[[], object]], float]:
    """The least seconds of some runs: a probe asks what the device can do, and other work only adds."""

    def best(work: Callable[[], object]) -> float:
        work()
        seconds: list[float] = []
        # Short runs are made more often: one that nothing disturbed must be among them.
        while len(seconds) < repeats or (sum(seconds) < _SPENT * repeats and len(seconds) < 10 * repeats):
            wait_for(device)
            begin = perf_counter()
            work()
            wait_for(device)
            seconds.append(perf_counter() - begin)
        return max(min(seconds), 1e-9)

    return best


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _random_rows(rows: int, entries: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A CSR of equal rows whose entries name random rows of a table."""
    generator = torch.Generator(device).manual_seed(0)
    ids = torch.randint(0, rows, (entries // _DEGREE * _DEGREE,), generator=generator, device=device, dtype=torch.int32)
    return torch.arange(0, len(ids) + 1, _DEGREE, device=device), ids


def _read(
    buffer: Tensor, table: int, width: int, dtype: torch.dtype, best: Callable[[Callable[[], object]], float], threads: int
) -> RowRead:
    row = width * dtype.itemsize
    count = max(table // row, 1)
    x = buffer.view(dtype)[: count * width].view(count, width)
    least = 16 << 20 if buffer.device.type == "cpu" else 1 << 30  # bytes read: some milliseconds either way
    budget = least if table < buffer.nbytes else max(least, buffer.nbytes // 3)  # twice the cache: not what the last run left there
    indptr, ids = _random_rows(count, max(budget // row, 4 * _DEGREE), buffer.device)
    seconds = best(lambda: aggregate(x, indptr, ids, threads=threads))
    return RowRead(_name(dtype), count * row, row, seconds / (len(ids) * (1 + 1 / _DEGREE)))


def _own_rate(buffer: Tensor, dtype: torch.dtype, best: Callable[[Callable[[], object]], float]) -> float:
    x = buffer.view(dtype)[: _STREAM // 4].view(-1, 64)
    factor = torch.ones(len(x), 1, dtype=dtype, device=x.device)
    return 3 * x.nbytes / best(lambda: torch.addcmul(x, x, factor))


def _attend_factor(buffer: Tensor, table: int, best: Callable[[Callable[[], object]], float], threads: int) -> float:
    """How many times longer a fused attention of eight heads takes than the sum of the same rows."""
    rows = max(table // 256, 1)
    x = buffer[: rows * 64].view(rows, 64)
    indptr, ids = _random_rows(rows, 1 << 16, buffer.device)
    targets = len(indptr) - 1
    indptr = torch.nn.functional.pad(indptr, (0, rows - targets), value=int(indptr[-1])) if targets < rows else indptr[: rows + 1]
    ids = ids[: int(indptr[-1])]
    score = torch.zeros(rows, 8, device=buffer.device)
    plain = best(lambda: aggregate(x, indptr, ids, threads=threads))
    heads = x.view(rows, 8, 8)
    fused = best(lambda: attend(heads, indptr, ids, source=score, target=score, self_loops=False, threads=threads))
    return max(fused / plain, 1.0)


def _product(side: int, dtype: torch.dtype, device: torch.device, best: Callable[[Callable[[], object]], float]) -> Product:
    rows, wide = (4096, 256) if device.type == "cpu" else (1 << 17, 256)
    x = torch.ones(rows, wide, dtype=dtype, device=device)
    weight, grad = torch.ones(side, wide, dtype=dtype, device=device), torch.ones(rows, side, dtype=dtype, device=device)
    operations = 2.0 * rows * wide * side
    forward = operations / best(lambda: torch.nn.functional.linear(x, weight))
    return Product(_name(dtype), side, forward, operations / best(lambda: grad.t() @ x))


def _layer_seconds(dtype: torch.dtype, device: torch.device, best: Callable[[Callable[[], object]], float]) -> float:
    """Of a step of a layer of a model that computes next to nothing."""
    graph = Graph.from_edges([0, 1], [1, 0])
    batch = WholeBatch(Dataset(graph, x=torch.ones(2, 8, dtype=dtype)), 2, keep_sum="never").to(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        model = GNN(8, 8, 8, layers=2, conv="gcn").to(device)

        def steps() -> None:
            for _ in range(5):
                with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
                    loss = model(batch).float().sum()
                loss.backward()

        return best(steps) / 10


def _cache_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)) or _USUAL_CACHE
    return last_level_cache()


def _near_bytes(device: torch.device, cache: int) -> int:
    """Of a processor's second-level cache, where there is a larger one behind it."""
    size = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
    text = size.read_text().strip() if device.type == "cpu" and size.is_file() else ""
    second_level = int(text[:-1]) << 10 if text.endswith("K") and text[:-1].isdigit() else 0
    return second_level if second_level < cache else 0


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()
