"""Seconds of a training step of GCN and GIN on a whole graph, beside PyG in the fastest of its forms."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch.profiler import ProfilerActivity, profile

from headrace import _native
from headrace.bench import peers
from headrace.bench.measure import CPU, Row, copy_rate, needs_gpu, product_rate, seconds_of, time_in_turn
from headrace.bench.nodes.whole_models import (
    CASES,
    FORMS,
    TYPES,
    Case,
    Precision,
    Training,
    check_losses,
    ours,
    pyg,
    sum_bytes,
    whole,
)
from headrace.bench.setting import Setting, check_trainable, resident, threads_of
from headrace.graph import Dataset
from headrace.loader import WholeBatch

_BARE = 64  # columns of the rows that the bare loop takes
_OURS: dict[Precision, str] = {"fp32": "ours", "bf16": "ours, bf16"}
_STEPS = 3  # of which losses are compared


def on_cpu(setting: Setting) -> list[Row]:
    """Ours in fp32 and bf16, and with sums of the features made at every step. PyG's forms are compared with the first model, and
    the fastest is measured with all. The limit is the time of bare sums, every neighbor's row read anew (reuse may beat it), and
    of the matrix products."""
    data = setting.dataset()
    check_trainable(data)
    rows: list[Row] = []
    with threads_of(setting.threads):
        form = _fastest_form(setting, data) if setting.wants("pyg") and peers.has_pyg() else None
        for case in CASES:
            rows += _case_rows(setting, data, case, form)
    return rows


def _case_rows(setting: Setting, data: Dataset, case: Case, form: str | None) -> list[Row]:
    makers: dict[str, Callable[[], Training]] = {
        "ours": lambda: ours(case, whole(case, data)),
        "ours, sums at every step": lambda: ours(case, whole(case, data, "never")),
        "ours, bf16": lambda: ours(case, whole(case, data), "bf16"),
    }
    if form is not None:
        makers[f"PyG, {form}"] = lambda: pyg(case, data, CPU, form)
    setting.progress(f"{case}: checking")
    runs = {name: make() for name, make in makers.items()}
    losses = {name: [float(training.step()) for _ in range(_STEPS)] for name, training in runs.items()}
    for name, training in runs.items():
        check_losses(losses[name], losses["ours"], name, precision=training.precision)
    setting.progress(f"{case}: training")
    seconds = time_in_turn({name: training.step for name, training in runs.items()}, repeats=setting.repeats, warmup=0)
    rows = []
    theirs = {name: s for name, s in seconds.items() if not name.startswith("ours")}
    for precision, name in _OURS.items():
        others = theirs if precision == "bf16" else {n: s for n, s in seconds.items() if n not in _OURS.values()}
        title = f"{case}, {precision}, {setting.threads} threads"
        metric = f"step, {case.flop(data) / 1e9:.1f} GFLOP of products"
        floor = sums_and_products(case, data, TYPES[precision], setting.threads)
        rows.append(Row(title, metric, "s", seconds[name], others, floor))
    peaks = {name: _peak(training) / 2**20 for name, training in runs.items()}
    rows.append(Row(f"{case}, memory", "most that a step takes above the data", "MiB", peaks.pop("ours"), peaks))
    return rows


def _fastest_form(setting: Setting, data: Dataset) -> str:
    seconds = {}
    for form in FORMS:
        setting.progress(f"trying PyG, {form}")
        training = pyg(CASES[0], data, CPU, form)
        training.step()
        seconds[form] = seconds_of(training.step, CPU, repeats=2, warmup=0)
    setting.progress(f"{CASES[0]}: PyG takes " + ", ".join(f"{s:.3f} s from {form}" for form, s in seconds.items()))
    return min(seconds, key=lambda form: seconds[form])


def _peak(training: Training) -> int:
    """Bytes that torch holds at most during a step, above what it held before: activations, gradients, messages."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="torch.profiler")  # some builds grumble when it starts
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            training.step()
    held = most = 0
    assert seen.profiler is not None
    memory = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(memory, key=lambda event: event.start_ns()):
        held += event.nbytes()  # below 0 where it is given back
        most = max(most, held)
    return most


def sums_and_products(case: Case, data: Dataset, dtype: torch.dtype, threads: int) -> float:
    """Seconds of the sums and of the products, at the rates of the bare loop over rows of 64 and of one large product."""
    graph, narrow = data.graph, data.graph.indices.to(torch.int32)
    x = resident(torch.zeros(data.num_nodes, _BARE, dtype=dtype))
    out = resident(x)
    seconds = seconds_of(lambda: _native.bare_sum(x, graph.indptr, narrow, out, threads), CPU, repeats=3, warmup=0)
    rate = sum_bytes(data, _BARE, x.element_size()) / seconds
    return case.sum_bytes(data, x.element_size()) / rate + case.flop(data) / product_rate(dtype)


@dataclass(frozen=True)
class _Measured:
    seconds: float
    peak: int  # bytes on the GPU above what was there before
    losses: list[float]


