"""Seconds of a training step of GCN and GIN on a whole graph, beside PyG in the fastest of its forms."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from time import perf_counter

import torch
from torch.profiler import ProfilerActivity, profile

from headrace import _native
from headrace.bench import peers
from headrace.bench.measure import Row, time_in_turn
from headrace.bench.setting import Setting, resident, threads_of
from headrace.bench.whole_models import (
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
from headrace.graph import Dataset

_CPU = torch.device("cpu")
_BARE = 64  # columns of the rows that the bare loop takes
_OURS: dict[Precision, str] = {"fp32": "ours", "bf16": "ours, bf16"}
_STEPS = 3  # of which losses are compared


def run(setting: Setting) -> list[Row]:
    """Ours in fp32 and bf16, and with sums of the features made at every step. PyG's forms are compared with the first model, and
    the fastest is measured with all. The limit is the time of bare sums, every neighbor's row read anew (reuse may beat it), and
    of the matrix products."""
    data = setting.dataset()
    if data.x is None or data.y is None:
        raise ValueError("this dataset has no features or no labels to train with")
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
        makers[f"PyG, {form}"] = lambda: pyg(case, data, _CPU, form)
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
        floor = _floor(case, data, TYPES[precision], setting.threads)
        rows.append(Row("whole-graph", title, metric, "s", seconds[name], others, floor))
    peaks = {name: _peak(training) / 2**20 for name, training in runs.items()}
    rows.append(Row("whole-graph", f"{case}, memory", "most that a step takes above the data", "MiB", peaks.pop("ours"), peaks))
    return rows


def _fastest_form(setting: Setting, data: Dataset) -> str:
    seconds = {}
    for form in FORMS:
        setting.progress(f"trying PyG, {form}")
        training = pyg(CASES[0], data, _CPU, form)
        training.step()
        seconds[form] = _median_step(training, 2)
    setting.progress(f"{CASES[0]}: PyG takes " + ", ".join(f"{s:.3f} s from {form}" for form, s in seconds.items()))
    return min(seconds, key=lambda form: seconds[form])


def _median_step(training: Training, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = perf_counter()
        training.step()
        times.append(perf_counter() - begin)
    return statistics.median(times)


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


def _floor(case: Case, data: Dataset, dtype: torch.dtype, threads: int) -> float:
    """Seconds of the sums and of the products, at the rates of the bare loop over rows of 64 and of one large product."""
    graph, narrow = data.graph, data.graph.indices.to(torch.int32)
    x = resident(torch.zeros(data.num_nodes, _BARE, dtype=dtype))
    out = resident(x)
    times = []
    for _ in range(3):
        begin = perf_counter()
        _native.bare_sum(x, graph.indptr, narrow, out, threads)
        times.append(perf_counter() - begin)
    rate = sum_bytes(data, _BARE, x.element_size()) / statistics.median(times)
    return case.sum_bytes(data, x.element_size()) / rate + case.flop(data) / _product_rate(dtype)


def _product_rate(dtype: torch.dtype) -> float:
    a, b = torch.randn(60_000, 256).to(dtype), torch.randn(256, 256).to(dtype)
    out = torch.empty(60_000, 256, dtype=dtype)
    times = []
    for _ in range(5):
        begin = perf_counter()
        torch.mm(a, b, out=out)
        times.append(perf_counter() - begin)
    return 2 * 60_000 * 256 * 256 / statistics.median(times)
