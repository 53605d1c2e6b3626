"""What the commands give without options: every labelled dataset and five knowledge graphs, beside published figures.

    python benchmarks/defaults.py [--only cora,umls] [--jobs 8] [--threads 2] [--keep FILE] [--json] [-- OPTIONS]

Reads the datasets from HEADRACE_DATA. One seed each, as a new user would run it: `headrace train node NAME`, `train link NAME`.
`--jobs` runs that many at a time, each with `--threads`; with `--json` a line is printed for each as it ends. Rows that are in the
file of `--keep` are not run again, and new ones are added to it: a table that was stopped goes on. What stands behind `--` is
given to every run of `train node`, for a look at other defaults.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr

# Of each dataset its measure and the published figures that the default may be compared with.
NODES: dict[str, tuple[str, dict[str, float]]] = {
    "cora": ("accuracy", {"GCN (Kipf and Welling, 2017)": 81.5}),
    "pubmed": ("accuracy", {"GCN (Kipf and Welling, 2017)": 79.0}),
    "amazon_computers": ("accuracy", {"GCN (Shchur et al., 2018)": 82.6, "GraphSAGE": 82.4}),
    "coauthor_cs": ("accuracy", {"GCN (Shchur et al., 2018)": 91.1, "GraphSAGE": 91.3}),
    "coauthor_physics": ("accuracy", {"GCN (Shchur et al., 2018)": 92.8, "GraphSAGE": 93.0}),
    "blogcatalog_attr": ("accuracy", {"GCN (Wang et al., 2020)": 69.8}),
    "citation_dblp": ("accuracy", {"GCN, 10 % for training (Zhu et al., 2020)": 82.7}),
    "squirrel_filtered": ("accuracy", {"GCN (Platonov et al., 2023)": 39.47, "SAGE": 36.09}),
    "actor": ("accuracy", {"GCN (Yan et al., 2022)": 27.3, "GraphSAGE": 34.2}),
    "tolokers": ("auc", {"GCN (Platonov et al., 2023)": 83.64, "SAGE": 82.43}),
    "minesweeper": ("auc", {"GCN (Platonov et al., 2023)": 89.75, "SAGE": 93.51}),
}
# Where a figure was published for a random split: the shares for training and validation. The dataset's own has 20 nodes a class.
SPLITS = {"citation_dblp": (0.1, 0.1)}
LINKS: dict[str, dict[str, float]] = {
    "fb15k237": {"ComplEx (Ruffinelli et al., 2020)": 0.348},
    "codex_m": {"ComplEx (Safavi and Koutra, 2020)": 0.337},
    "umls": {"ConvE (Dettmers et al., 2018)": 0.94},
    "kinships": {"ConvE (Dettmers et al., 2018)": 0.83},
    "nations": {"ConvE (Dettmers et al., 2018)": 0.82},
}


def ran(task: str, name: str, threads: int, options: list[str]) -> tuple[dict[str, Any], float]:
    """The result of a run without options but those given, and its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        data = resplit(name, Path(folder) / "data", *SPLITS[name]) if name in SPLITS else name
        words = [sys.executable, "-m", "headrace", "train", task, data, "--out", str(Path(folder) / "run"), "--json"]
        words += ["--threads", str(threads), *(options if task == "node" else [])]
        begin = time.perf_counter()
        few = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=few)
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
        return json.loads(done.stdout.strip().splitlines()[-1]), time.perf_counter() - begin


def resplit(name: str, place: Path, train: float, val: float) -> str:
    """Where the dataset was saved with a random split."""
    data = hr.load(name)
    nodes = np.random.default_rng(0).permutation(data.num_nodes)
    begins = [round(train * len(nodes)), round((train + val) * len(nodes))]
    splits = dict(zip(("train", "val", "test"), map(np.sort, np.split(nodes, begins)), strict=True))
    replace(data, splits=splits).save(place)
    return str(place)


def case(name: str, options: list[str]) -> str:
    """The command that a row stands for."""
    return " ".join(["train", "node", name, *options] if name in NODES else ["train", "link", name])


def kept(place: Path | None) -> dict[str, dict[str, Any]]:
    """The rows of an earlier call, by command."""
    lines = place.read_text().splitlines() if place is not None and place.exists() else []
    return {scores["case"]: scores for scores in map(json.loads, lines)}


def row(name: str, threads: int, options: list[str]) -> dict[str, Any]:
    """One row of the table."""
    task = "node" if name in NODES else "link"
    result, seconds = ran(task, name, threads, options)
    measure, published = NODES[name] if task == "node" else ("mrr", LINKS[name])
    value = result[f"test_{measure}"] if task == "node" else result["test"][measure]
    ours = float(value["mean"] if isinstance(value, dict) else value) * (100 if task == "node" else 1)
    return {
        "bench": "defaults",
        "case": case(name, options),
        "metric": f"test {measure}",
        "unit": "%" if task == "node" else "",
        "ours": ours,
        "peers": published,
        "limit": None,
        "met": met(task, ours, published),
        "seconds": seconds,
        "threads": threads,
    }


def met(task: str, ours: float, published: dict[str, float]) -> bool:
    """Within 3 points of one of the figures, or within 15 % of one of an MRR."""
    return any(ours >= (value - 3 if task == "node" else 0.85 * value) for value in published.values())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join([*NODES, *LINKS]))
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=2, help="of each run")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="rows in it are not run again; new ones are added")
    parser.add_argument("options", nargs="*", help="of every run of train node")
    arguments = parser.parse_args()
    done = kept(arguments.keep)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        runs = {}
        for name in arguments.only.split(","):
            if (scores := done.get(case(name, arguments.options))) is not None:
                show(name, scores, as_json=arguments.json)
            else:
                runs[pool.submit(row, name, arguments.threads, arguments.options)] = name
        for run in as_completed(runs):
            if (error := run.exception()) is not None:
                print(f"{runs[run]}: {error}", file=sys.stderr, flush=True)
                continue
            if arguments.keep is not None:
                with arguments.keep.open("a") as lines:
                    lines.write(json.dumps(run.result()) + "\n")
            show(runs[run], run.result(), as_json=arguments.json)


def show(name: str, scores: dict[str, Any], *, as_json: bool) -> None:
    """Print a row."""
    peers = ", ".join(f"{peer} {value:g}" for peer, value in scores["peers"].items())
    table = f"| {name} | {scores['metric']} | {scores['ours']:.4g} | {peers} | {scores['seconds']:.0f} |"
    print(json.dumps(scores) if as_json else table, flush=True)


if __name__ == "__main__":
    main()
