"""Event streams by static memory, batch size and trainers: test figures, and MRR by iteration, over seeds.

    python benchmarks/temporal.py --out temporal.jsonl [--datasets enron,...] [--arms dynamic,both,...] [--batches 200,600,2400]
    python benchmarks/temporal.py --out temporal.jsonl --report [--json]

Reads the datasets from HEADRACE_DATA. A run is a line of the output; runs that are there are not made again, so a sweep may be
stopped and continued. `dynamic` has node memory, `static` rows that a first pass learnt, `both` their sum. `IxJxK` are trainers as
lanes of one process, of `dynamic` or, with `both-` before it, of `both`. Every line has the heuristics that need no learning, on
the same events and candidates; a curve has [iterations, epochs, MRR of validation] of every validation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.graph.known.named import named
from headrace.temporal import cut_events, parse_parallel
from headrace.train import Run, TemporalOptions, Watcher

DATASETS: dict[str, dict[str, Any]] = {"bitcoin_otc": {"epochs": 10}, "enron": {"epochs": 10}, "jodie_wikipedia": {"epochs": 6}}
ARMS: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"model": "tgat", "static": "learned"},
    "both": {"static": "learned"},
}
FIGURES = ("ap", "auc", "mrr")


@dataclass(frozen=True)
class Job:
    """One training."""

    dataset: str
    arm: str
    batch: int
    seed: int
    epochs: int
    changed: str = ""  # options that differ from the defaults, as name=value

    @property
    def key(self) -> tuple[str, str, int, int, int, str]:
        return self.dataset, self.arm, self.batch, self.seed, self.epochs, self.changed

    def options(self, threads: int) -> TemporalOptions:
        """Of the training."""
        base, _, parallel = self.arm.rpartition("-") if "x" in self.arm else (self.arm, "", "1x1x1")
        changed = {name: json.loads(value) for name, _, value in (part.partition("=") for part in self.changed.split(";") if part)}
        every = {"validate_every": 1} if "x" in self.arm else {"validate_every": 0}
        about = {"epochs": self.epochs, "batch_size": self.batch, "seed": self.seed, "parallel": parallel, "threads": threads}
        return TemporalOptions(**(ARMS[base or "dynamic"] | every | about | changed))


def trained(job: Job, data: hr.Dataset, threads: int) -> dict[str, Any]:
    """The line of a run."""
    options = job.options(threads)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = hr.train.temporal(data, options, out=Path(folder) / "run", watcher=Watcher())
        epochs = Run(Path(folder) / "run").metrics("epoch")
    stream = hr.EventStream.of(data)
    i, j, k = parse_parallel(options.parallel)
    batches = len(cut_events(stream, 0, stream.splits().train, options.batch_size)) - 1
    sweep = hr.temporal.schedule(i, j, k, batches).iterations
    curve = [[(line["epoch"] + 1) * sweep, (line["epoch"] + 1) * j * k, line["val_mrr"]] for line in epochs if line.get("val_mrr")]
    test = result.test
    inductive = {} if test["inductive"] is None else {name: float(test["inductive"][name]) for name in FIGURES}
    return {
        **dict(zip(("dataset", "arm", "batch", "seed", "epochs", "changed"), job.key, strict=True)),
        "test": {name: float(test[name]) for name in FIGURES},
        "inductive": inductive,
        "heuristic": {kind: {name: figures[name] for name in FIGURES} for kind, figures in test["heuristic"].items()},
        "protocol": test["protocol"],
        "seconds": time.perf_counter() - begin,
        "curve": curve,
    }


def read(out: Path) -> list[dict[str, Any]]:
    """The runs of a file; a last line that was cut is left out."""
    return [json.loads(line) for line in out.read_bytes().split(b"\n")[:-1]] if out.exists() else []


def report(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each dataset, arm, batch size and change."""
    runs: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in lines:
        runs.setdefault(tuple(line[name] for name in ("dataset", "batch", "arm", "epochs", "changed")), []).append(line)
    best = {key: statistics.fmean(max((p[2] for p in line["curve"]), default=0.0) for line in of) for key, of in runs.items()}
    rows = []
    for key in sorted(runs, key=str):
        dataset, batch, arm, epochs, changed = key
        of, alone = runs[key], (dataset, batch, arm[:-5] + "1x1x1", epochs, changed)
        reached = []
        if "x" in arm and alone in runs:
            target = best[alone]
            reached = [next((p[0] for p in line["curve"] if p[2] >= target), None) for line in of]
        row = {
            "bench": "temporal",
            "case": f"{dataset}, {arm}, batch {batch}, {epochs} epochs{', ' * bool(changed)}{changed}",
            "metric": "test",
            "unit": "share",
            "seeds": len(of),
            "ours": {name: statistics.fmean(line["test"][name] for line in of) for name in FIGURES},
            "std": {name: _std([line["test"][name] for line in of]) for name in FIGURES},
            "peers": {
                kind: {name: statistics.fmean(line["heuristic"][kind][name] for line in of) for name in FIGURES}
                for kind in of[0]["heuristic"]
            },
            "limit": None,
            "best_validation_mrr": best[key] if of[0]["curve"] else None,
            "iterations": of[0]["curve"][-1][0] if of[0]["curve"] else None,
            "iterations_to_equal": None if not reached or None in reached else statistics.fmean(reached),
            "seconds": statistics.fmean(line["seconds"] for line in of),
        }
        rows.append(row)
    return rows


