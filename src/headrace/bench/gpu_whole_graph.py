"""Seconds of a training step of GCN and GIN on a whole graph on a GPU, beside PyG in the fastest of its forms."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import torch

from headrace.bench import peers
from headrace.bench.gpu import copy_rate, needs_gpu, seconds_of
from headrace.bench.measure import Row
from headrace.bench.setting import Setting
from headrace.bench.whole_models import CASES, FORMS, TYPES, Case, Precision, Training, check_losses, ours, pyg, whole
from headrace.graph import Dataset
from headrace.loader import WholeBatch

_STEPS = 3  # of which losses are compared


@dataclass(frozen=True)
class _Measured:
    seconds: float
    peak: int  # bytes on the GPU above what was there before
    losses: list[float]


def run(setting: Setting) -> list[Row]:
    """fp32 and bf16. PyG's forms are compared with the first model, and the fastest is measured with all, in both types. The limit
    is the bytes of the sums over the GPU's memory bandwidth, every neighbor's row read anew (reuse may beat it), and the matrix
    products. Memory is that of the graph, the features and the step."""
    device = needs_gpu()
    data = setting.dataset()
    if data.x is None or data.y is None:
        raise ValueError("this dataset has no features or no labels to train with")
    bandwidth = 2 * copy_rate(device, repeats=setting.repeats)  # a copy reads and writes
    products = {kind: _product_rate(dtype, device) for kind, dtype in TYPES.items()}
    form = _fastest_form(setting, data, device) if setting.wants("pyg") and peers.has_pyg() else None
    _free()
    nothing = torch.cuda.memory_allocated()
    there = WholeBatch(data, 1).to(device).data
    rows: list[Row] = []
    for case in CASES:
        found = _case(setting, data, there, case, form, nothing)
        flop = case.flop(data)
        for precision, dtype in TYPES.items():
            moved = case.sum_bytes(data, dtype.itemsize)
            floor = moved / bandwidth + flop / products[precision]
            title = f"{case}, {precision}, {data.num_nodes} nodes, {data.num_edges} edges"
            metric = f"step, {moved / 1e9:.1f} GB of sums, {flop / 1e9:.0f} GFLOP of products"
            own = found[f"ours, {precision}"]
            others = _others(found, precision)
            times = {name: measured.seconds for name, measured in others.items()}
            peaks = {name: measured.peak / 2**20 for name, measured in others.items()}
            rows.append(Row("gpu-whole-graph", title, metric, "s", own.seconds, times, floor))
            rows.append(Row("gpu-whole-graph", f"{title}, memory", "peak of a step", "MiB", own.peak / 2**20, peaks))
    return rows


def _case(setting: Setting, data: Dataset, there: Dataset, case: Case, form: str | None, nothing: int) -> dict[str, _Measured]:
    """Everybody's time, memory and first losses, of which the losses agree."""
    makers: dict[str, Callable[[], Training]] = {}
    for precision in TYPES:
        makers[f"ours, {precision}"] = _maker(case, there, precision, "auto")
        makers[f"ours, {precision}, sums at every step"] = _maker(case, there, precision, "never")
    if form is not None:
        for precision in TYPES:
            makers[f"PyG, {form}, {precision}"] = _pyg_maker(case, data, there.graph.device, form, precision)
    found: dict[str, _Measured] = {}
    for name, make in makers.items():
        measured = _measure(make, nothing if name.startswith("ours") else None, repeats=setting.repeats)
        said = "no room, or no such product"
        if measured is not None:
            found[name], said = measured, f"{1e3 * measured.seconds:.3f} ms, {measured.peak / 2**20:.0f} MiB"
            kind: Precision = "bf16" if "bf16" in name else "fp32"
            check_losses(measured.losses, found["ours, fp32"].losses, name, precision=kind)
        setting.progress(f"{case}: {name}: {said}")
    return found


def _others(found: dict[str, _Measured], precision: Precision) -> dict[str, _Measured]:
    """Who stands beside ours: ours with sums at every step, and PyG, whose fp32 may be faster than its bf16."""
    plain = f"ours, {precision}, sums at every step"
    others = {"ours, sums at every step": found[plain]} if plain in found else {}
    allowed = {name: m for name, m in found.items() if name.startswith("PyG") and (precision == "bf16" or name.endswith("fp32"))}
    if allowed:
        best = min(allowed, key=lambda name: allowed[name].seconds)
        others[best] = allowed[best]
    return others


def _fastest_form(setting: Setting, data: Dataset, device: torch.device) -> str | None:
    seconds: dict[str, float] = {}
    for form in FORMS:
        measured = _measure(_pyg_maker(CASES[0], data, device, form, "fp32"), None, repeats=2)
        if measured is not None:
            seconds[form] = measured.seconds
            setting.progress(f"{CASES[0]}: PyG, {form}, fp32: {1e3 * measured.seconds:.3f} ms, {measured.peak / 2**20:.0f} MiB")
    return min(seconds, key=lambda form: seconds[form]) if seconds else None


def _maker(case: Case, there: Dataset, precision: Precision, keep: str) -> Callable[[], Training]:
    return lambda: ours(case, whole(case, there, keep), precision)  # type: ignore[arg-type]


def _pyg_maker(case: Case, data: Dataset, device: torch.device, form: str, precision: Precision) -> Callable[[], Training]:
    return lambda: pyg(case, data, device, form, precision)


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
        seconds = seconds_of(training.step, repeats=repeats, warmup=0)
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


def _product_rate(dtype: torch.dtype, device: torch.device) -> float:
    a, b = torch.randn(200_000, 256, device=device).to(dtype), torch.randn(256, 256, device=device).to(dtype)
    return 2 * len(a) * 256 * 256 / seconds_of(lambda: a @ b, repeats=20)
