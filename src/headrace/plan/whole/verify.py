"""`verify`: run what was chosen and what was not, and hold the prediction against the measurement."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from random import Random
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace import _native
from headrace.graph import Dataset, Graph
from headrace.kernels import aggregate, prepare
from headrace.loader import WholeBatch
from headrace.plan.decided import seconds
from headrace.plan.probe import wait_for
from headrace.plan.whole.plan import AS_IT_IS, Configuration, Plan
from headrace.plan.whole.sums import Kernel

NEAR = 1.1  # a choice is as good as the best if it takes at most this many times as long
_LEAST_SECONDS = 5e-3  # of one timing: shorter runs are repeated within it
_SECONDS = 0.25  # of all timings of one run, if they are short


@dataclass(frozen=True)
class Measured:
    """One variant: seconds as predicted and as measured. Variants of one `what` are compared with each other."""

    what: str
    name: str
    predicted: float
    measured: float
    chosen: bool


@dataclass(frozen=True)
class Verification:
    """All variants that were run, the chosen ones among them."""

    rows: tuple[Measured, ...]

    def ratio(self, what: str = "step") -> float:
        """How many times as long as the best variant the chosen one took."""
        of = [row for row in self.rows if row.what == what]
        if not of:
            raise ValueError(f"nothing was measured of {what!r}: there is {', '.join(sorted({row.what for row in self.rows}))}")
        return next(row.measured for row in of if row.chosen) / min(row.measured for row in of)

    def best(self, what: str = "step") -> Measured:
        """The fastest variant."""
        return min((row for row in self.rows if row.what == what), key=lambda row: row.measured)

    @property
    def worst_ratio(self) -> float:
        """The ratio of the choice that was furthest from the best."""
        return max((self.ratio(what) for what in {row.what for row in self.rows}), default=1.0)

    @property
    def within(self) -> bool:
        """Whether every choice was within a tenth of the best variant that was considered."""
        return self.worst_ratio <= NEAR

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON writes it."""
        return {"variants": [asdict(row) for row in self.rows], "worst_ratio": self.worst_ratio, "within": self.within}

    def __str__(self) -> str:
        lines = [f"{'':2}{'what':<20} {'variant':<44} {'predicted':>10} {'measured':>10}"]
        for row in self.rows:
            mark = "*" if row.chosen else " "
            lines.append(f"{mark} {row.what:<20} {row.name:<44} {seconds(row.predicted):>10} {seconds(row.measured):>10}")
        lines.append(f"the choices took at most {self.worst_ratio:.2f} x the time of the best variants")
        return "\n".join(lines)


