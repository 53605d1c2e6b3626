"""`Pipeline`: items flow through stages run by threads, a bounded number ahead of their consumer."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from headrace.pipeline.trace import Trace
from headrace.pipeline.workers import Workers, free_in_child


@dataclass(frozen=True)
class Stage:
    """One step of a pipeline: `work(item)` returns what the next stage gets. Called from `threads` threads; 0 is for work that only
    launches something (kernels of a GPU) and returns: the consumer's own thread does it, ahead of its turn."""

    name: str
    work: Callable[[Any], Any]
    threads: int = 1


@dataclass
class StageTimes:
    """Where a stage's threads spent their seconds.

    `busy`: working. `starved`: waiting for an item from the stage before. `held`: waiting for leave to start a further item,
    because `staleness` of them are under way. For the consumer, `starved` is what it waited for the pipeline.
    """

    name: str
    threads: int
    items: int = 0
    busy: float = 0.0
    starved: float = 0.0
    held: float = 0.0


@dataclass(frozen=True)
class _Failure:
    error: BaseException


@dataclass(eq=False)
class _Launched:
    """An item that the consumer's thread takes through the stages, and how many it has been through."""

    index: int
    item: Any
    done: int = 0

    @property
    def failed(self) -> bool:
        return isinstance(self.item, _Failure)


class Pipeline:
    """Runs items of `source` through `stages`, in order, at most `staleness` of them ahead of the consumer.

    Every stage starts items in the order of the source, and they come out in it. With `staleness=0` nothing runs ahead: the
    consumer's own thread does the work when it asks for an item. An exception in the source or in a stage reaches the consumer
    at its item's turn, with the traceback of where it was raised. Leaving the loop early, Ctrl-C and errors stop and join all
    threads. A pipeline may be iterated again if its source may; times add up, and `peak` is the most items that were under way.

    >>> from headrace.pipeline import Pipeline, Stage
    >>> list(Pipeline(range(4), [Stage("square", lambda n: n * n, threads=2)], staleness=3))
    [0, 1, 4, 9]
    """

    def __init__(self, source: Iterable[Any], stages: Sequence[Stage], *, staleness: int = 2, trace: Trace | None = None) -> None:
        if staleness < 0:
            raise ValueError(f"staleness must be 0 (nothing runs ahead) or more, not {staleness}")
        if not stages:
            raise ValueError("a pipeline needs at least one stage")
        for stage in stages:
            if stage.threads < 0 or (stage.threads == 0) != (stages[0].threads == 0):
                raise ValueError(f"stage {stage.name!r} needs at least 1 thread (or all stages none), not {stage.threads}")
        self.source, self.stages, self.staleness, self.trace = source, tuple(stages), staleness, trace
        self.times = [StageTimes(s.name, s.threads) for s in stages] + [StageTimes("consumer", 1)]
        self.peak = 0
        self._lock = free_in_child(threading.Lock())  # many threads of a stage add to its times

    def __iter__(self) -> Iterator[Any]:
        if self.staleness == 0:
            return self._run_inline()
        return self._run_launching() if self.stages[0].threads == 0 else self._run_ahead()

    def _run_inline(self) -> Iterator[Any]:
        for index, item in enumerate(self.source):
            asked = perf_counter()
            for number in range(len(self.stages)):
                item = self._work(number, index, item)
            handed_over = perf_counter()
            self.times[-1].starved += handed_over - asked
            yield item
            self.times[-1].busy += perf_counter() - handed_over
            self.times[-1].items += 1

    def _run_launching(self) -> Iterator[Any]:
        """When an item is handed over, the next one has been through all stages, the one after through all but the last, and so on:
        each was launched as long ago as possible when something waits for it. No thread takes the interpreter from the consumer.
        """
        source, under_way, last = enumerate(self.source), deque[_Launched](), len(self.stages)
        while True:
            asked = perf_counter()
            while len(under_way) < self.staleness and not (under_way and under_way[-1].failed):
                launched = self._drawn(source)
                if launched is None:
                    break
                under_way.append(launched)
            self.peak = max(self.peak, len(under_way))
            if not under_way:
                return
            for distance, launched in enumerate(under_way):
                self._launch(launched, max(last - max(distance - 1, 0), 1))
            first = under_way.popleft()
            self.times[-1].starved += perf_counter() - asked
            if first.failed:
                raise first.item.error
            item = first.item
            del first, launched  # not kept alive while the next one is awaited
            handed_over = perf_counter()
            yield item
            self.times[-1].busy += perf_counter() - handed_over
            self.times[-1].items += 1
            del item

    def _drawn(self, source: Iterator[tuple[int, Any]]) -> _Launched | None:
        try:
            index, item = next(source)
        except StopIteration:
            return None
        except Exception as error:
            return _Launched(0, _Failure(error))
        return _Launched(index, item)

    def _launch(self, launched: _Launched, until: int) -> None:
        """Take an item through the stages before `until`. A failure waits for its item's turn."""
        while launched.done < until and not launched.failed:
            try:
                launched.item = self._work(launched.done, launched.index, launched.item)
            except Exception as error:  # Ctrl-C is no failure of the item: it stops the consumer, whose thread this is, at once
                launched.item = _Failure(error)
            launched.done += 1

    def _run_ahead(self) -> Iterator[Any]:
        flight = _Flight(self)
        try:
            flight.start()
            while True:
                asked = perf_counter()
                arrived, item = flight.take()
                self.times[-1].starved += perf_counter() - asked
                if not arrived:
                    return
                if isinstance(item, _Failure):
                    raise item.error
                handed_over = perf_counter()
                yield item
                self.times[-1].busy += perf_counter() - handed_over
                self.times[-1].items += 1
                del item  # not kept alive while the next one is awaited
        finally:
            flight.stop()

    def _work(self, number: int, index: int, item: Any) -> Any:
        begin = perf_counter()
        try:
            return self.stages[number].work(item)
        finally:
            end = perf_counter()
            with self._lock:
                self.times[number].busy += end - begin
                self.times[number].items += 1
            if self.trace is not None:
                self.trace.add(self.stages[number].name, index, begin, end)


