"""One thread that does what it is given in the order it was given: collectives must start in one order on every rank."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Generic, TypeVar

T = TypeVar("T")


class Pending(Generic[T]):
    """Work that is on its way. `wait()` returns its result, or raises what it raised."""

    def __init__(self, work: Callable[[], T], *, waited: Callable[[float], None], deliver: Callable[[T], None]) -> None:
        self._work = work
        self._waited = waited
        self._deliver = deliver
        self._done = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> T:
        """The result, when it is there."""
        start = perf_counter()
        self._done.wait()
        self._waited(perf_counter() - start)
        if self._error is not None:
            raise self._error
        self._deliver(self._result)  # type: ignore[arg-type]
        return self._result  # type: ignore[return-value]

    def _run(self) -> BaseException | None:
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error
        del self._work  # what it holds (ids, an output) must not outlive it
        self._done.set()
        return self._error

    def _refuse(self, error: BaseException) -> None:
        self._error = error
        self._done.set()


class Turns:
    """Runs work in order on a thread of its own, with at most `ahead` pieces waiting; `submit` blocks while there are more.

    When one piece fails, the ranks no longer agree on what comes next, so everything after it is refused with that reason.
    """

    def __init__(self, *, ahead: int, name: str) -> None:
        if ahead < 1:
            raise ValueError(f"ahead must be at least 1, not {ahead}")
        self.name = name
        self.failed: BaseException | None = None
        self.waited = 0.0  # seconds that callers spent in wait()
        self.peak = 0  # the most pieces that were under way
        self._under_way = 0
        self._lock = threading.Lock()
        self._queue: queue.Queue[Pending[object] | None] = queue.Queue(maxsize=ahead)
        self._closed = False
        # A daemon: a program that fails while a peer is absent must be able to end.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T], *, deliver: Callable[[T], None] = lambda _: None) -> Pending[T]:
        """Do `work` after all that was submitted before it."""
        if self._closed:
            raise ValueError(f"{self.name} is closed")
        if self.failed is not None:
            raise RuntimeError(f"{self.name} failed earlier and cannot go on: {self.failed}") from self.failed
        pending = Pending(work, waited=self._add_waited, deliver=deliver)
        with self._lock:
            self._under_way += 1
            self.peak = max(self.peak, self._under_way)
        self._queue.put(pending)  # type: ignore[arg-type]
        return pending

    def close(self) -> None:
        """Finish what was submitted, and end the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()

    def _add_waited(self, seconds: float) -> None:
        with self._lock:
            self.waited += seconds

    def _serve(self) -> None:
        while (pending := self._queue.get()) is not None:
            if self.failed is not None:
                pending._refuse(RuntimeError(f"{self.name} failed earlier and cannot go on: {self.failed}"))
            elif (error := pending._run()) is not None:
                self.failed = error
            with self._lock:
                self._under_way -= 1
            del pending
