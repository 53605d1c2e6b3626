"""Full-graph training by flow, and by sampling: accuracy, epochs and seconds to equal accuracy, over seeds.

    python benchmarks/flows.py --out flows.jsonl [--processes 16] [--seeds 0-9] [--datasets pubmed,...] [--arms sync,pipe,...]
    python benchmarks/flows.py --out flows.jsonl --report [--json]

Reads the datasets from HEADRACE_DATA. A run is a line of the output; runs that are there are not made again, so a sweep may be
stopped and continued. Each process has one core. `sync` and `pipe` have the same bits: `pipe` is run for its seconds, and compared.
All arms have the same model, epochs and learning rate, and validate every ten epochs on the whole graph; flow async brings its
intervals together there. Equal accuracy: the mean over seeds of the best validation of `sync`, less half a point. Dorylus
(OSDI'21) needs 8 % more epochs with a lead of 0, and 41 % with 1.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import headrace as hr
from headrace.graph.known.named import named
from headrace.train import NodeOptions, Run, Watcher

# No input dropout: the first layer's sums are then made once, which the elastic design is about.
COMMON: dict[str, Any] = {
    "model": "gcn",
    "layers": 2,
    "lr": 0.01,
    "weight_decay": 5e-4,
    "dropout": 0.5,
    "input_dropout": 0.0,
    "validate_every": 10,
    "threads": 1,
}
DATASETS: dict[str, dict[str, Any]] = {  # the longest first
    "coauthor_physics": {"hidden": 16},
    "generate:reddit?scale=0.05": {"hidden": 64},
    "amazon_computers": {"features": "standardize", "hidden": 64},
    "pubmed": {"features": "rows", "hidden": 16},
}
ARMS: dict[str, dict[str, Any]] = {
    "sync": {"full_batch": True, "flow": "sync"},
    "pipe": {"full_batch": True, "flow": "pipe"},
    "lead0": {"full_batch": True, "flow": "async", "lead": 0},
    "lead1": {"full_batch": True, "flow": "async", "lead": 1},
    "lead2": {"full_batch": True, "flow": "async", "lead": 2},
    "5,5": {"fanout": (5, 5)},
    "10,10": {"fanout": (10, 10)},
    "25,10": {"fanout": (25, 10)},
}
EQUAL = 0.005  # below the best validation of sync


@dataclass(frozen=True)
class Job:
    """One training."""

    dataset: str
    arm: str
    seed: int
    epochs: int

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.dataset, self.arm, self.seed, self.epochs


def trained(job: Job, data: hr.Dataset) -> dict[str, Any]:
    """The line of a run: test accuracy of the best weights, and of every validation its epoch, accuracy and seconds so far."""
    options = NodeOptions(**COMMON, **DATASETS[job.dataset], **ARMS[job.arm], epochs=job.epochs, seed=job.seed)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        result = hr.train.node(data, options, out=Path(folder) / "run", watcher=Watcher())
        seconds = time.perf_counter() - begin
        lines = [line for line in Run(Path(folder) / "run").metrics() if line["kind"] == "epoch"]
    curve = []
    for line in lines:
        if line.get("val_accuracy") is not None:
            curve.append([line["epoch"] + 1, line["val_accuracy"], line["seconds"]])
    seen = {name: max((line.get("elastic", {}).get(name, 0) for line in lines), default=0) for name in ("lead", "age")}
    about = {"dataset": job.dataset, "arm": job.arm, "seed": job.seed, "epochs": job.epochs}
    return {**about, "test": float(result.scores["test_accuracy"]), "seconds": seconds, **seen, "curve": curve}


_core: multiprocessing.Queue[int]
_folder: Path
_opened: dict[str, hr.Dataset] = {}


def _begin(cores: multiprocessing.Queue[int], folder: Path) -> None:
    """Take a core for this process alone: kernels then use one thread."""
    global _folder
    _folder = folder
    core = cores.get()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)


def _run(job: Job) -> dict[str, Any]:
    if job.dataset not in _opened:
        _opened.clear()
        _opened[job.dataset] = hr.open(_folder / _file_name(job.dataset))
    return trained(job, _opened[job.dataset])


def _file_name(dataset: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in dataset)


def sweep(jobs: list[Job], out: Path, processes: int, folder: Path) -> None:
    """Make the runs, and append a line of each."""
    for name in dict.fromkeys(job.dataset for job in jobs):
        if not (folder / _file_name(name)).exists():  # once, and mapped by all processes
            print(f"reading {name}", file=sys.stderr, flush=True)
            named(name).save(folder / _file_name(name))
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    for place in range(processes):
        cores.put(usable[place % len(usable)])
    begin = time.monotonic()
    with context.Pool(processes, _begin, (cores, folder)) as pool, open(out, "a", encoding="utf-8") as file:
        for number, line in enumerate(pool.imap_unordered(_run, jobs), start=1):
            file.write(json.dumps(line) + "\n")
            file.flush()
            what = f"{line['dataset']} {line['arm']} seed {line['seed']}: {line['test']:.2%}, {line['seconds']:.0f} s"
            print(f"{number} of {len(jobs)}, {time.monotonic() - begin:.0f} s: {what}", file=sys.stderr, flush=True)


def read(out: Path) -> list[dict[str, Any]]:
    """The runs of a file; a last line that was cut is left out."""
    return [json.loads(line) for line in out.read_bytes().split(b"\n")[:-1]] if out.exists() else []


def reached(curve: Iterable[list[float]], target: float) -> tuple[float, float] | None:
    """Epoch and seconds of the first validation that has it; None where none has."""
    return next(((epoch, seconds) for epoch, value, seconds in curve if value >= target), None)


def report(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each dataset and arm."""
    rows = []
    for dataset in DATASETS:
        of = {arm: {line["seed"]: line for line in lines if (line["dataset"], line["arm"]) == (dataset, arm)} for arm in ARMS}
        if not of["sync"]:
            continue
        best = [max(value for _, value, _ in line["curve"]) for line in of["sync"].values()]
        target = statistics.fmean(best) - EQUAL
        for arm, runs in of.items():
            if runs:
                rows.append(_row(dataset, arm, runs, of["sync"], target))
    return rows