def _std(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _shown(row: dict[str, Any]) -> str:
    ours, std = row["ours"], row["std"]
    figures = ", ".join(f"{name} {ours[name]:.4f} ± {std[name]:.4f}" for name in FIGURES)
    peers = "; ".join(f"{kind} ap {of['ap']:.4f}, mrr {of['mrr']:.4f}" for kind, of in row["peers"].items())
    curve = ""
    if row["best_validation_mrr"] is not None:
        equal = row["iterations_to_equal"]
        curve = f"; validation mrr {row['best_validation_mrr']:.4f} at best in {row['iterations']} iterations, that of 1x1x1 after "
        curve += "none" if equal is None else f"{equal:.0f}"
    return f"{row['case']} ({row['seeds']} seeds, {row['seconds']:.0f} s): {figures} | {peers}{curve}"


def main() -> None:
    """Make the runs that lack, and print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of runs, a line of JSON each")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--epochs", type=int, default=0, help="of every run (default: the dataset's)")
    parser.add_argument("--datasets", default=",".join(DATASETS))
    parser.add_argument("--arms", default=",".join(ARMS), help="dynamic, static, both, 1x1x4, both-1x1x4, ...")
    parser.add_argument("--batches", default="200,600,2400")
    parser.add_argument("--changed", default="", help="options that differ, as 'lr=0.0003;attention=\"pyg\"'")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--report", action="store_true", help="only print the rows of runs that are there")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    if not chosen.report:
        names = chosen.datasets.split(",")
        jobs = [
            Job(name, arm, int(batch), int(seed), chosen.epochs or DATASETS.get(name, {}).get("epochs", 10), chosen.changed)
            for seed in chosen.seeds.split(",")
            for name in names
            for batch in chosen.batches.split(",")
            for arm in chosen.arms.split(",")
        ]
        done = {tuple(line[n] for n in ("dataset", "arm", "batch", "seed", "epochs", "changed")) for line in read(chosen.out)}
        opened: dict[str, hr.Dataset] = {}
        for number, job in enumerate(jobs, start=1):
            if job.key in done:
                continue
            if job.dataset not in opened:
                opened = {job.dataset: named(job.dataset)}
            line = trained(job, opened[job.dataset], chosen.threads)
            with open(chosen.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            what = f"{job.dataset} {job.arm} batch {job.batch} seed {job.seed}: {line['test']}"
            print(f"{number} of {len(jobs)}: {what}, {line['seconds']:.0f} s", file=sys.stderr, flush=True)
    rows = report(read(chosen.out))
    print(json.dumps(rows) if chosen.json else "\n".join(map(_shown, rows)))


if __name__ == "__main__":
    main()
