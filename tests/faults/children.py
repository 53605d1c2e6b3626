"""Commands in children that are forked from one process which has imported everything, so that each costs milliseconds.

A fork is safe here because this process never computes: it has started no threads of OpenMP or of torch when it forks.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # before torch is imported: this process must not have threads

import typer  # noqa: E402 - after the threads are set

from headrace.cli import app  # noqa: E402

_COMMAND = typer.main.get_command(app)  # made once: that takes as long as a small command
_POLL_SECONDS = 0.002
_WORDS = 1 << 13  # bytes that a command may always write: its log is a file, too


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code, or minus the signal that killed it."""

    code: int
    output: str
    seconds: float
    hung: bool

    @property
    def crashed(self) -> bool:
        """Whether it died of a fault of its own. SIGABRT ends children that hang, and those are counted as such."""
        return not self.hung and -self.code in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)

    @property
    def traceback(self) -> bool:
        """Whether the user was shown one."""
        return "Traceback (most recent call last)" in self.output or "Exception ignored" in self.output


class Child:
    """A forked process that does `work` and exits with what it returns, its output in the file `log`.

    file_bytes: the largest file that it may write; more is an error, as on a full disk.
    sync_seconds: how much longer it takes to flush a file to the disk.
    """

    def __init__(
        self,
        work: Callable[[], int | None],
        log: Path,
        *,
        file_bytes: int | None = None,
        sync_seconds: float = 0.0,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.log, self.began = log, time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        unmasked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        self.pid = os.fork()
        if self.pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, unmasked)
        else:
            code = 70
            try:
                _prepare(log, file_bytes, sync_seconds, environment or {})
                try:
                    signal.pthread_sigmask(signal.SIG_SETMASK, unmasked)  # a signal that came before comes now
                    code = work() or 0
                except KeyboardInterrupt:  # as the command's entry point does
                    code = 130
            except SystemExit as exit_:
                code = exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else 1
            except BaseException:
                traceback.print_exc()
            finally:
                try:
                    sys.stdout.flush()
                    sys.stderr.flush()
                finally:
                    os._exit(code & 0xFF)

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float) -> Ended | None:
        """How it ended, or None if it has not after so long."""
        until = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return self._ended(status, hung=False)
            if time.monotonic() >= until:
                return None
            time.sleep(_POLL_SECONDS)

    def finish(self, limit: float) -> Ended:
        """Wait for it; after `limit` seconds it hangs: it is made to write its stacks to the log, and killed."""
        ended = self.wait(limit)
        if ended is not None:
            return ended
        self.send(signal.SIGABRT)
        _, status = os.waitpid(self.pid, 0)
        return self._ended(status, hung=True)

    def _ended(self, status: int, *, hung: bool) -> Ended:
        output = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return Ended(os.waitstatus_to_exitcode(status), output, time.monotonic() - self.began, hung)


def command(arguments: list[str]) -> Callable[[], int | None]:
    """The work of `headrace ARGUMENTS`."""

    def work() -> int | None:
        sys.argv = ["headrace", *arguments]
        _COMMAND.main(arguments, prog_name="headrace")
        return 0

    return work


def _prepare(log: Path, file_bytes: int | None, sync_seconds: float, environment: dict[str, str]) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, handle), (2, handle)):
        os.dup2(source, target)
    sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    faulthandler.enable(file=2, all_threads=True)
    os.environ.update(environment)
    if file_bytes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = max(file_bytes, _WORDS)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if sync_seconds:
        quick = os.fsync

        def slow(handle: int) -> None:
            time.sleep(sync_seconds)
            quick(handle)

        os.fsync = slow
