"""When kernels ran, from a profile's trace: how much of the sums' time a product ran too, and how much of an SM a kernel holds."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_SUM = re.compile(r"^(sum|window|add_groups)_kernel")
_PRODUCT = re.compile(r"gemm|xmma|cutlass|nvjet|splitk", re.IGNORECASE)
_WARP = 32
_UNIT = 256  # registers that a warp is given at a time


@dataclass(frozen=True)
class Kernel:
    """A kernel that ran: from `begin` to `end` in seconds, with what a program of it holds."""

    name: str
    begin: float
    end: float
    programs: int
    threads: int
    registers: int  # of a thread
    shared: int  # bytes of a program

    @property
    def sums(self) -> bool:
        return _SUM.search(self.name) is not None

    @property
    def multiplies(self) -> bool:
        return _PRODUCT.search(self.name) is not None

    @property
    def warps(self) -> int:
        return -(-self.threads // _WARP)


@dataclass(frozen=True)
class Multiprocessor:
    """What an SM has for programs: those of an H100 and H200 by default."""

    warps: int = 64
    programs: int = 32
    registers: int = 65536
    shared: int = 227 << 10


def profiled(work: Callable[[], object]) -> list[Kernel]:
    """The kernels of a run of `work`."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with tempfile.TemporaryDirectory() as folder:
        with torch.profiler.profile(activities=activities) as profile:
            work()
            torch.cuda.synchronize()
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return kernels(json.loads(path.read_text())["traceEvents"])


def kernels(events: Iterable[dict[str, Any]]) -> list[Kernel]:
    """Those of a Chrome trace as torch's profiler writes it, in order of their begin."""
    found = []
    for event in events:
        if event.get("cat") == "kernel":
            told, begin = event["args"], event["ts"] / 1e6
            grid, block = told.get("grid", [1, 1, 1]), told.get("block", [1, 1, 1])
            found.append(
                Kernel(
                    event["name"],
                    begin,
                    begin + event["dur"] / 1e6,
                    grid[0] * grid[1] * grid[2],
                    block[0] * block[1] * block[2],
                    int(told.get("registers per thread", 0)),
                    int(told.get("shared memory", 0)),
                )
            )
    return sorted(found, key=lambda kernel: kernel.begin)


def beside(some: Sequence[Kernel], others: Sequence[Kernel]) -> float:
    """The share of the time of `some` in which one of `others` ran too.

    >>> a, b = (Kernel("", begin, begin + 2.0, 1, 32, 0, 0) for begin in (0.0, 1.5))
    >>> beside([a], [b])
    0.25
    """
    whole = shared = 0.0
    for begin, end in _joined(some):
        whole += end - begin
        shared += sum(max(min(end, to) - max(begin, of), 0.0) for of, to in _joined(others))
    return shared / whole if whole else 0.0


def _joined(those: Sequence[Kernel]) -> list[tuple[float, float]]:
    """When any of them ran: intervals that do not meet."""
    spans: list[tuple[float, float]] = []
    for one in sorted(those, key=lambda kernel: kernel.begin):
        if spans and one.begin <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], one.end)
        else:
            spans.append((one.begin, one.end))
    return spans


def programs_of_sm(kernel: Kernel, sm: Multiprocessor | None = None) -> int:
    """How many programs of a kernel fit an SM at a time, by warps, registers and shared memory."""
    sm = sm or Multiprocessor()
    of_warp = -(-kernel.registers * _WARP // _UNIT) * _UNIT
    bounds = [sm.programs, sm.warps // kernel.warps]
    if of_warp:
        bounds.append(sm.registers // (of_warp * kernel.warps))
    if kernel.shared:
        bounds.append(sm.shared // kernel.shared)
    return min(bounds)


def held(kernel: Kernel, count: int, sm: Multiprocessor | None = None) -> float:
    """The share of the warps of `count` SMs that a kernel may hold: as many programs as fit, or as it has.

    >>> held(Kernel("", 0.0, 1.0, 10_000, 32, 64, 0), 132)
    0.5
    """
    sm = sm or Multiprocessor()
    programs = min(programs_of_sm(kernel, sm) * count, kernel.programs)
    return programs * kernel.warps / (sm.warps * count)
