"""The least time that an epoch of link prediction can take on this machine, from rates that are measured in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from headrace.bench.gpu import copy_rate, seconds_of
from headrace.bench.setting import Setting
from headrace.plan.links.probe import disk_rate
from headrace.train import LinkOptions


@dataclass(frozen=True)
class Rates:
    """A second's operations of products, and bytes copied within memory, over the bus, and read and written on disk."""

    products: float
    memory: float
    bus: float
    disk: float


def floor(options: LinkOptions, rates: Rates, *, edges: int, row_bytes: int, disk_bytes: int) -> float:
    """Seconds that no schedule of `edges` edges beats.

    With the computation: the products, and each row that a batch reads read and written once. On the host: the rows over the bus,
    one way, since the other goes on meanwhile. On disk: what was read and written.
    """
    flop = edges * 2 * options.negatives * 2 * options.dim * 3  # two questions an edge; forward, and both factors' gradients
    device = flop / rates.products + row_bytes / rates.memory
    if options.storage == "disk":
        return max(device, disk_bytes / rates.disk)
    if options.storage == "host" and options.device != "cpu":
        return max(device, row_bytes / rates.bus)
    return device


def measured_rates(setting: Setting, folder: Path) -> Rates:
    """Of this device; the disk's only where a tier is on it."""
    shape = setting.chunks, max(2 * setting.batch_size // setting.chunks, 1), setting.dim
    disk = disk_rate(folder) if any("disk" in tier for tier in setting.tiers) else 0.0
    queries = torch.randn(shape, device=setting.device)
    nodes = torch.randn(setting.chunks, setting.dim, setting.negatives, device=setting.device)
    flop = 2 * queries.numel() * setting.negatives
    if setting.device == "cpu":
        size = 64 << 20
        here, there = torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
        memory = size / _median(lambda: there.copy_(here))
        return Rates(flop / _median(lambda: queries @ nodes), memory, memory, disk)
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if setting.precision == "tf32" else "ieee"
    try:
        products = flop / seconds_of(lambda: queries @ nodes, repeats=10)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    memory, bus = copy_rate(torch.device("cuda"), repeats=5), copy_rate(torch.device("cpu"), repeats=5)
    return Rates(products, memory, bus, disk)


def _median(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(4):
        begin = perf_counter()
        work()
        seconds.append(perf_counter() - begin)
    return statistics.median(seconds[1:])
