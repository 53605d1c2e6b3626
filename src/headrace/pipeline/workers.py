"""`Workers`: the threads of one object. They end before the interpreter does, and are not waited for in a forked child."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, TypeVar
from weakref import WeakMethod, WeakSet

import torch

_SECONDS = 10.0  # that all threads together get to end in when the interpreter ends
L = TypeVar("L", bound="threading.Lock | threading.Condition")


class Workers:
    """Threads that work for one object, whose method `stop` tells them to end without waiting for them.

    The interpreter ends daemon threads where they ask for its lock. One that comes back from native code then aborts the process,
    so threads that are alive at the end are stopped and joined. A child made by fork has none of its parent's threads: there
    `check` raises, and `join` does not wait.
    """

    def __init__(self, name: str, stop: Callable[[], object]) -> None:
        self.name = name
        self.threads: list[threading.Thread] = []
        self._stop = WeakMethod(stop)  # the threads keep the object alive, this must not
        self._process = os.getpid()
        _all.add(self)

    def start(self, work: Callable[..., object], *arguments: Any, name: str) -> None:
        """Start a thread that calls `work`, a method of the object."""
        thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
        thread.start()
        self.threads.append(thread)

    @property
    def elsewhere(self) -> bool:
        """Whether the threads are in the process that this one was forked from."""
        return self._process != os.getpid()

    def check(self) -> None:
        """Raise RuntimeError where waiting for a thread would not end."""
        if self.elsewhere:
            raise RuntimeError(f"the threads of {self.name} stayed in the process that forked this one: make a new one here")

    def stop(self) -> None:
        """Tell the threads to end."""
        stop = self._stop()
        if stop is not None and any(thread.is_alive() for thread in self.threads):
            stop()

    def join(self, seconds: float | None = None) -> None:
        """Wait until the threads have ended, at most so many seconds. One of them may call it too."""
        deadline = None if seconds is None else monotonic() + seconds
        for thread in () if self.elsewhere else self.threads:
            if thread is not threading.current_thread():
                thread.join(None if deadline is None else max(deadline - monotonic(), 0.0))


_all: WeakSet[Workers] = WeakSet()
_locks: WeakSet[Any] = WeakSet()


def free_in_child(lock: L) -> L:
    """Return `lock`, which a child made by fork finds free, whichever thread had it.

    For locks that are held while a few Python objects change, each of them at once.
    """
    _locks.add(lock)
    return lock


@atexit.register
def _end_all() -> None:
    deadline, workers = monotonic() + _SECONDS, list(_all)
    for each in workers:
        each.stop()
    for each in workers:
        each.join(max(deadline - monotonic(), 0.0))


def _in_child() -> None:
    _all.clear()
    for lock in list(_locks):
        lock._at_fork_reinit()
    torch.set_num_threads(1)  # its OpenMP threads are not here either; the native module sees to its own


os.register_at_fork(after_in_child=_in_child)
