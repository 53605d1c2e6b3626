"""How far a long command is, and stopping it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

_EVERY_SECONDS = 5.0
_AGAIN_SECONDS = 0.01


@contextmanager
def terminable() -> Iterator[None]:
    """Treat a request to terminate as Ctrl-C, so that temporary files go too."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread: signals are somebody else's
        yield
        return
    try:
        with _asked_again():
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _asked_again() -> Iterator[None]:
    """Python prints and forgets what is raised while an object is freed: an interrupt that came then comes again."""
    hook = sys.unraisablehook

    def ask_again(unraisable: sys.UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)
            return
        signal.signal(signal.SIGALRM, asked)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)

    def asked(number: int, frame: FrameType | None) -> None:
        if frame is None or frame.f_code is not ask_again.__code__:
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)  # not within the hook, where it would be lost again

    before = signal.getsignal(signal.SIGALRM)
    sys.unraisablehook = ask_again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        if signal.getsignal(signal.SIGALRM) is asked:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


@contextmanager
def progress_shown() -> Iterator[Callable[[str, int, int | None], None]]:
    """Bars on a terminal; elsewhere a line per step and every few seconds, on standard error."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                for earlier in tasks.values():
                    bars.update(earlier, visible=False)
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield show


def _lines() -> Callable[[str, int, int | None], None]:
    shown: tuple[str, float] = ("", 0.0)

    def show(what: str, done: int, total: int | None) -> None:
        nonlocal shown
        now = time.monotonic()
        if what == shown[0] and now - shown[1] < _EVERY_SECONDS:
            return
        shown = (what, now)
        typer.echo(f"{what} {100 * done // total}%" if total else what, err=True)

    return show
