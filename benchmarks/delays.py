"""Accuracy with a delay of the first layer's weights: ten seeds of each policy beside `flush` with steps of as many batches.

    python benchmarks/delays.py [--seeds 10] [--json]

Needs the datasets pubmed, coauthor_physics and amazon_computers (HEADRACE_DATA). One process: what a batch reads is a function of
its update alone, so ranks change nothing but the speed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time

import headrace as hr
from headrace.train import Watcher

DATASETS = {
    "pubmed": {"batch_size": 10, "features": "rows", "epochs": 60, "lr": 0.01},
    "coauthor_physics": {"batch_size": 20, "epochs": 20, "validate_every": 5, "lr": 0.003},
    "amazon_computers": {"batch_size": 20, "features": "standardize", "epochs": 60, "validate_every": 5, "lr": 0.003},
}
POLICIES = {"stash": 1, "double_buffer": 3}  # and the batches of a step


def accuracies(data: hr.Dataset, versions: str, accumulate: int, seeds: int, **more: object) -> list[float]:
    """Test accuracies of each seed's best weights."""
    options = hr.train.NodeOptions(
        model="gcn",
        hidden=64,
        fanout=(10, 10),
        weight_decay=5e-4,
        accumulate=accumulate,
        parallel="push_pull",
        versions=versions,
        repeats=seeds,
        **more,  # type: ignore[arg-type]
    )
    result = hr.train.node(data, options, watcher=Watcher())
    return [float(value) for value in result.scores["test_accuracy"].values]


def main() -> None:
    """Print a row for each dataset and policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--datasets", default=",".join(DATASETS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.datasets.split(","):
        data = hr.load(name)
        for versions, accumulate in POLICIES.items():
            begin = time.perf_counter()
            exact, late = (accuracies(data, v, accumulate, arguments.seeds, **DATASETS[name]) for v in ("flush", versions))
            error = math.sqrt((statistics.variance(exact) + statistics.variance(late)) / arguments.seeds)
            means = statistics.fmean(exact), statistics.fmean(late)
            rows.append(
                {
                    "bench": "delays",
                    "case": f"{name}, {versions}, steps of {accumulate} batches",
                    "metric": "test accuracy",
                    "unit": "share",
                    "ours": means[1],
                    "peers": {"flush": means[0]},
                    "limit": None,
                    "standard_error": error,
                    "errors_apart": abs(means[1] - means[0]) / error if error else 0.0,
                    "seconds": time.perf_counter() - begin,
                }
            )
            row = rows[-1]
            if not arguments.json:
                print(
                    f"{row['case']}: {means[1]:.2%}, flush {means[0]:.2%}, {row['errors_apart']:.2f} standard errors apart",
                    flush=True,
                )
    if arguments.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
