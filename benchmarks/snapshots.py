"""Forecasts on snapshot sequences: errors or MRR over seeds, beside baselines from the same windows.

    python benchmarks/snapshots.py --out snapshots.jsonl [--seeds 0-2] [--datasets los_loop,...] [--arms tgcn,...]
    python benchmarks/snapshots.py --out snapshots.jsonl --report [--json]

Reads the datasets from HEADRACE_DATA. A run is a line of the output; runs that are there are not made again, so a sweep may be
stopped and continued. One thread. Options are those that `headrace train snapshot DATASET` has of itself, but for the cell: what an
arm is called, with " alone" where the linear map of what came last is left out (--no-skip).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.train import Watcher

ARMS: dict[str, tuple[str, ...]] = {
    "chickenpox_hungary": ("tgcn", "gconvgru", "gclstm", "evolvegcno"),
    "england_covid": ("tgcn", "evolvegcno"),
    "twitter_tennis_rg17": ("tgcn", "evolvegcno"),
    "bitcoin_otc": ("evolvegcno", "evolvegcno alone", "tgcn"),
    "los_loop": ("tgcn",),
}
TARGETS: dict[str, dict[str, float]] = {
    "chickenpox_hungary": {"mse": 0.72},
    "los_loop": {"rmse": 5.13, "mae": 3.07},
    "bitcoin_otc": {"mrr": 0.085},
}


def trained(dataset: str, arm: str, seed: int) -> dict[str, Any]:
    """The line of a run."""
    cell, _, alone = arm.partition(" ")
    begin = time.perf_counter()
    options = {"model": cell, "seed": seed, "threads": 1, **({"skip": False} if alone else {})}
    result = hr.train.snapshot(hr.load(dataset), options, watcher=Watcher())
    test = {name.removeprefix("test_"): float(score) for name, score in result.scores.items() if name.startswith("test_")}
    about = {"dataset": dataset, "arm": arm, "seed": seed, "seconds": time.perf_counter() - begin}
    return {**about, "test": test, "baselines": result.baselines}


def read(out: Path) -> list[dict[str, Any]]:
    """The runs of a file; a last line that was cut is left out."""
    return [json.loads(line) for line in out.read_bytes().split(b"\n")[:-1]] if out.exists() else []


def report(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each dataset, arm and measure."""
    rows = []
    for dataset, arms in ARMS.items():
        for arm in arms:
            own = [line for line in lines if (line["dataset"], line["arm"]) == (dataset, arm)]
            for measure in own[0]["test"] if own else ():
                values = [line["test"][measure] for line in own]
                rows.append(
                    {
                        "bench": "snapshots",
                        "case": f"{dataset}, {arm}",
                        "metric": f"test {measure}",
                        "ours": statistics.fmean(values),
                        "standard_error": statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0,
                        "seeds": len(values),
                        "peers": {name: known[measure] for name, known in own[0]["baselines"].items()},
                        "limit": TARGETS.get(dataset, {}).get(measure),
                        "seconds": statistics.fmean(line["seconds"] for line in own),
                    }
                )
    return rows


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> None:
    """Make the runs that lack, and print a row for each dataset, arm and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of runs, a line of JSON each")
    parser.add_argument("--seeds", type=_seeds, default=range(3), help="a seed, or a range as 0-2")
    parser.add_argument("--datasets", default=",".join(ARMS))
    parser.add_argument("--arms", help="separated by commas (default: all of a dataset)")
    parser.add_argument("--report", action="store_true", help="only print the rows of runs that are there")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    done = {(line["dataset"], line["arm"], line["seed"]) for line in read(chosen.out)}
    for dataset in () if chosen.report else chosen.datasets.split(","):
        for arm in ARMS[dataset] if chosen.arms is None else chosen.arms.split(","):
            for seed in chosen.seeds:
                if (dataset, arm, seed) not in done:
                    line = trained(dataset, arm, seed)
                    with open(chosen.out, "a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
                    print(f"{dataset}, {arm}, seed {seed}: {line['test']}, {line['seconds']:.0f} s", file=sys.stderr, flush=True)
    rows = report(read(chosen.out))
    if chosen.json:
        print(json.dumps(rows))
        return
    for row in rows:
        beside = ", ".join(f"{name} {value:.4f}" for name, value in row["peers"].items())
        asked = "" if row["limit"] is None else f" (asked: {row['limit']})"
        print(
            f"{row['case']}: {row['metric']} {row['ours']:.4f} ± {row['standard_error']:.4f} over {row['seeds']} seeds{asked}; "
            f"{beside}; {row['seconds']:.0f} s"
        )


if __name__ == "__main__":
    main()
