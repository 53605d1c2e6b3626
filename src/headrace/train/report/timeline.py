"""The last spans of a trace, in rows by thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.train.report.curves import short
from headrace.train.report.read import LoggedRun, Record, number, record

_SPANS = 200
_MICROSECONDS = 2_000_000.0
_FEW = 40  # a window with fewer spans than this is widened: long ones are all there is to see


@dataclass(frozen=True)
class _Span:
    name: str
    thread: tuple[float, float]
    begin: float
    duration: float
    item: str

    @property
    def end(self) -> float:
        return self.begin + self.duration


def timeline(run: LoggedRun) -> dict[str, Any] | None:
    """The end of the trace of the last repeat that has one: what a steady pipeline looks like, unlike its start.

    Spans are lists of row, depth, begin and duration in milliseconds, index of the name, and item. A span inside another of
    its thread is one deeper.
    """
    for repeat in reversed(run.repeats):
        spans = sorted(_spans(repeat.events), key=lambda span: span.begin)
        if spans:
            return {"label": repeat.label, "all": len(spans)} | _rows(_last(spans), _thread_names(repeat.events))
    return None


def _spans(events: Sequence[Record]) -> list[_Span]:
    spans = []
    for event in events:
        begin, duration = number(event.get("ts")), number(event.get("dur"))
        if event.get("ph") == "X" and begin is not None and duration is not None:
            item = str(record(event.get("args")).get("item", ""))
            spans.append(_Span(str(event.get("name")), _thread(event), begin, duration, item))
    return spans


def _last(spans: list[_Span]) -> list[_Span]:
    finish = max(span.end for span in spans)
    recent = spans[-_SPANS:]
    window = [span for span in recent if span.end > finish - _MICROSECONDS]
    return window if len(window) >= _FEW else recent[-_FEW:]


def _rows(spans: list[_Span], thread_names: dict[tuple[float, float], str]) -> dict[str, Any]:
    threads = sorted({span.thread for span in spans})
    names = list(dict.fromkeys(span.name for span in spans))
    start = min(span.begin for span in spans)
    open_until: dict[tuple[float, float], list[float]] = {thread: [] for thread in threads}
    drawn = []
    for span in sorted(spans, key=lambda span: (span.begin, -span.duration)):
        around = open_until[span.thread]
        while around and around[-1] <= span.begin + 1.0:  # clocks are rounded to a microsecond
            around.pop()
        place = [threads.index(span.thread), len(around), short((span.begin - start) / 1e3), short(span.duration / 1e3)]
        drawn.append([*place, names.index(span.name), span.item])
        around.append(span.end)
    return {"threads": [thread_names.get(thread, f"thread {thread[1]:g}") for thread in threads], "names": names, "spans": drawn}


def _thread_names(events: Sequence[Record]) -> dict[tuple[float, float], str]:
    named = (event for event in events if event.get("ph") == "M" and event.get("name") == "thread_name")
    return {_thread(event): str(record(event.get("args")).get("name")) for event in named}


def _thread(event: Record) -> tuple[float, float]:
    return number(event.get("pid")) or 0, number(event.get("tid")) or 0