class _Flight:
    """One run of a pipeline: its threads and the items between source and consumer.

    One lock guards everything. `waiting[n]` holds items ready for stage n by index (the last one: for the consumer), and
    `turn[n]` is the index it starts next. Items under way are bounded, so these are small.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.source = iter(pipeline.source)
        self.waiting: list[dict[int, Any]] = [{} for _ in range(len(pipeline.stages) + 1)]
        self.turn = [0] * (len(pipeline.stages) + 1)
        self.drawing = False  # a thread is in the source: items are drawn one at a time
        self.drawn = 0
        self.exhausted = False
        self.stopped = False
        self.changed = threading.Condition()
        self.workers = Workers("this iterator", self._tell_to_stop)

    def start(self) -> None:
        for number, stage in enumerate(self.pipeline.stages):
            for i in range(stage.threads):
                self.workers.start(self._run, number, name=f"headrace {stage.name} {i}")

    def stop(self) -> None:
        if not self.workers.elsewhere:
            self._tell_to_stop()
            self.workers.join()

    def _tell_to_stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.changed.notify_all()

    def take(self) -> tuple[bool, Any]:
        """The consumer's next item, or False after the last."""
        self.workers.check()
        with self.changed:
            last = len(self.turn) - 1
            while True:
                index = self.turn[last]
                if index in self.waiting[last]:
                    self.turn[last] += 1
                    self.changed.notify_all()
                    return True, self.waiting[last].pop(index)
                if self.exhausted and index == self.drawn:
                    return False, None
                self.changed.wait()

    def _run(self, number: int) -> None:
        while True:
            entry = self._draw() if number == 0 else self._receive(number)
            if entry is None:
                return
            index, item = entry
            if not isinstance(item, _Failure):
                try:
                    item = self.pipeline._work(number, index, item)
                except BaseException as error:
                    item = self._failed(error, f"in stage {self.pipeline.stages[number].name!r}, item {index}")
            with self.changed:
                self.waiting[number + 1][index] = item
                self.changed.notify_all()
            del entry, item  # a buffer must not live on in an idle thread

    def _draw(self) -> tuple[int, Any] | None:
        """The next item of the source, once fewer than `staleness` are under way."""
        times, asked = self.pipeline.times[0], perf_counter()
        with self.changed:
            while not self.stopped and not self.exhausted:
                under_way = self.drawn - self.turn[-1]
                if under_way < self.pipeline.staleness and not self.drawing:
                    break
                self.changed.wait()
            times.held += perf_counter() - asked
            if self.stopped or self.exhausted:
                return None
            self.drawing = True
        drawn = perf_counter()
        ended, item = False, None
        try:
            item = next(self.source)
        except StopIteration:
            ended = True
        except BaseException as error:
            item = self._failed(error, f"in the source, item {self.drawn}")
        with self.changed:
            times.starved += perf_counter() - drawn
            self.drawing = False
            self.exhausted = self.exhausted or ended
            index = self.drawn
            if not ended:
                self.drawn += 1
                self.pipeline.peak = max(self.pipeline.peak, self.drawn - self.turn[-1])
            self.changed.notify_all()
        return None if ended else (index, item)

    def _receive(self, number: int) -> tuple[int, Any] | None:
        asked = perf_counter()
        with self.changed:
            while not self.stopped:
                index = self.turn[number]
                if index in self.waiting[number]:
                    self.turn[number] += 1
                    self.pipeline.times[number].starved += perf_counter() - asked
                    return index, self.waiting[number].pop(index)
                if self.exhausted and index >= self.drawn:
                    return None
                self.changed.wait()
        return None

    def _failed(self, error: BaseException, where: str) -> _Failure:
        if sys.version_info >= (3, 11):
            error.add_note(f"headrace pipeline: {where}")
        with self.changed:
            self.exhausted = True  # nothing is started after an error
        return _Failure(error)
