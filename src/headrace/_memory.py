"""How much memory this process holds, as the system counts it, and how much there is."""

from __future__ import annotations

import resource
import sys
from functools import cache
from pathlib import Path

from headrace._sizes import format_size


def resident_memory() -> int:
    """Bytes of memory the process holds now; its peak where the system does not tell."""
    return _status("VmRSS") or peak_memory()


def peak_memory() -> int:
    """The most bytes of memory the process has held."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return _status("VmHWM") or most  # ru_maxrss counts the parent's memory before exec too


def process_memory() -> dict[str, int]:
    """Both, as logs have them."""
    return {"resident": resident_memory(), "peak": peak_memory()}


@cache
def machine_memory() -> int:
    """Bytes of memory and swap that this process can have at the most: the machine's, or less where its group has a limit."""
    lines = dict(line.split(":", 1) for line in _lines(Path("/proc/meminfo")) if ":" in line)
    total = sum(int(lines[name].split()[0]) << 10 for name in ("MemTotal", "SwapTotal") if name in lines)
    limits = [_lines(Path("/sys/fs/cgroup", name)) for name in ("memory.max", "memory/memory.limit_in_bytes")]
    bounds = [total, *(int(limit[0]) for limit in limits if limit and limit[0].isdecimal())]
    return min([bound for bound in bounds if bound > 0], default=sys.maxsize)


def require_memory(needed: int, what: str, remedy: str) -> None:
    """ValueError where `what` takes more memory than there is, so that it is said before hours of work or an aborted process."""
    if needed > (most := machine_memory()):
        raise ValueError(f"{what} would take {format_size(needed)} of memory, and there are {format_size(most)}: {remedy}")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []


def _status(name: str) -> int:
    try:
        with open("/proc/self/status", encoding="ascii") as lines:
            return next((int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":")), 0)
    except OSError:
        return 0
