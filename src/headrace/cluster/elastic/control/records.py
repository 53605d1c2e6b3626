"""`CallRecord` and `Counts`: what a controller tells of its calls. Each call costs, whether its result counts or not."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True)
class CallRecord:
    """One call of a worker, when it ended."""

    keys: tuple[Hashable, ...]  # of its tasks: one, or several in a batch
    begin: float  # seconds since 1970 when a worker got it
    milliseconds: float  # as billed, or as measured where nobody bills
    worker: str  # the executor's kind
    bytes_in: int
    bytes_out: int
    puts: int  # requests to objects
    gets: int
    throttled: int  # times that it had to wait for a worker by 429
    relaunched: bool  # it is not the first call of its task
    duplicates: int  # of its results, how many came after another one of the same task
    failed: str  # the kind of its first error, "" if there was none


@dataclass
class Counts:
    """Sums over a controller's life."""

    tasks: int = 0
    calls: int = 0
    relaunched: int = 0
    duplicates: int = 0
    failed: int = 0
    throttled: int = 0
    active: float = 0.0  # seconds in which tasks were under way, until the last one was retired
    computed: float = 0.0  # seconds that calls took, all together
    waited: float = 0.0  # seconds that `next_result` waited
    starved: float = 0.0  # of them, those that began while tasks waited for a worker
