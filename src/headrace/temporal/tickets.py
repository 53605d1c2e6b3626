"""`Tickets`: work that is done in the order of its numbers, by a thread that sleeps until the next one comes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from headrace.pipeline.workers import Workers, free_in_child


class Others(Protocol):
    """Processes that have tickets of the same count."""

    def has(self, ticket: int) -> bool:
        """Whether one of them has it."""
        ...

    def pass_on(self, count: int, ticket: int) -> None:
        """Tell the one that has it that its turn has come, in the `count`-th count."""
        ...


class Tickets:
    """Does what it is given in the order of tickets 0, 1, 2, ..., however they come in; nothing overtakes.

    When one piece fails, what follows it is refused with that reason. `begin` starts another count.

    others: who has the tickets that this process does not have. Each does its own, and hands the turn on to the next one.
    """

    def __init__(self, name: str, others: Others | None = None) -> None:
        self.name, self.others = name, others
        self._changed = free_in_child(threading.Condition())
        self._waiting: dict[int, tuple[Callable[[], Any], Future[Any]]] = {}
        self._next, self._busy, self._closed = 0, False, False
        self._count = 0  # how often it was begun
        self._here = others is None  # whether the next ticket is this process's
        self._early: tuple[int, int] | None = None  # a turn that came before the count was begun here
        self._failed: BaseException | None = None
        self._workers = Workers(name, self._stop)
        self._workers.start(self._serve, name=f"headrace {name}")

    @property
    def state(self) -> tuple[int, bool]:
        """The next ticket that is known of, and whether it is this process's. Asks for no lock: a process that ends may ask."""
        return self._next, self._here

    def begin(self, ticket: int) -> None:
        """Forget what waits, and count on from `ticket`. Of several processes all do so, and none has work to do before."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy)
            for _, future in self._waiting.values():
                future.cancel()
            self._waiting.clear()
            self._count += 1
            self._next, self._failed = ticket, None
            self._here = self._is_mine(ticket)
            if self._early is not None and self._early[0] == self._count:
                self._next, self._here = self._early[1], True
            self._early = None

    def turn(self, count: int, ticket: int) -> None:
        """Another process has done all before `ticket`, which is this one's."""
        with self._changed:
            if count == self._count:
                self._next, self._here = ticket, True
                self._changed.notify_all()
            elif count > self._count:
                self._early = count, ticket

    def submit(self, ticket: int, work: Callable[[], Any]) -> Future[Any]:
        """Do `work` when its turn comes."""
        future: Future[Any] = Future()
        self._workers.check()
        with self._changed:
            if self._closed:
                raise ValueError(f"{self.name} is closed")
            if self._failed is not None:
                raise RuntimeError(f"{self.name} failed earlier and cannot go on: {self._failed}") from self._failed
            if ticket < self._next or ticket in self._waiting:
                raise ValueError(f"ticket {ticket} of {self.name} was served or given out already: the next is {self._next}")
            if not self._is_mine(ticket):
                raise ValueError(f"ticket {ticket} of {self.name} is another process's")
            self._waiting[ticket] = work, future
            self._changed.notify_all()
        return future

    def close(self) -> None:
        """End the thread; what waits is not done."""
        self._stop()
        self._workers.join()

    def _is_mine(self, ticket: int) -> bool:
        return self.others is None or not self.others.has(ticket)

    def _stop(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or (self._failed is None and self._here and self._next in self._waiting)
                )
                if self._closed:
                    for _, future in self._waiting.values():
                        future.cancel()
                    return
                work, future = self._waiting.pop(self._next)
                self._busy, following, count = True, self._next + 1, self._count
            result, error = None, None
            try:
                result = work()
            except BaseException as problem:
                error = problem
            del work
            here = self._is_mine(following)
            with self._changed:  # before the turn is passed on: it may come back at once
                self._next, self._here = following, here and error is None
            if error is None and not here:
                assert self.others is not None
                try:
                    self.others.pass_on(count, following)
                except Exception as problem:
                    error = problem
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
            del future, result
            with self._changed:
                self._busy = False
                if error is not None:
                    self._failed = error
                    for _, waiting in self._waiting.values():
                        waiting.set_exception(RuntimeError(f"{self.name} failed: {error}"))
                    self._waiting.clear()
                self._changed.notify_all()
