"""`Process`: a process by more than its number, so that another one on its machine can look at it, and end it, safely."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Literal

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SHARED_MEMORY = Path("/dev/shm")
State = Literal["running", "stopped", "ended", "unknown"]


@dataclass(frozen=True)
class Process:
    """Where a process runs. Numbers of processes are used again, and mean others in a container: `started` and `namespace` tell."""

    host: str
    machine: str
    namespace: str  # of process numbers
    pid: int
    started: int  # clock ticks after the start of the machine

    @classmethod
    def current(cls) -> Process:
        """Describe this process."""
        stat = _stat(os.getpid())
        return cls(platform.node(), machine(), _namespace(), os.getpid(), -1 if stat is None else stat[1])

    def state(self) -> State:
        """Look it up in /proc; unknown where it is on another machine, or there is no /proc."""
        if self.started < 0 or (self.machine, self.namespace) != (machine(), _namespace()):
            return "unknown"
        try:
            stat = _stat(self.pid)
        except OSError:
            return "unknown"
        if stat is None or stat[1] != self.started or stat[0] in "ZX":
            return "ended"
        return "stopped" if stat[0] == "T" else "running"

    def kill_if_stopped(self) -> bool:
        """End the process by SIGKILL if it is stopped (SIGSTOP) and on this machine. Return whether it was."""
        if self.state() == "unknown" or not hasattr(os, "pidfd_open"):
            return False
        with suppress(OSError):  # it has ended, or belongs to another user
            handle = os.pidfd_open(self.pid)  # keeps meaning this process, whatever becomes of its number
            try:
                if self.state() == "stopped":
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    return True
            finally:
                os.close(handle)
        return False

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def machine() -> str:
    """Name this machine: two processes get the same name if they see one kernel and one shared memory. Containers may not."""
    boot = _BOOT.read_text().strip() if _BOOT.exists() else platform.node()
    return f"{boot} {os.stat(_SHARED_MEMORY).st_dev if _SHARED_MEMORY.exists() else ''}"


def ended(processes: Sequence[Process], ranks: Iterable[int], *, seconds: float = 0.0) -> list[int]:
    """The ranks whose processes have ended. A connection closes before its process has ended: wait up to `seconds` for one."""
    ranks, deadline = list(ranks), monotonic() + seconds
    while True:
        gone = [rank for rank in ranks if processes[rank].state() == "ended"]
        if gone or not ranks or monotonic() >= deadline:
            return gone
        sleep(0.02)


class RankGoneError(ConnectionError, RuntimeError):
    """Another rank ended, or cannot be reached. Collectives raise RuntimeError, whose sentence this one replaces."""


def told_gone(processes: Sequence[Process], ranks: list[int]) -> str:
    """Say which ranks are gone, and what is known of why."""
    names = " and ".join(f"rank {rank} ({processes[rank]})" for rank in ranks)
    why = "killed, crashed, or ended early" if ended(processes, ranks) else "ended, or the link is cut"
    return f"{names} {'is' if len(ranks) == 1 else 'are'} gone: {why}."


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and start time of a process, None if there is none (see proc_pid_stat(5): its name may hold any character)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[19])


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
