"""What a plan predicted of an epoch, beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def beside_measured(plan: dict[str, Any], epochs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Bytes read and written and seconds of an epoch, predicted and measured.

    Measured is the mean of all epochs but the first, which also fills the buffer; or the first, where there is no other.

    >>> epochs = [{"train_seconds": 2.0}, {"train_seconds": 1.0}]
    >>> beside_measured({"predicted": {"read": 0, "written": 0, "seconds": 1.5}}, epochs)["measured"]
    {'read': 0.0, 'written': 0.0, 'seconds': 1.0}
    """
    counted = epochs[1:] or epochs
    disks = [epoch.get("disk") or {} for epoch in counted]
    sums = {
        "read": sum(disk.get("bytes_read", 0) + disk.get("edge_bytes", 0) for disk in disks),
        "written": sum(disk.get("bytes_written", 0) for disk in disks),
        "seconds": sum(epoch["train_seconds"] for epoch in counted),
    }
    measured = {name: total / len(counted) for name, total in sums.items()} if counted else None
    return {"predicted": plan["predicted"], "measured": measured}
