"""`headrace bench gpu-snapshots`: the same operators on one stream and on two, captured, with bounds on the programs of a sum."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from headrace.bench.measure import Row, copy_rate, needs_gpu, product_rate, seconds_of
from headrace.bench.peers import has_pyg
from headrace.bench.setting import Setting
from headrace.bench.snapshots.intervals import Kernel, beside, held, profiled, programs_of_sm
from headrace.bench.snapshots.step import CELLS, HIDDEN, WIDE, Case, Outcome, check_same, large_sequence
from headrace.snapshots.streams import TwoStreams
from headrace.train.options import option

_NODES, _EDGES = 200_000, 10_000_000
_ONE = "one stream, captured"
_TWO = "two streams, captured"
_PEER = "PyG's layers"


@dataclass(frozen=True)
class GpuSnapshotSetting(Setting):
    """Options of `headrace bench gpu-snapshots`."""

    device: Literal["cpu", "cuda"] = option("cuda", "what is measured; on a CPU there is one stream and nothing is captured")
    preset: str = option("snapshots", "generated sequence: snapshots")
    scale: float = option(1.0, "its size, 1 being 200,000 nodes and 10,000,000 edges")
    repeats: int = option(7, "steps of each, of which the median counts")
    models: tuple[str, ...] = option(("tgcn", "gclstm"), "cells: tgcn, gclstm")
    window: int = option(4, "snapshots of a group; a step has two groups")
    programs: tuple[int, ...] = option((2, 4, 8, 16), "bounds on the programs of a sum, for each SM, that are tried beside none")

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := sorted(set(self.models) - CELLS.keys()):
            raise ValueError(f"models must be among {', '.join(CELLS)}, not {unknown[0]!r}")
        if self.window < 1 or self.scale <= 0 or min(self.programs, default=1) < 1:
            raise ValueError("window, scale and programs must be above 0")


def run(setting: GpuSnapshotSetting) -> list[Row]:
    """Seconds of a step; where kernels overlap; how much of an SM they may hold. Loss and gradients are compared before."""
    device = torch.device("cpu") if setting.device == "cpu" else needs_gpu()
    nodes, edges = round(_NODES * setting.scale), round(_EDGES * setting.scale)
    setting.progress(f"generating {nodes:,} nodes and {edges:,} edges")
    snapshots = large_sequence(nodes, edges, setting.window + 1, device)
    rows = []
    for model in setting.models:
        case = Case.of(snapshots, model, setting.window)
        name = f"{model}, {nodes:,} nodes, {edges:,} edges, {WIDE} -> {HIDDEN}, 2 groups of {setting.window}"
        rows += _measured(name, case, model, setting, device)
        del case
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return rows


def _measured(name: str, case: Case, model: str, setting: GpuSnapshotSetting, device: torch.device) -> list[Row]:
    runs = _ours(case, setting, device)
    loss, gradients = case.launched(None, count=1)()
    truth: Outcome = loss, gradients
    for what, work in runs.items():
        check_same(work(), truth, f"{name}, {what}")
    if setting.wants("pyg") and has_pyg():
        try:
            peer = case.peer(model)
            check_same(peer(), truth, f"{name}, {_PEER}")
            runs[_PEER] = peer
        except torch.cuda.OutOfMemoryError:
            setting.progress(f"{_PEER} do not fit the memory of {device}, and are left out")
            torch.cuda.empty_cache()
    setting.progress(f"{name}: {len(runs)} ways in turn")
    seconds = timed(runs, device, setting.repeats)
    ours = min((what for what in seconds if what.startswith("two ")), key=seconds.__getitem__)
    copies, products = copy_rate(device, device, repeats=5), product_rate(torch.float32, device)
    limit = max(case.sums() / (2 * copies), case.operations() / products)  # a copy reads and writes
    others = {what: took for what, took in seconds.items() if what != ours}
    rows = [Row(name, f"a step, {ours}", "s", seconds[ours], others, limit)]
    if device.type == "cuda":
        rows += _profiled(name, runs, ours)
    return rows


def _ours(case: Case, setting: GpuSnapshotSetting, device: torch.device) -> dict[str, Callable[[], Outcome]]:
    """Ways to run the step, by name. All but the first have the same operators."""
    if device.type == "cpu":
        return {"one lane": case.launched(None, count=1), "two lanes, one after the other": case.launched(None)}
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    runs = {
        "one lane, captured": case.captured(None, count=1),
        "one stream, launched": case.launched(None),
        _ONE: case.captured(None),
        "two streams, launched": case.launched(TwoStreams(device)),
        _TWO: case.captured(TwoStreams(device)),
    }
    for each in setting.programs:
        for first in (False, True):
            bounded = TwoStreams(device, programs=each * multiprocessors, first=first)
            runs[f"{_TWO}, {each} programs an SM{', sums first' if first else ''}"] = case.captured(bounded)
    return runs


def timed(runs: dict[str, Callable[[], Outcome]], device: torch.device, repeats: int) -> dict[str, float]:
    """Median seconds of each by the device's clock, in turns that begin with another one each time."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for turn in range(repeats + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            took = seconds_of(partial(_forgotten, runs[name]), device, repeats=1, warmup=0)
            if turn:
                seconds[name].append(took)
    return {name: statistics.median(took) for name, took in seconds.items()}


def _forgotten(work: Callable[[], Outcome]) -> None:
    work()


def _profiled(name: str, runs: dict[str, Callable[[], Outcome]], ours: str) -> list[Row]:
    """What a profile of one step says: of ours, and of the same operators on one stream and on two without a bound."""
    traces = {what: profiled(runs[what]) for what in dict.fromkeys((ours, _ONE, _TWO))}
    shares = {what: beside(_sums(trace), _products(trace)) for what, trace in traces.items()}
    rows = [Row(name, f"share of the sums' time in which a product ran too, {ours}", "share", shares.pop(ours), shares, 1.0)]
    count = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    for what, trace in traces.items():
        if _sums(trace) and _products(trace):
            longest = [max(some, key=lambda kernel: kernel.end - kernel.begin) for some in (_sums(trace), _products(trace))]
            what = f"share of the SMs' warps that a kernel may hold, {what}: {_holds(longest[0])}"
            product = {f"its product: {_holds(longest[1])}": held(longest[1], count)}
            rows.append(Row(name, what, "share", held(longest[0], count), product))
    return rows


def _sums(trace: list[Kernel]) -> list[Kernel]:
    return [kernel for kernel in trace if kernel.sums]


def _products(trace: list[Kernel]) -> list[Kernel]:
    return [kernel for kernel in trace if kernel.multiplies]


def _holds(kernel: Kernel) -> str:
    each = f"{kernel.warps} warps, {kernel.registers} registers a thread, {kernel.shared:,} bytes shared"
    return f"{kernel.programs:,} programs of {each}; {programs_of_sm(kernel)} fit an SM"
