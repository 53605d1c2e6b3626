"""Where the training thread's time goes."""

from __future__ import annotations

from time import perf_counter

from headrace.pipeline import Trace


class _Span:
    """A `with` block whose seconds are counted, also where it fails. A class: a generator takes thrice as long to enter."""

    __slots__ = ("begin", "clock", "item", "name")

    def __init__(self, clock: Clock, name: str, item: int) -> None:
        self.clock, self.name, self.item = clock, name, item

    def __enter__(self) -> None:
        self.begin = perf_counter()

    def __exit__(self, *_: object) -> None:
        clock, name, end = self.clock, self.name, perf_counter()
        clock.seconds[name] = clock.seconds.get(name, 0.0) + end - self.begin
        if clock.trace is not None:
            clock.trace.add(name, self.item, self.begin, end)


class Clock:
    """Seconds by name; spans go to a trace as well."""

    def __init__(self, trace: Trace | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.trace = trace

    def __call__(self, name: str, item: int = 0) -> _Span:
        """Counts the seconds of a `with` block."""
        return _Span(self, name, item)

    def move(self, seconds: float, *, of: str, to: str) -> None:
        """Seconds that were counted under one name belong under another."""
        self.seconds[of] = max(self.seconds.get(of, 0.0) - seconds, 0.0)
        self.seconds[to] = self.seconds.get(to, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """The seconds so far; begins again."""
        taken, self.seconds = self.seconds, {}
        return taken
