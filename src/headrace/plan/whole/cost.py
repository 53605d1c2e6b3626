"""What operations cost: bytes that must move, and seconds on a measured machine. Pure functions.

An aggregation of E entries over N rows of d elements of s bytes moves

    4 E + 8 N + N d s + (E / rho) d s

bytes, rho being how often a row that was fetched serves: from 1 to E / N. Its seconds are those of its misses (E / rho) and of its
hits (the rest), each as long as the probe found them to take for rows of that size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headrace.plan.machine import Machine

CACHE_SHARE = 0.8  # of a cache that rows may have to themselves; the rest is for ids, results and the system


@dataclass(frozen=True)
class Cost:
    """Bytes moved and seconds taken.

    >>> Cost(1, 2) + 3 * Cost(10, 20)
    Cost(bytes=31, seconds=62)
    """

    bytes: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.bytes + other.bytes, self.seconds + other.seconds)

    def __rmul__(self, times: float) -> Cost:
        return Cost(times * self.bytes, times * self.seconds)


def aggregation_bytes(*, rows: int, entries: int, width: int, itemsize: int, reuse: float) -> float:
    """Bytes that a sum over neighbors moves; `reuse` is at least 1 and at most entries / rows.

    >>> round(aggregation_bytes(rows=2_449_029, entries=123_718_280, width=100, itemsize=4, reuse=1) / 1e9, 1)  # ogbn-products
    51.0
    """
    row = width * itemsize
    return 4 * entries + 8 * rows + rows * row + entries / max(reuse, 1.0) * row


def aggregation(
    machine: Machine,
    *,
    rows: int,
    entries: int,
    width: int,
    dtype: torch.dtype,
    reuse: float,
    near_misses: float = 1.0,
    columns: int | None = None,
) -> Cost:
    """A sum over neighbors by rows of the CSR; `columns` at a time (all of them unless said), each time with this `reuse`.

    `near_misses` is the share of reads that miss the cache of the processor that makes them, and go to the one behind it at least.
    A row that is written counts as one more that is found in the cache, besides the stream it is.
    """
    if not entries:
        return Cost(8 * rows, machine.call_seconds + rows * width * dtype.itemsize / machine.stream_rate)
    tile = width if columns is None else min(columns, width)
    passes, left = divmod(width, tile)
    total = passes * _one_pass(machine, rows, entries, tile, dtype, reuse, near_misses)
    if left:
        total = total + _one_pass(machine, rows, entries, left, dtype, reuse, near_misses)
    return total + Cost(0.0, machine.call_seconds)


def _one_pass(machine: Machine, rows: int, entries: int, width: int, dtype: torch.dtype, reuse: float, near_misses: float) -> Cost:
    row = width * dtype.itemsize
    table = rows * row
    moved = aggregation_bytes(rows=rows, entries=entries, width=width, itemsize=dtype.itemsize, reuse=reuse)
    missed = entries / max(reuse, 1.0) if table > CACHE_SHARE * machine.cache_bytes else 0.0
    close = far = machine.hit_seconds(row, table_bytes=table, dtype=dtype)
    if machine.near_bytes:
        close, far = (machine.hit_seconds(row, table_bytes=size, dtype=dtype) for size in (1, machine.cache_bytes))
    behind = max(min(near_misses, 1.0) * entries, missed)
    seconds = missed * machine.miss_seconds(row, dtype=dtype) + (behind - missed) * far + (entries - behind + rows) * close
    return Cost(moved, seconds + table / machine.stream_rate)


def split_overhead(machine: Machine, *, heavy_entries: int, group: int, width: int) -> Cost:
    """What cutting heavy rows into groups adds: each group's fp32 sum is written and read once more, by a second launch."""
    moved = 2.0 * -(-heavy_entries // group) * width * 4
    return Cost(moved, moved / machine.stream_rate + machine.sum_seconds)


ROUND_TRIP = 0.7e-6  # seconds of a dependent read of an id and then of its row on a GPU: two trips to its memory


def heaviest_row(machine: Machine, *, max_degree: int, at_once: int) -> float:
    """Seconds that one program takes for the longest row, reading `at_once` neighbors per round trip to memory.

    Where this is more than the whole sum takes, one program per row leaves the rest of the device waiting. On the CPU work is cut
    by entries, and no row is anybody's alone for long.
    """
    return -(-max_degree // max(at_once, 1)) * ROUND_TRIP if machine.device == "cuda" else 0.0


def product(machine: Machine, *, rows: int, wide: int, narrow: int, dtype: torch.dtype, gradient: bool = False) -> Cost:
    """A product [rows, wide] x [wide, narrow], or one of the same size for the weights' gradient: operations, or bytes if more."""
    moved = float(dtype.itemsize) * (rows * (wide + narrow) + wide * narrow)
    operations = 2.0 * rows * wide * narrow
    rate = machine.product_rate(min(wide, narrow), dtype=dtype, gradient=gradient)
    return Cost(moved, machine.call_seconds + max(operations / rate, moved / machine.stream_rate))


def elementwise(machine: Machine, *, rows: int, width: int, passes: float, itemsize: int = 4, calls: int = 1) -> Cost:
    """Operations that read or write `passes` arrays of [rows, width]."""
    moved = float(itemsize) * rows * width * passes
    return Cost(moved, calls * machine.call_seconds + moved / machine.stream_rate)