def on_cuda(setting: Setting) -> list[Row]:
    """fp32 and bf16. PyG's forms are compared with the first model, and the fastest is measured with all, in both types. The limit
    is the bytes of the sums over the GPU's memory bandwidth, every neighbor's row read anew (reuse may beat it), and the matrix
    products. Memory is that of the graph, the features and the step."""
    device = needs_gpu()
    data = setting.dataset()
    check_trainable(data)
    bandwidth = 2 * copy_rate(device, device, repeats=setting.repeats)  # a copy reads and writes
    products = {kind: product_rate(dtype, device) for kind, dtype in TYPES.items()}
    form = _fastest_gpu_form(setting, data, device) if setting.wants("pyg") and peers.has_pyg() else None
    _free()
    nothing = torch.cuda.memory_allocated()
    on_gpu = WholeBatch(data, 1).to(device).data
    rows: list[Row] = []
    for case in CASES:
        measured = _measured_case(setting, data, on_gpu, case, form, nothing)
        flop = case.flop(data)
        for precision, dtype in TYPES.items():
            moved = case.sum_bytes(data, dtype.itemsize)
            floor = moved / bandwidth + flop / products[precision]
            title = f"{case}, {precision}, {data.num_nodes} nodes, {data.num_edges} edges"
            metric = f"step, {moved / 1e9:.1f} GB of sums, {flop / 1e9:.0f} GFLOP of products"
            own = measured[f"ours, {precision}"]
            others = _others(measured, precision)
            times = {name: other.seconds for name, other in others.items()}
            peaks = {name: other.peak / 2**20 for name, other in others.items()}
            rows.append(Row(title, metric, "s", own.seconds, times, floor))
            rows.append(Row(f"{title}, memory", "peak of a step", "MiB", own.peak / 2**20, peaks))
    return rows


def _measured_case(
    setting: Setting, data: Dataset, on_gpu: Dataset, case: Case, form: str | None, nothing: int
) -> dict[str, _Measured]:
    """Everybody's time, memory and first losses, of which the losses agree."""
    makers: dict[str, Callable[[], Training]] = {}
    for precision in TYPES:
        makers[f"ours, {precision}"] = partial(_ours_kept, case, on_gpu, "auto", precision)
        makers[f"ours, {precision}, sums at every step"] = partial(_ours_kept, case, on_gpu, "never", precision)
    if form is not None:
        for precision in TYPES:
            makers[f"PyG, {form}, {precision}"] = partial(pyg, case, data, on_gpu.graph.device, form, precision)
    by_name: dict[str, _Measured] = {}
    for name, make in makers.items():
        measured = _measure(make, nothing if name.startswith("ours") else None, repeats=setting.repeats)
        said = "no room, or no such product"
        if measured is not None:
            by_name[name], said = measured, f"{1e3 * measured.seconds:.3f} ms, {measured.peak / 2**20:.0f} MiB"
            kind: Precision = "bf16" if "bf16" in name else "fp32"
            check_losses(measured.losses, by_name["ours, fp32"].losses, name, precision=kind)
        setting.progress(f"{case}: {name}: {said}")
    return by_name


def _others(measured: dict[str, _Measured], precision: Precision) -> dict[str, _Measured]:
    """Who stands beside ours: ours with sums at every step, and PyG, whose fp32 may be faster than its bf16."""
    plain = f"ours, {precision}, sums at every step"
    others = {"ours, sums at every step": measured[plain]} if plain in measured else {}
    allowed = {name: m for name, m in measured.items() if name.startswith("PyG") and (precision == "bf16" or name.endswith("fp32"))}
    if allowed:
        best = min(allowed, key=lambda name: allowed[name].seconds)
        others[best] = allowed[best]
    return others


def _fastest_gpu_form(setting: Setting, data: Dataset, device: torch.device) -> str | None:
    seconds: dict[str, float] = {}
    for form in FORMS:
        measured = _measure(partial(pyg, CASES[0], data, device, form, "fp32"), None, repeats=2)
        if measured is not None:
            seconds[form] = measured.seconds
            setting.progress(f"{CASES[0]}: PyG, {form}, fp32: {1e3 * measured.seconds:.3f} ms, {measured.peak / 2**20:.0f} MiB")
    return min(seconds, key=lambda form: seconds[form]) if seconds else None


def _ours_kept(case: Case, on_gpu: Dataset, keep: Literal["auto", "never"], precision: Precision) -> Training:
    return ours(case, whole(case, on_gpu, keep), precision)


def _measure(make: Callable[[], Training], nothing: int | None, *, repeats: int) -> _Measured | None:
    """A step's time and memory, and the first losses; None where there is no room for it, or no product of such types. Memory is
    counted from `nothing`, or else from what is there."""
    _free()
    before = torch.cuda.memory_allocated() if nothing is None else nothing
    torch.cuda.reset_peak_memory_stats()
    try:
        training = make()
        losses = [float(training.step()) for _ in range(_STEPS)]
        peak = torch.cuda.max_memory_allocated() - before
        seconds = seconds_of(training.step, torch.device("cuda"), repeats=repeats, warmup=0)
    except torch.cuda.OutOfMemoryError:
        return None
    except RuntimeError as error:
        if "not implemented" in str(error) or "dtype" in str(error):  # sparse products of some types
            return None
        raise
    return _Measured(seconds, peak, losses)


def _free() -> None:
    gc.collect()
    torch.cuda.empty_cache()
