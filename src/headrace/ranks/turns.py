"""One thread that does what it is given in the order it was given: collectives must start in one order on every rank."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from time import perf_counter
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from headrace.pipeline.stream import receive
from headrace.pipeline.workers import Workers, free_in_child

T = TypeVar("T")


class Pending(Generic[T]):
    """Work that is on its way. `wait()` returns its result, or raises what it raised."""

    def __init__(self, work: Callable[[], T], turns: Turns) -> None:
        self._work = work
        self._turns = turns
        self._finished = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None
        self._on_device: Any = None  # a CUDA event, where the device may still be at it

    @property
    def done(self) -> bool:
        return self._finished.is_set()

    def wait(self) -> T:
        """The result, when it is there; on a GPU, in the order of the caller's stream."""
        start = perf_counter()
        if not self.done:
            self._turns.check()
        self._finished.wait()
        self._turns.add_waited(perf_counter() - start)
        if self._error is not None:
            raise self._error
        if self._on_device is not None:
            results = (self._result,) if isinstance(self._result, Tensor) else ()
            receive(torch.cuda.current_stream(self._turns.device), self._on_device, results)
        return self._result  # type: ignore[return-value]

    def run(self) -> BaseException | None:
        """Do the work, on the thread whose turn it is."""
        try:
            self._result, self._on_device = self._turns.on_stream(self._work)
        except BaseException as error:
            self._error = error
        del self._work  # what it holds (ids, an output) must not outlive it
        self._finished.set()
        return self._error

    def refuse(self, error: BaseException) -> None:
        self._error = error
        self._finished.set()


class Turns:
    """Runs work in order on a thread (and, for a GPU `device`, a stream) of its own; `submit` blocks while `ahead` are waiting.

    When one piece fails, the ranks no longer agree on what comes next, so everything after it is refused with that reason.
    """

    def __init__(self, *, ahead: int, name: str, device: torch.device) -> None:
        if ahead < 1:
            raise ValueError(f"ahead must be at least 1, not {ahead}")
        self.name = name
        self.device = device
        self.failed: BaseException | None = None
        self.waited = 0.0  # seconds that callers spent in wait()
        self.peak = 0  # the most pieces that were under way
        self._under_way = 0
        self._lock = free_in_child(threading.Lock())
        self._queue: queue.Queue[Pending[Any] | None] = queue.Queue(maxsize=ahead)
        self._closed = False
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._workers = Workers(name, self._give_up)
        self._workers.start(self._serve, name=name)

    def submit(self, work: Callable[[], T], *, reads: tuple[Tensor | None, ...] = ()) -> Pending[T]:
        """Do `work` after all that was submitted before it. `reads`: the caller's tensors that it uses."""
        self.check()
        if self._closed:
            raise ValueError(f"{self.name} is closed")
        if self.failed is not None:
            raise self._refusal(self.failed)
        if self._stream is not None:
            ready, stream = torch.cuda.current_stream(self.device).record_event(), self._stream
            for tensor in reads:
                if tensor is not None and tensor.is_cuda:
                    tensor.record_stream(stream)
            submitted = work

            def work() -> T:
                stream.wait_event(ready)
                return submitted()

        pending = Pending(work, self)
        with self._lock:
            self._under_way += 1
            self.peak = max(self.peak, self._under_way)
        self._queue.put(pending)
        return pending

    def close(self) -> None:
        """Finish what was submitted, and end the thread."""
        if not self._closed and not self._workers.elsewhere:
            self._closed = True
            self._queue.put(None)
            self._workers.join()

    def check(self) -> None:
        """Raise RuntimeError in a forked child, which does not have the thread."""
        self._workers.check()

    def _give_up(self) -> None:
        """Refuse what the thread has not begun: the interpreter ends, and a peer may be absent."""
        self._closed = True
        self.failed = self.failed or RuntimeError("the interpreter ends")
        while True:
            with suppress(queue.Full):
                return self._queue.put_nowait(None)
            with suppress(queue.Empty):
                if (pending := self._queue.get_nowait()) is not None:
                    pending.refuse(self.failed)

    def add_waited(self, seconds: float) -> None:
        with self._lock:
            self.waited += seconds

    def on_stream(self, work: Callable[[], T]) -> tuple[T, Any]:
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            return work(), None if self._stream is None else self._stream.record_event()

    def _refusal(self, failed: BaseException) -> RuntimeError:
        refusal = RuntimeError(f"{self.name} failed earlier and cannot go on: {failed}")
        refusal.__cause__ = failed  # whose traceback says where
        return refusal

    def _serve(self) -> None:
        while (pending := self._queue.get()) is not None:
            if self.failed is not None:
                pending.refuse(self._refusal(self.failed))
            elif (error := pending.run()) is not None:
                self.failed = error
            with self._lock:
                self._under_way -= 1
            del pending
