"""`PoolExecutor`: an executor with a number of workers that may change while it runs, and calls that say what they took."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from threading import Condition, Thread, current_thread
from types import TracebackType
from typing import ClassVar, Generic, TypeVar

Function = Callable[[bytes], bytes]
W = TypeVar("W")


class WorkerLostError(RuntimeError):
    """A worker ended, or gave no answer. The task itself may be in order: launch it again.

    kind: how it was lost, in a word, such as `Sandbox.Timedout`.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


@dataclass
class Usage:
    """What a call took. `milliseconds` is what a cloud bills; 0 where nobody bills."""

    worker: str = ""
    milliseconds: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    puts: int = 0
    gets: int = 0
    throttled: int = 0


class Call(Future[bytes]):
    """The future of one call. `began` is when a worker got it, by `time.monotonic`; None while it waits for one."""

    def __init__(self, worker: str) -> None:
        super().__init__()
        self.began: float | None = None
        self.thread: Thread | None = None
        self.usage = Usage(worker)

    def set_running_or_notify_cancel(self) -> bool:
        runs = super().set_running_or_notify_cancel()
        if runs:
            self.began, self.thread = time.monotonic(), current_thread()
        return runs


class PoolExecutor(Executor, ABC, Generic[W]):
    """A thread per worker takes calls from one queue, in order.

    Leave it as a context manager after an error or Ctrl-C, and calls that wait are cancelled and workers ended; otherwise all
    calls are finished first.
    """

    kind: ClassVar[str]
    floor: ClassVar[float] = (
        0.5  # seconds after which a call may be late; longer where the start of a worker cannot be told from its work
    )

    def __init__(self, workers: int) -> None:
        self._waiting: deque[tuple[Call, Function, bytes]] = deque()
        self._changed = Condition()
        self._threads: set[Thread] = set()
        self._target, self._shut = 0, False
        self.resize(workers)

    @property
    def workers(self) -> int:
        """How many calls run at a time."""
        return self._target

    @property
    def queued(self) -> int:
        """Calls that wait for a worker."""
        return len(self._waiting)

    def resize(self, workers: int) -> None:
        """Change the number of workers. One that is busy leaves after its call."""
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        self._check(workers)
        with self._changed:
            if self._shut:
                raise RuntimeError("this executor was shut down")
            self._target = workers
            self._fill()
            self._changed.notify_all()

    def submit(self, function: Function, payload: bytes, /) -> Call:  # type: ignore[override]
        """Have a worker call `function(payload)`."""
        call = Call(self.kind)
        call.usage.bytes_in = len(payload)
        with self._changed:
            if self._shut:
                raise RuntimeError("this executor was shut down")
            self._waiting.append((call, function, payload))
            self._changed.notify()
        return call

    def replace(self, call: Call) -> None:
        """Start another worker in the place of the one that runs this call, and may hang. Its answer is still taken."""
        with self._changed:
            if self._shut or call.done() or call.thread not in self._threads:
                return
            self._threads.discard(call.thread)
            self._fill()
        self._replaced(call)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. `cancel_futures` cancels those that wait, and ends workers that can be ended."""
        with self._changed:
            self._shut = True
            cancelled = [call for call, _, _ in self._waiting] if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
            threads = list(self._threads)
            self._changed.notify_all()
        for call in cancelled:
            call.cancel()
            call.set_running_or_notify_cancel()
        if cancel_futures:
            self._interrupt()
        if wait:
            for thread in threads:
                if thread is not current_thread():
                    thread.join()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown(wait=kind is None, cancel_futures=kind is not None)

    @abstractmethod
    def _open(self) -> W:
        """A new worker, for the calling thread."""

    @abstractmethod
    def _run(self, worker: W, call: Call, function: Function, payload: bytes) -> bytes:
        """Have it compute; WorkerLostError if it is there no more."""

    def _close(self, worker: W) -> None:
        """End a worker, which may be lost."""

    def _interrupt(self) -> None:
        """End all workers, busy or not."""

    def _check(self, workers: int) -> None:
        """ValueError if there cannot be so many."""

    def _replaced(self, call: Call) -> None:
        """Another worker has the place of the one that runs this call."""

    def _fill(self) -> None:
        while len(self._threads) < self._target:
            thread = Thread(target=self._serve, name=f"headrace.{self.kind}", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _serve(self) -> None:
        worker: W | None = None
        while (job := self._next()) is not None:
            call, function, payload = job
            if not call.set_running_or_notify_cancel():
                continue
            try:
                if worker is None:
                    call.began = None  # a start takes seconds, and is no time of the task
                    worker = self._open()
                    call.began = time.monotonic()
                result = self._run(worker, call, function, payload)
            except BaseException as error:
                if isinstance(error, WorkerLostError) and worker is not None:
                    self._close(worker)
                    worker = None
                call.set_exception(error)
            else:
                call.usage.bytes_out = call.usage.bytes_out or len(result)
                call.set_result(result)
                del result
            del job, call, function, payload  # an idle worker holds no memory
        if worker is not None:
            self._close(worker)

    def _next(self) -> tuple[Call, Function, bytes] | None:
        """A call for this thread; None if it is to end."""
        with self._changed:
            while self._is_wanted() and not self._waiting and not self._shut:
                self._changed.wait()
            if self._is_wanted() and self._waiting:
                return self._waiting.popleft()
            self._threads.discard(current_thread())
            self._changed.notify()  # another, in case a call had woken this one
            return None

    def _is_wanted(self) -> bool:
        return current_thread() in self._threads and len(self._threads) <= self._target
