"""What features on disk take of main memory, told before a run begins, and whether that is within `memory`."""

from __future__ import annotations

from dataclasses import dataclass

from headrace._sizes import format_size

_LOOKAHEAD = (64, 32, 16, 8, 4, 2, 1)  # batches that a cache plans by, the most that an eighth of the memory has room for
_SAMPLED = 8  # batches that are reckoned with; not by `staleness`, on which no result may depend
_PLACE = 12  # bytes of a node in a planned cache: its slot and its next use


@dataclass(frozen=True)
class BatchSize:
    """The memory of one batch."""

    rows: int  # nodes whose features are read
    row_bytes: int
    sample_bytes: int  # ids and edges

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True)
class CacheBudget:
    """How many bytes of features are cached, and how many batches ahead is looked to choose which."""

    cache: int
    lookahead: int


@dataclass(frozen=True)
class SlotBudget:
    """Partitions that are in memory at a time, and slots for those of the next epoch that are read meanwhile."""

    resident: int
    spare: int


def cache_budget(memory: int, batch: BatchSize, *, nodes: int, staleness: int) -> CacheBudget:
    """The memory left for the cache; ValueError if batches alone need more than `memory`.

    Batches: `staleness` of them whose rows are being read or are there, the one that is trained on, the rows that were missing from
    one before they are put in place, and a buffer for the next.

    >>> cache_budget(1 << 20, BatchSize(1000, 100, 5000), nodes=10_000, staleness=2)
    CacheBudget(cache=318576, lookahead=16)
    """
    parts = {"rows of batches": (staleness + 3) * batch.bytes, "places of rows": _PLACE * nodes}

    def samples(ahead: int) -> int:
        return (ahead + 2 * staleness + 2) * batch.sample_bytes

    lookahead = next((n for n in _LOOKAHEAD if samples(n) <= memory // 8), 1)
    parts["sampled batches ahead"] = samples(lookahead)
    left = memory - sum(parts.values())
    if left < 0:
        raise _too_small(memory, parts, "or a smaller batch_size, fanout or staleness")
    return CacheBudget(left, lookahead)


def slot_budget(
    memory: int,
    batch: BatchSize,
    *,
    partitions: int,
    pinned: int,
    partition_bytes: int,
    copies: bool = False,
    ahead: bool = True,
) -> SlotBudget:
    """How many partitions fit beside the batches; ValueError if those of the training nodes and one more do not.

    Where not all partitions fit and epochs follow each other without a validation (`ahead`), an eighth of the slots are spare:
    there the next epoch's are read. `copies` says whether a batch has its rows as a copy, or reads them in place.

    >>> slot_budget(1 << 20, BatchSize(100, 100, 500), partitions=64, pinned=4, partition_bytes=50_000)
    SlotBudget(resident=18, spare=2)
    """
    parts = {"sampled batches ahead": _SAMPLED * batch.sample_bytes}
    if copies:
        parts["rows of batches"] = 2 * batch.bytes
    slots = min((memory - sum(parts.values())) // partition_bytes, partitions)
    least = min(pinned + 1, partitions)
    if slots < least:
        parts[f"{least} of {partitions} partitions, those of the training nodes and one more,"] = least * partition_bytes
        raise _too_small(memory, parts, "or more partitions, or use storage disk, which needs none of them")
    spare = min(slots // 8, slots - least) if ahead and slots < partitions else 0
    return SlotBudget(slots - spare, spare)


def _too_small(memory: int, parts: dict[str, int], otherwise: str) -> ValueError:
    told = ", ".join(f"{name} {format_size(size)}" for name, size in parts.items())
    need = sum(parts.values())
    return ValueError(
        f"memory is {format_size(memory)} and {format_size(need)} are needed ({told}): "
        f"give memory {-(-need // 2**20)}MiB, {otherwise}"
    )