def _row(dataset: str, arm: str, runs: dict[int, Any], sync: dict[int, Any], target: float) -> dict[str, Any]:
    tests = [line["test"] for line in runs.values()]
    common = runs.keys() & sync.keys()
    apart = [runs[seed]["test"] - sync[seed]["test"] for seed in common]
    times = [(reached(runs[seed]["curve"], target), reached(sync[seed]["curve"], target)) for seed in common]
    both = [(mine, other) for mine, other in times if mine is not None and other is not None]
    return {
        "bench": "flows",
        "case": f"{dataset}, {arm}",
        "metric": "test accuracy",
        "unit": "share",
        "ours": statistics.fmean(tests),
        "peers": {"sync": statistics.fmean(line["test"] for line in sync.values())},
        "limit": None,
        "seeds": len(tests),
        "standard_error": _standard_error(tests),
        "minus_sync": statistics.fmean(apart) if apart else None,
        "minus_sync_error": _standard_error(apart),
        "epochs_to_equal": statistics.fmean(mine[0] for mine, _ in both) if both else None,
        "epochs_ratio": sum(m[0] for m, _ in both) / sum(o[0] for _, o in both) if both else None,
        "seconds_ratio": sum(m[1] for m, _ in both) / sum(o[1] for _, o in both) if both else None,
        "reached": sum(mine is not None for mine, _ in times),
        "seconds": statistics.fmean(line["seconds"] for line in runs.values()),
        "lead": max(line["lead"] for line in runs.values()),
        "age": max(line["age"] for line in runs.values()),
    }


def _standard_error(values: list[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> None:
    """Make the runs that lack, and print a row for each dataset and arm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of runs, a line of JSON each")
    parser.add_argument("--seeds", type=_seeds, default=range(10), help="a seed, or a range as 0-9")
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--datasets", default=",".join(DATASETS))
    parser.add_argument("--arms", default=";".join(ARMS), help="separated by ;")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where datasets are kept between sweeps (default: a temporary folder)")
    parser.add_argument("--report", action="store_true", help="only print the rows of runs that are there")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    if not chosen.report:
        done = {(line["dataset"], line["arm"], line["seed"], line["epochs"]) for line in read(chosen.out)}
        datasets, arms = [name for name in DATASETS if name in chosen.datasets.split(",")], chosen.arms.split(";")
        jobs = [Job(name, arm, seed, chosen.epochs) for name in datasets for seed in chosen.seeds for arm in arms]
        with tempfile.TemporaryDirectory() as folder:
            sweep([job for job in jobs if job.key not in done], chosen.out, chosen.processes, chosen.folder or Path(folder))
    rows = report(read(chosen.out))
    if chosen.json:
        print(json.dumps(rows))
        return
    for row in rows:
        apart = (
            "" if row["minus_sync"] is None else f", {100 * row['minus_sync']:+.2f} ± {100 * row['minus_sync_error']:.2f} to sync"
        )
        reach = (
            "never" if row["epochs_to_equal"] is None else f"x{row['epochs_ratio']:.2f} epochs, x{row['seconds_ratio']:.2f} seconds"
        )
        print(
            f"{row['case']}: {row['ours']:.2%} ± {row['standard_error']:.2%}{apart}; equal accuracy ({row['reached']} of "
            f"{row['seeds']}): {reach}; {row['seconds']:.1f} s, lead {row['lead']}, age {row['age']}"
        )


if __name__ == "__main__":
    main()