def verify(
    plan: Plan,
    data: Dataset | Graph,
    *,
    repeats: int = 5,
    every: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Verification:
    """Time training steps of the planned configuration and of its alternatives, and sums by the planned kernels and theirs.

    Alternatives are the configurations that differ in one choice; with `every`, all that were costed. They take turns, and the
    median counts. A step is forward and backward; reordering is not in it, kept sums are by their share of the planned epochs.
    Features are drawn where there are none.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, not {repeats}")
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if plan.machine.device == "cuda" else []):
        rows = _steps(plan, _with_features(plan, data), repeats, every, progress)
    graph = data if isinstance(data, Graph) else data.graph
    ordered = graph if plan.order is None else graph.reordered(plan.order)
    by_width = {kernels[0].width: kernels for kernels in plan.kernels.values() if len(kernels) > 1}  # one alone has no rival
    for width, kernels in by_width.items():
        progress(f"timing sums of {width} columns")
        rows += _sums(plan, ordered, width, kernels, repeats)
    return Verification(tuple(rows))


def alternatives(plan: Plan, *, every: bool = False) -> list[Configuration]:
    """The planned configuration and those that differ from it in one choice, or all that were costed."""
    chosen = plan.configuration

    def differences(other: Configuration) -> int:
        ways = sum(a != b for a, b in zip(chosen.hows, other.hows, strict=True))
        return (chosen.order != other.order) + (chosen.dtype != other.dtype) + ways

    return sorted((c for c in plan.seconds_of if every or differences(c) <= 1), key=differences)


def _with_features(plan: Plan, data: Dataset | Graph) -> Dataset:
    whole = Dataset(data) if isinstance(data, Graph) else data
    if whole.x is not None and whole.x.dim() == 2 and whole.x.shape[1] == plan.workload.dims[0]:
        return whole if whole.x.is_floating_point() else replace(whole, x=whole.x.float())
    drawn = torch.randn(whole.num_nodes, plan.workload.dims[0], generator=torch.Generator().manual_seed(0))
    return replace(whole, x=drawn)


def _steps(plan: Plan, data: Dataset, repeats: int, every: bool, progress: Callable[[str], None]) -> list[Measured]:
    device = torch.device(plan.machine.device)
    wanted = alternatives(plan, every=every)
    nodes = data.splits.get("train", torch.arange(data.num_nodes))
    plain = Dataset(data.graph, x=data.x, splits={"train": nodes})
    placed: dict[tuple[str, torch.dtype], tuple[Dataset, Tensor]] = {}
    for order in dict.fromkeys(c.order for c in wanted):
        progress(f"preparing the nodes {order}" if order == AS_IT_IS else f"preparing the order {order}")
        known = plan.order if order == plan.configuration.order else None
        moved = plain if order == AS_IT_IS else plain.reorder(order if known is None else known)
        assert moved.x is not None
        graph = moved.graph.to(device)
        for dtype in dict.fromkeys(c.dtype for c in wanted if c.order == order):
            on_device = Dataset(graph, x=moved.x.to(device, dtype))
            placed[order, dtype] = on_device, moved.splits["train"].to(device)
    runs, extra = {}, {}
    for configuration in wanted:
        runs[configuration] = _step(plan, configuration, *placed[configuration.order, configuration.dtype])
        extra[configuration] = 0.0
        if "kept" in configuration.hows:
            extra[configuration] = _made_once(placed[configuration.order, configuration.dtype][0]) / plan.epochs
    progress(f"timing {len(runs)} ways to train")
    times = timed(runs, repeats=repeats, device=device)
    return [Measured("step", str(c), plan.seconds_of[c], times[c] + extra[c], c == plan.configuration) for c in wanted]


def _made_once(data: Dataset) -> float:
    """Seconds of the sum that is kept."""
    assert data.x is not None
    x, graph = data.x, data.graph

    def make() -> Tensor:
        return aggregate(x, graph.indptr, graph.indices)

    make()  # what is compiled at first is not counted
    return _seconds(make, 1, graph.device)


def _step(plan: Plan, configuration: Configuration, data: Dataset, nodes: Tensor) -> Callable[[], object]:
    device = data.graph.device
    torch.manual_seed(0)
    model = configuration.apply_to(plan.workload.build()).to(device)
    batch = WholeBatch(data, len(configuration.hows), uses=plan.epochs, keep_sum=configuration.keep_sum)
    labels = torch.zeros(len(nodes), dtype=torch.int64, device=device)
    half = configuration.dtype == torch.bfloat16

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
            loss = F.cross_entropy(model(batch).index_select(0, nodes).float(), labels)
        loss.backward()

    return step


def _sums(plan: Plan, graph: Graph, width: int, kernels: tuple[Kernel, ...], repeats: int) -> list[Measured]:
    device, dtype = torch.device(plan.machine.device), plan.configuration.dtype
    on_device = graph.to(device)
    x = torch.ones(graph.num_nodes, width, dtype=dtype, device=device)
    runs = {kernel.name: _sum(kernel, x, on_device, plan.machine.threads) for kernel in kernels}
    times = timed(runs, repeats=repeats, device=device)
    what = f"sum of {width} columns"
    return [Measured(what, k.name, k.cost.seconds, times[k.name], i == 0) for i, k in enumerate(kernels)]


def _sum(kernel: Kernel, x: Tensor, graph: Graph, threads: int) -> Callable[[], object]:
    if kernel.launch is not None:
        prepared = prepare(graph, kernel.launch)
        return lambda: aggregate(x, graph.indptr, graph.indices, prepared=prepared)
    options: dict[str, Any] = dict.fromkeys(("ids", "weight", "position", "scale", "where"))
    options |= {"threads": threads, "tile": kernel.columns}
    return lambda: _native.aggregate(x, graph.indptr, graph.indices, torch.empty_like(x), "sum", **options)


def timed(runs: Mapping[Any, Callable[[], object]], *, repeats: int, device: torch.device) -> dict[Any, float]:
    """Median seconds of each. They take turns, in another order each time, and run once before they are timed: what the one before
    left in the caches is not theirs to pay for. Short ones are repeated within a timing, and where a turn is short there are up to
    five times as many of them: other work of the machine disturbs those most."""
    inner, turn_seconds = {}, 0.0
    for name, run in runs.items():
        run()
        once = max(_seconds(run, 1, device), 1e-7)
        inner[name] = max(int(_LEAST_SECONDS / once), 1)
        turn_seconds += inner[name] * once
    turns = max(repeats, min(5 * repeats, int(_SECONDS * len(runs) / max(turn_seconds, 1e-7))))
    seconds: dict[Any, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for turn in range(turns):
        for name in Random(turn).sample(names, len(names)):
            runs[name]()
            seconds[name].append(_seconds(runs[name], inner[name], device))
    return {name: statistics.median(times) for name, times in seconds.items()}


def _seconds(run: Callable[[], object], count: int, device: torch.device) -> float:
    wait_for(device)
    begin = perf_counter()
    for _ in range(count):
        run()
    wait_for(device)
    return (perf_counter() - begin) / count
