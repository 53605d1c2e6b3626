"""What a cache did, and where its time went."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CacheSeconds:
    """Where the time of gathers went. On a GPU `copy` is the time to enqueue."""

    policy: float = 0.0
    fetch: float = 0.0
    copy: float = 0.0


@dataclass(frozen=True)
class CacheUse:
    """What a cache did since it was made or `reset`, in rows. `requests` are hits and misses together."""

    policy: str
    capacity_rows: int
    rows_held: int
    requests: int
    hits: int
    misses: int
    bypassed: int  # rows fetched that were not kept
    evictions: int
    bytes_moved: int  # fetched from the wrapped store
    seconds: CacheSeconds

    @property
    def hit_rate(self) -> float:
        return self.hits / self.requests if self.requests else 0.0
