"""A step on snapshot groups by strategy: balance, hoisting and overlap each alone, beside PyG's layers and the schedule."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headrace.bench.measure import CPU, Row, copy_rate, product_rate
from headrace.bench.setting import Setting, threads_of
from headrace.bench.snapshots.job import PEER, SYSTEMS, SnapshotJob
from headrace.train.options import option

_NODES, _EDGES, _GROUPS, _WINDOW = 20_000, 400_000, 8, 8  # of the mean snapshot; groups of a step and their snapshots
_SEED = 7  # sizes whose mean is 1 and whose equal counts take 1.30 times as long on two ranks, which is the mean over seeds


@dataclass(frozen=True)
class SnapshotSetting(Setting):
    """Options of `headrace bench snapshots`."""

    preset: str = option("snapshots", "generated sequence: snapshots")
    scale: float = option(1.0, "its size, 1 being 20,000 nodes and 400,000 edges in the mean snapshot")
    threads: int = option(1, "threads of each rank")
    repeats: int = option(3, "epochs of each, of which the median counts")
    ranks: int = option(2, "ranks")
    models: tuple[str, ...] = option(("tgcn", "gclstm"), "cells: tgcn, gclstm")


def run(setting: SnapshotSetting) -> list[Row]:
    """Seconds of a step by strategy, their ratios beside the schedule's, bytes; the limit is products and sums at their rates."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model in setting.models:
            rows += _case(Path(folder), generated(setting), model, setting, {"stack": 1, **_SHAPE})
        if setting.data is not None or (Path(os.environ.get("HEADRACE_DATA", "")) / "los_loop").is_dir():
            spec = setting.data or "los_loop"
            shape = {"window": 12, "horizon": 3, "groups": 32, "stack": 8, "test": 0.9}
            rows += _case(Path(folder), spec, "tgcn", setting, shape, ("balanced", "equal"))
    return rows


_SHAPE: dict[str, Any] = {"window": _WINDOW, "stride": _WINDOW, "groups": _GROUPS, "test": 0.0}


def generated(setting: SnapshotSetting) -> str:
    """The sequence: as many snapshots as the groups of a step have, and one to be forecast."""
    nodes, edges = round(_NODES * setting.scale), round(_EDGES * setting.scale)
    return f"generate:snapshots,nodes={nodes},edges={edges},steps={_GROUPS * _WINDOW + 1},features=64,seed={_SEED}"


def _case(
    folder: Path,
    spec: str,
    model: str,
    setting: SnapshotSetting,
    shape: dict[str, Any],
    systems: tuple[str, ...] = tuple(SYSTEMS),
) -> list[Row]:
    peer = setting.wants("pyg") and importlib.util.find_spec("torch_geometric") is not None
    job = SnapshotJob(folder, spec, model, setting.ranks, setting.threads, setting.repeats, peer, shape, systems)
    setting.progress(f"{model} on {spec}: {len(systems) + peer} systems in turn, {setting.ranks} ranks")
    measured = job.run()
    check_equal(measured["loss"])
    case = f"{model}, {spec}, {shape['groups']} groups of {shape['window']}, {setting.ranks} ranks of {setting.threads_named}"
    return _rows(case, measured, _limit(measured["work"], model, job, setting.ranks))


def check_equal(losses: dict[str, float]) -> None:
    """The same weights and groups give the same loss, or nothing is reported."""
    if max(losses.values()) - min(losses.values()) > 1e-4 * max(1.0, abs(min(losses.values()))):
        raise RuntimeError(f"losses of the first step differ, and nothing is reported: {losses}")


def _rows(case: str, measured: dict[str, Any], limit: float) -> list[Row]:
    step, told = measured["step"], measured["balance"]
    best = "everything on" if "everything on" in step else "balanced"
    rows = [Row(case, f"a step, {best}", "s", step[best], {name: took for name, took in step.items() if name != best}, limit)]
    if PEER in step and best != "balanced":
        rows.append(Row(case, "a step, balanced", "s", step["balanced"], {PEER: step[PEER]}, limit))
    schedule = {"the schedule says": measured["predicted"]["equal over balanced"]}
    rows.append(Row(case, "a step of equal counts over a balanced one", "times", step["equal"] / step["balanced"], schedule))
    ratios = {name: of["makespan"] / of["bound"] for name, of in told.items() if of.get("bound")}
    rows.append(Row(case, "slowest rank over the bound, balanced", "times", ratios.pop("balanced"), ratios, 1.0))
    sent = dict(measured["bytes"])
    rows.append(Row(case, "sent by a rank in a step, balanced", "bytes", sent.pop("balanced"), sent))
    return rows


def _limit(work: dict[str, float], model: str, job: SnapshotJob, ranks: int) -> float:
    """Seconds of a step's products at the rate of products, and of its sums of states at the rate of a copy, over all ranks."""
    hidden, inner = job.of("balanced").hidden, work["features"]
    wide = {"tgcn": 3 * hidden * (inner + hidden), "gclstm": 4 * hidden * (inner + 2 * hidden)}[model]
    bytes_moved = 2 * 4 * hidden * work["edges"] if model == "gclstm" else 0.0  # forward and back
    with threads_of(job.threads):
        products = product_rate(torch.float32)
        copies = copy_rate(CPU, CPU, repeats=5)
    return (3 * 2 * wide * work["nodes"] / products + bytes_moved / copies) / ranks
