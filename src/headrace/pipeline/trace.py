"""What ran when: spans of work, exported as a Chrome trace (open it in Perfetto or chrome://tracing)."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from headrace._sealed import sealed
from headrace.pipeline.workers import free_in_child


@dataclass(frozen=True)
class Span:
    """One piece of work: `begin` and `end` in seconds of `time.perf_counter`."""

    name: str
    item: int
    thread: int
    begin: float
    end: float


class Trace:
    """The latest `capacity` spans, safe to add to from any thread."""

    def __init__(self, capacity: int = 100_000) -> None:
        self.spans: deque[Span] = deque(maxlen=capacity)
        self._threads: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._lock = free_in_child(threading.Lock())

    def add(self, name: str, item: int, begin: float, end: float) -> None:
        """A span of the calling thread, which goes by its name: each epoch starts a stage anew, and the system reuses its ids."""
        who = threading.current_thread().name
        thread = self._numbers.get(who)
        if thread is None:
            with self._lock:
                thread = self._numbers.setdefault(who, len(self._numbers))
                self._threads[thread] = who
        self.spans.append(Span(name, item, thread, begin, end))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the spans in Chrome's trace-event format, with a checksum as one of the entries that it leaves to others."""
        spans = list(self.spans)
        start = min((s.begin for s in spans), default=0.0)
        rows = {thread: row for row, thread in enumerate(self._threads)}
        events: list[dict[str, object]] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": rows[thread], "args": {"name": name}}
            for thread, name in self._threads.items()
        ]
        events += [
            {
                "ph": "X",
                "name": span.name,
                "pid": 0,
                "tid": rows[span.thread],
                "ts": (span.begin - start) * 1e6,
                "dur": (span.end - span.begin) * 1e6,
                "args": {"item": span.item},
            }
            for span in spans
        ]
        Path(path).write_text(json.dumps(sealed({"traceEvents": events, "displayTimeUnit": "ms"})), encoding="utf-8")
