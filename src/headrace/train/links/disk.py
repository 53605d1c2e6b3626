"""What the disk did in an epoch: bytes, loads, how much of the time it was busy, and how long batches waited for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from headrace.store import Partitioned, TrainedRows

_COUNTS = ("loads", "write_backs", "bytes_read", "bytes_written")
_SECONDS = ("read_seconds", "write_seconds", "busy_seconds", "stall_seconds")


@contextmanager
def disk_use_added(rows: TrainedRows, sums: dict[str, float]) -> Iterator[None]:
    """Add to `sums` what rows on disk read and wrote in this block; what checkpoints write between blocks is not part of it."""
    if not isinstance(rows, Partitioned):
        yield
        return
    before = rows.use()
    yield
    use = asdict(rows.use() - before)
    for name in (*_COUNTS, *_SECONDS):
        sums[name] = sums.get(name, 0) + use[name]


def disk_facts(rows: TrainedRows, sums: dict[str, float], *, seconds: float, edge_bytes: int) -> dict[str, Any]:
    """For the log and for `--json`; nothing where no rows are on disk.

    bytes_read and bytes_written are of rows and state: for L loads of an order 2 L S / p in all, of S bytes with their padding.
    edge_bytes are those of the edges, which are read through a mapping and may come from the page cache. `busy` is the share of the
    time in which at least one read or write was under way.
    """
    if not isinstance(rows, Partitioned):
        return {}
    return {
        "disk": {
            **{name: int(sums.get(name, 0)) for name in _COUNTS},
            "edge_bytes": edge_bytes,
            "slot_bytes": rows.use().slot_bytes,
            **{name: sums.get(name, 0.0) for name in _SECONDS},
            "busy": min(sums.get("busy_seconds", 0.0) / max(seconds, 1e-9), 1.0),
        }
    }
