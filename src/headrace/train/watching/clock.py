"""Where the training thread's time goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from headrace.pipeline import Trace


class Clock:
    """Seconds by name; spans go to a trace as well."""

    def __init__(self, trace: Trace | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.trace = trace

    @contextmanager
    def __call__(self, name: str, item: int = 0) -> Iterator[None]:
        begin = perf_counter()
        try:
            yield
        finally:
            end = perf_counter()
            self.seconds[name] = self.seconds.get(name, 0.0) + end - begin
            if self.trace is not None:
                self.trace.add(name, item, begin, end)

    def move(self, seconds: float, *, of: str, to: str) -> None:
        """Seconds that were counted under one name belong under another."""
        self.seconds[of] = max(self.seconds.get(of, 0.0) - seconds, 0.0)
        self.seconds[to] = self.seconds.get(to, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """The seconds so far; begins again."""
        taken, self.seconds = self.seconds, {}
        return taken
