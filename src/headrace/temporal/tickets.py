"""`Tickets`: work that is done in the order of its numbers, by a thread that sleeps until the next one comes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Tickets:
    """Does what it is given in the order of tickets 0, 1, 2, ..., however they come in; nothing overtakes.

    When one piece fails, what follows it is refused with that reason. `begin` starts another count.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._changed = threading.Condition()
        self._waiting: dict[int, tuple[Callable[[], Any], Future[Any]]] = {}
        self._next, self._busy, self._closed = 0, False, False
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def begin(self, ticket: int) -> None:
        """Forget what waits, and count on from `ticket`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy)
            for _, future in self._waiting.values():
                future.cancel()
            self._waiting.clear()
            self._next, self._failed = ticket, None

    def submit(self, ticket: int, work: Callable[[], Any]) -> Future[Any]:
        """Do `work` when its turn comes."""
        future: Future[Any] = Future()
        with self._changed:
            if self._closed:
                raise ValueError(f"{self.name} is closed")
            if self._failed is not None:
                raise RuntimeError(f"{self.name} failed earlier and cannot go on: {self._failed}") from self._failed
            if ticket < self._next or ticket in self._waiting:
                raise ValueError(f"ticket {ticket} of {self.name} was served or given out already: the next is {self._next}")
            self._waiting[ticket] = work, future
            self._changed.notify_all()
        return future

    def settle(self) -> None:
        """Wait until nothing more can be done: the next ticket has not been given out."""
        with self._changed:
            self._changed.wait_for(lambda: self._failed is not None or not (self._busy or self._next in self._waiting))
            if self._failed is not None:
                raise RuntimeError(f"{self.name} failed: {self._failed}") from self._failed

    def close(self) -> None:
        """End the thread; what waits is not done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or (self._failed is None and self._next in self._waiting))
                if self._closed:
                    for _, future in self._waiting.values():
                        future.cancel()
                    return
                work, future = self._waiting.pop(self._next)
                self._busy = True
            try:
                future.set_result(work())
                error = None
            except BaseException as problem:
                error = problem
                future.set_exception(problem)
            del work, future
            with self._changed:
                self._next, self._busy = self._next + 1, False
                if error is not None:
                    self._failed = error
                    for _, waiting in self._waiting.values():
                        waiting.set_exception(RuntimeError(f"{self.name} failed: {error}"))
                    self._waiting.clear()
                self._changed.notify_all()
