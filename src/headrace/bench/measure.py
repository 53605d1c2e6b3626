"""The harness: rows of figures, and the clocks of the CPU and of a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

import torch

from headrace.train import Watcher

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Row:
    """One figure: ours, that of every peer that is installed, and what the machine allows. All from the same run."""

    case: str
    metric: str
    unit: str
    ours: float
    peers: dict[str, float] = field(default_factory=dict)
    limit: float | None = None
    bench: str = ""  # set by `Bench.run`

    @property
    def higher_is_better(self) -> bool:
        return self.unit.endswith("/s") or self.unit == "share"

    def against(self, other: float) -> float:
        """How many times better ours is than another figure of this row."""
        better, worse = (self.ours, other) if self.higher_is_better else (other, self.ours)
        return better / worse if worse else float("inf")

    def as_dict(self) -> dict[str, Any]:
        return {"bench": self.bench} | asdict(self)


def rate_row(case: str, metric: str, unit: str, work: dict[str, float], seconds: dict[str, float]) -> Row:
    """A row of rates: each system's own work over its own time. `ours` and `limit` are reserved names."""
    rates = {name: work[name] / seconds[name] for name in seconds}
    limit = rates.pop("limit", None)
    return Row(case, metric, unit, rates.pop("ours"), rates, limit)


def time_row(case: str, metric: str, seconds: dict[str, float]) -> Row:
    """A row of plain times."""
    rest = dict(seconds)
    limit = rest.pop("limit", None)
    return Row(case, metric, "s", rest.pop("ours"), rest, limit)


def time_in_turn(runs: dict[str, Callable[[], object]], *, repeats: int, warmup: int = 1) -> dict[str, float]:
    """Median seconds of each run. They take turns, so that a slow spell of the machine meets all of them, and each turn
    begins with another one, so that none always comes after the same one."""
    for _ in range(warmup):
        for run in runs.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for turn in range(repeats):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begin = perf_counter()
            runs[name]()
            seconds[name].append(perf_counter() - begin)
    return {name: statistics.median(s) for name, s in seconds.items()}


def seconds_of(work: Callable[[], object], device: torch.device, *, repeats: int, warmup: int = 2) -> float:
    """Median seconds of `work` by the clock of the device."""
    for _ in range(warmup):
        work()
    times = []
    for _ in range(repeats):
        if device.type == "cpu":
            start = perf_counter()
            work()
            times.append(perf_counter() - start)
        else:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(float(begin.elapsed_time(end)) / 1e3)
    return statistics.median(times)


def wait_for(device: torch.device) -> None:
    """Let what was launched on a GPU come to its end."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def needs_gpu() -> torch.device:
    """The GPU, or an error that says what is missing."""
    if not torch.cuda.is_available():
        raise ValueError("this benchmark measures a GPU, and torch sees none here")
    try:
        import triton  # noqa: F401
    except ImportError as error:
        raise ValueError(f"this benchmark measures kernels of a GPU, which need Triton: {error}") from None
    return torch.device("cuda", torch.cuda.current_device())


def copy_rate(source: torch.device, target: torch.device, *, repeats: int) -> float:
    """Bytes per second of a large copy (bytes read; as many are written). From the host to a GPU it leaves page-locked memory."""
    size = 64 << 20 if target.type == "cpu" else 1 << 30
    pinned = source.type == "cpu" and target.type != "cpu"
    original = torch.zeros(size, dtype=torch.uint8, device=source, pin_memory=pinned)
    copy = torch.zeros(size, dtype=torch.uint8, device=target)
    return size / seconds_of(lambda: copy.copy_(original, non_blocking=True), target, repeats=repeats)


def product_rate(dtype: torch.dtype, device: torch.device = CPU) -> float:
    """Operations per second of the product of n x 256 and 256 x 256, with the matrix units that torch uses by default."""
    n, repeats = (60_000, 9) if device.type == "cpu" else (200_000, 20)
    a, b = torch.randn(n, 256, device=device).to(dtype), torch.randn(256, 256, device=device).to(dtype)
    out = torch.empty(n, 256, dtype=dtype, device=device)
    return 2 * n * 256 * 256 / seconds_of(lambda: torch.mm(a, b, out=out), device, repeats=repeats)


class Epochs(Watcher):
    """Keeps what a trainer says of its epochs."""

    def __init__(self) -> None:
        self.facts: list[dict[str, Any]] = []

    def epoch(self, facts: dict[str, Any]) -> None:
        self.facts.append(facts)
