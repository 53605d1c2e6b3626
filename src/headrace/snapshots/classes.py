"""`TwoWorkers`: groups on two threads, of which one sums over neighbors while the other multiplies: `overlap`, as it happens.

A worker holds the class "dense" but for its sums, where it gives that up for the class "graph": two tasks of one class never run
together, and a group's own order stays. Gradients do the same on their way back. While the second worker would wait for its class,
it makes sums of features of groups that are still to come, where "graph" is free; `queue` of them may wait to be used.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from headrace.nn.neighbor_sum import Part, at_once, between

T = TypeVar("T")
Class = Literal["graph", "dense", "wire"]  # "wire" waits for other ranks, and holds nothing


class Span(NamedTuple):
    """A class that a worker held, from `begin` to `end`, for a piece of work."""

    worker: int
    kind: Class
    piece: int
    begin: float
    end: float
    ahead: bool = False


class Classes:
    """Who holds each class of operators, and when."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._held: set[str] = set()
        self._own = threading.local()
        self.spans: list[Span] = []
        self.fill: Callable[[], Callable[[], None] | None] = lambda: None  # what the second worker may do meanwhile

    def enter(self, worker: int, piece: int) -> None:
        """This thread is a worker, at a piece of work."""
        self._own.worker, self._own.piece, self._own.kind = worker, piece, None

    def take(self, kind: Class) -> None:
        """Hold this class alone; the one held before is given up."""
        self.give()
        if kind != "wire":
            with self._free:
                while kind in self._held:
                    work = self.fill() if self._own.worker == 1 and "graph" not in self._held else None
                    if work is None:
                        self._free.wait()
                        continue
                    self._held.add("graph")
                    self._free.release()
                    try:
                        work()
                    finally:
                        self._free.acquire()
                        self._held.remove("graph")
                        self._free.notify_all()
                self._held.add(kind)
        self._own.kind, self._own.begin = kind, perf_counter()

    def give(self) -> None:
        """Hold no class."""
        own = self._own
        if own.kind is None:
            return
        self.spans.append(Span(own.worker, own.kind, own.piece, own.begin, perf_counter()))
        if own.kind != "wire":
            with self._free:
                self._held.remove(own.kind)
                self._free.notify_all()
        own.kind = None

    def changed(self) -> None:
        """There may be something to do for who waits."""
        with self._free:
            self._free.notify_all()

    def __call__(self, x: Tensor, *parts: Part) -> Tensor:
        """The parts of a sum, each in its class, forward and back, between operators that are "dense"."""
        before: Class = "dense"
        for kind, work in parts:
            x = work(_Switch.apply(x, self, kind, before))  # type: ignore[no-untyped-call]
            before = kind
        out: Tensor = _Switch.apply(x, self, "dense", before)  # type: ignore[no-untyped-call]
        return out


class _Switch(torch.autograd.Function):
    """Takes one class on the way forward, another on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, classes: Classes, forward: Class, back: Class) -> Tensor:
        ctx.classes, ctx.back = classes, back
        classes.take(forward)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.classes.take(ctx.back)
        return gradients[0], None, None, None


@dataclass(eq=False)
class Work(Generic[T]):
    """A piece of work: `chain` of what `ahead` gives, which reads features alone and can be made before."""

    chain: Callable[[Any], T]
    ahead: Callable[[], Any] | None = None
    number: int = 0
    _made: Any = None
    _state: Literal["open", "begun", "made"] = "open"
    _known: threading.Event = field(default_factory=threading.Event)


class TwoWorkers:
    """Runs pieces of work on two threads. At most two are under way; each result comes as a future, in the order of the pieces.

    queue: sums made ahead that may wait to be used at a time; `most_waiting` is what was seen.
    """

    def __init__(self, *, queue: int = 2) -> None:
        if queue < 1:
            raise ValueError(f"queue must be at least 1, not {queue}")
        self.classes, self.queue, self.most_waiting = Classes(), queue, 0
        self.classes.fill = self._next_ahead
        self._pools = [ThreadPoolExecutor(1, thread_name_prefix=f"snapshots {number}") for number in range(2)]
        self._lock = threading.Lock()
        self._coming: deque[Work[Any]] = deque()  # whose sums may still be made ahead
        self._waiting = 0

    def start(self, pieces: Sequence[Work[T]], *, pinned: bool = False, on: Callable[[int], None] | None = None) -> list[Future[T]]:
        """Begin; each future is a piece's result.

        pinned: piece i is worker i % 2's, so that another rank's workers meet them in one order; else whoever is free takes it.
        on: is told the number of the worker, in its thread.
        """
        self.classes.spans.clear()
        futures: list[Future[T]] = [Future() for _ in pieces]
        for number, piece in enumerate(pieces):
            piece.number = number
        with self._lock:
            self._coming.extend(piece for piece in pieces if piece.ahead is not None)
        jobs = deque(zip(futures, pieces, strict=True))
        for worker, pool in enumerate(self._pools):
            own = deque(list(jobs)[worker::2]) if pinned else jobs
            pool.submit(self._work, worker, own, on)
        return futures

    def _work(self, worker: int, jobs: deque[tuple[Future[T], Work[T]]], on: Callable[[int], None] | None) -> None:
        if on is not None:
            on(worker)
        with between(self.classes):
            while True:
                try:
                    future, piece = jobs.popleft()
                except IndexError:
                    return
                self.classes.enter(worker, piece.number)
                try:
                    future.set_result(self._done(piece))
                except BaseException as error:
                    future.set_exception(error)
                finally:
                    self.classes.give()

    def _done(self, piece: Work[T]) -> T:
        sums = None
        if piece.ahead is not None:
            with self._lock:
                own = piece._state == "open"
                if own:
                    piece._state = "begun"
                    self._coming.remove(piece)
            if own:
                self.classes.take("graph")
                with between(at_once):
                    sums = piece.ahead()
            else:
                piece._known.wait()
                sums, piece._made = piece._made, None
                if isinstance(sums, BaseException):
                    raise sums
                with self._lock:
                    self._waiting -= 1
                self.classes.changed()
        self.classes.take("dense")
        return piece.chain(sums)

    def _next_ahead(self) -> Callable[[], None] | None:
        """The next sums that may run ahead, where there is room for their result."""
        with self._lock:
            if self._waiting >= self.queue or not self._coming:
                return None
            piece = self._coming.popleft()
            piece._state = "begun"
            self._waiting += 1
            self.most_waiting = max(self.most_waiting, self._waiting)

        def make() -> None:
            begin = perf_counter()
            assert piece.ahead is not None
            try:
                with between(at_once):
                    piece._made = piece.ahead()
            except BaseException as error:  # who uses it raises it
                piece._made = error
            self.classes.spans.append(Span(1, "graph", piece.number, begin, perf_counter(), ahead=True))
            piece._known.set()

        return make

    def close(self) -> None:
        """End the threads, after what is under way."""
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)
