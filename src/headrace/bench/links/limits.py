"""The least time that an epoch of link prediction can take on this machine, from rates that are measured in the same run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from headrace.bench.measure import CPU, copy_rate, seconds_of
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


def measured_rates(options: LinkOptions, folder: Path, *, on_disk: bool) -> Rates:
    """Of the device that `options` name; the disk's only where a tier is `on_disk`."""
    device = torch.device(options.device)
    shape = options.chunks, max(2 * options.batch_size // options.chunks, 1), options.dim
    disk = disk_rate(folder) if on_disk else 0.0
    queries = torch.randn(shape, device=device)
    nodes = torch.randn(options.chunks, options.dim, options.negatives, device=device)
    flop = 2 * queries.numel() * options.negatives
    if device.type == "cpu":
        memory = copy_rate(CPU, CPU, repeats=3)
        return Rates(flop / seconds_of(lambda: queries @ nodes, CPU, repeats=3, warmup=1), memory, memory, disk)
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if options.precision == "tf32" else "ieee"
    try:
        products = flop / seconds_of(lambda: queries @ nodes, device, repeats=10)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    return Rates(products, copy_rate(device, device, repeats=5), copy_rate(CPU, device, repeats=5), disk)
