"""How much memory this process holds, as the system counts it."""

from __future__ import annotations

import resource
import sys


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


def _status(name: str) -> int:
    try:
        with open("/proc/self/status", encoding="ascii") as lines:
            return next((int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":")), 0)
    except OSError:
        return 0
