"""Ctrl-C between two steps, never within one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether somebody asked to stop."""

    def __init__(self) -> None:
        self.asked = False


class StopRequest(Exception):  # noqa: N818 - nothing went wrong
    """Somebody asked to stop, in a place where the state is whole."""


class Stopped(KeyboardInterrupt):
    """All ranks have stopped after the same step, and a checkpoint is written."""


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Within, the first Ctrl-C (or request to terminate) only sets `asked`; a second one interrupts at once.

    An update of weights that is interrupted halfway is neither the old nor the new model, so a loop looks at `asked` where its
    state is whole. Outside the main thread signals belong to somebody else, and nothing changes.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if interrupt.asked:
            raise KeyboardInterrupt
        interrupt.asked = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
