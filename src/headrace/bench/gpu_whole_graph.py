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
from headrace.bench.whole_models import CASES, FORMS, TYPES, Case, Precision, Training, ours, pyg
from headrace.graph import Dataset


@dataclass(frozen=True)
class _Measured:
    seconds: float
    peak: int  # bytes on the GPU above what was there before the graph and the model came


def run(setting: Setting) -> list[Row]:
    """fp32 and bf16. The limit is the bytes of the sums over the GPU's memory bandwidth, every neighbour's row read anew (reuse
    may beat it), and the matrix products."""
    device = needs_gpu()
    data = setting.dataset()
    if data.x is None or data.y is None:
        raise ValueError("this dataset has no features or no labels to train with")
    bandwidth = 2 * copy_rate(device, repeats=setting.repeats)  # a copy reads and writes
    rows = []
    for case in CASES:
        for precision in ("fp32", "bf16"):
            rows += _case_rows(setting, data, case, precision, device, bandwidth)  # type: ignore[arg-type]
    return rows


def _case_rows(
    setting: Setting, data: Dataset, case: Case, precision: Precision, device: torch.device, bandwidth: float
) -> list[Row]:
    setting.progress(f"{case}, {precision}")
    found = {
        "ours": _measure(setting, data, case, lambda: ours(case, data, device, precision)),
        "ours, sums at every step": _measure(setting, data, case, lambda: ours(case, data, device, precision, keep="never")),
    }
    if setting.wants("pyg") and peers.has_pyg():
        best = _best_of_pyg(setting, data, case, precision, device)
        if best is not None:
            found[best[0]] = best[1]
    dtype = TYPES[precision]
    element = torch.empty(0, dtype=dtype).element_size()
    moved, flop = case.sum_bytes(data, element), case.flop(data)
    floor = moved / bandwidth + flop / _product_rate(dtype, device)
    title = f"{case}, {precision}, {data.num_nodes} nodes, {data.num_edges} edges"
    metric = f"step, {moved / 1e9:.1f} GB of sums, {flop / 1e9:.0f} GFLOP of products"
    own = found.pop("ours")
    times = {name: m.seconds for name, m in found.items() if m is not None}
    peaks = {name: m.peak / 2**20 for name, m in found.items() if m is not None}
    assert own is not None
    return [
        Row("gpu-whole-graph", title, metric, "s", own.seconds, times, floor),
        Row("gpu-whole-graph", f"{title}, memory", "peak of a step, graph and features included", "MiB", own.peak / 2**20, peaks),
    ]


def _best_of_pyg(
    setting: Setting, data: Dataset, case: Case, precision: Precision, device: torch.device
) -> tuple[str, _Measured] | None:
    """PyG's fastest form: of both types, where bf16 is asked for, since its fp32 may be faster."""
    found: dict[str, _Measured] = {}
    kinds: tuple[Precision, ...] = ("fp32",) if precision == "fp32" else ("fp32", "bf16")
    for kind in kinds:
        for form in FORMS:
            make = _pyg_maker(case, data, device, form, kind)
            measured = _measure(setting, data, case, make)
            if measured is not None:
                found[f"PyG, {form}, {kind}"] = measured
            setting.progress(f"{case}: PyG, {form}, {kind}: " + (f"{measured.seconds:.4f} s" if measured else "cannot"))
    if not found:
        return None
    name = min(found, key=lambda name: found[name].seconds)
    return name, found[name]


def _pyg_maker(case: Case, data: Dataset, device: torch.device, form: str, precision: Precision) -> Callable[[], Training]:
    return lambda: pyg(case, data, device, form, precision)


def _measure(setting: Setting, data: Dataset, case: Case, make: Callable[[], Training]) -> _Measured | None:
    """A step's time and memory, after its losses were checked; None where there is no room for it, or it has no such kernel."""
    _free()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    try:
        training = make()
        losses = [float(training.step()) for _ in range(3)]
        peak = torch.cuda.max_memory_allocated() - before
        seconds = seconds_of(training.step, repeats=setting.repeats)
    except torch.cuda.OutOfMemoryError:
        return None
    except RuntimeError as error:
        if "not implemented" in str(error) or "dtype" in str(error):  # sparse products of some types
            return None
        raise
    del training
    _free()
    _check(losses, data, case)
    return _Measured(seconds, peak)


def _check(losses: list[float], data: Dataset, case: Case) -> None:
    """The first losses are those of our fp32 model without kept sums, or nothing is timed."""
    truth = ours(case, data, needs_gpu(), keep="never")
    expected = [float(truth.step()) for _ in losses]
    del truth
    _free()
    for a, b in zip(losses, expected, strict=True):
        if not abs(a - b) <= 5e-2 * max(abs(b), 0.1):
            raise RuntimeError(f"{case}: losses {losses} are not {expected}: nothing is timed")


def _free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def _product_rate(dtype: torch.dtype, device: torch.device) -> float:
    a, b = torch.randn(200_000, 256, device=device).to(dtype), torch.randn(256, 256, device=device).to(dtype)
    return 2 * len(a) * 256 * 256 / seconds_of(lambda: a @ b, repeats=20)
