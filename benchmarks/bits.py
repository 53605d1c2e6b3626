"""Hashes of the final weights of short training runs: whether a change of the code changed the bits of a result.

    python benchmarks/bits.py --json before.json          # on the old code
    python benchmarks/bits.py --compare before.json       # on the new code: exit status 1, with names, where a hash differs
    python benchmarks/bits.py --device cuda ...           # the runs of a GPU

Hashes depend on the processor and on torch: compare only what one machine computed. A run whose name ends in `-resumed` was
interrupted by Ctrl-C and resumed; its hash must be that of the uninterrupted run, or the script fails. To hash another checkout,
set PYTHONPATH to its `src`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

import headrace as hr

RESUMED, WITHOUT_DROPOUT = "-resumed", "-nodropout"
EPOCHS, STOP_AFTER = 2, 6  # a stop after six steps is in the second epoch of nodes and in the first of links
SHARED = {"epochs": EPOCHS, "threads": 1, "seed": 3, "log_every": 1, "checkpoint_seconds": 1e9}
# Nodes are validated after the last epoch alone, so that the best weights are the final ones; but for `node-sage-best`.
NODE = {**SHARED, "hidden": 32, "heads": 4, "fanout": (5, 4), "batch_size": 64, "lr": 0.01, "validate_every": EPOCHS}
LINK = {**SHARED, "dim": 16, "batch_size": 250, "negatives": 20, "chunks": 5, "lr": 0.1, "init": 0.1}
PARTS = {"partitions": 8, "buffer": 4}

ON_CPU: dict[str, dict[str, Any]] = {
    "node-sage": {},
    "node-sage-best": {"validate_every": 1, "epochs": 4, "lr": 0.1},
    "node-gat": {"model": "gat"},
    "node-gin": {"model": "gin"},
    "node-gcn-full-batch": {"model": "gcn", "full_batch": True, "fanout": (), "epochs": 8},
    "node-gatv2-full-batch": {"model": "gatv2", "full_batch": True, "fanout": (), "epochs": 8},
    "node-sage-disk": {"storage": "disk", "memory": "1MiB"},
    "node-sage-resident": {"storage": "resident", "memory": "250KiB", "partitions": 40},
    "node-sage-batch-norm": {"norm": "batch", "residual": True, "clip": 1.0, "schedule": "cosine"},
    "link-memory": {"decoder": "complex"},  # its step is native
    "link-memory-transe": {"decoder": "transe", "loss": "margin"},  # by autograd
    "link-memory-bf16": {"decoder": "distmult", "row_type": "bf16", "reciprocal": True},
    "link-all-nodes": {"decoder": "complex", "negatives": 0, "optimizer": "adagrad"},
    "link-disk": {"decoder": "complex", "storage": "disk", **PARTS},
    "link-encoder": {"decoder": "distmult", "encoder": "sage", "fanout": (4, 3)},
    "link-encoder-disk": {"decoder": "distmult", "encoder": "gcn", "fanout": (4,), "storage": "disk", **PARTS},
}
ON_CUDA: dict[str, dict[str, Any]] = {
    "node-sage-gpu": {"mode": "gpu", "capture": "never"},
    "node-sage-uva": {"mode": "uva", "device_cache": "20%", "capture": "never"},
    "node-sage-captured": {"mode": "gpu", "capture": "always", "epochs": 4},
    "node-sage-captured-uva-bf16": {"mode": "uva", "device_cache": "20%", "capture": "always", "precision": "bf16", "epochs": 4},
    "node-gat-gpu": {"model": "gat", "mode": "gpu", "capture": "never"},
    "node-gcn-full-batch": {"model": "gcn", "full_batch": True, "fanout": (), "epochs": 8},
    "node-sage-disk": {"storage": "disk", "memory": "1MiB", "capture": "never"},
    "link-device": {"decoder": "complex"},
    "link-device-transe": {"decoder": "transe", "loss": "margin"},
    "link-host": {"decoder": "complex", "storage": "host"},
    "link-disk": {"decoder": "complex", "storage": "disk", "buffer_on": "device", **PARTS},
    "link-encoder": {"decoder": "distmult", "encoder": "sage", "fanout": (4, 3)},
}


@dataclass(frozen=True)
class Case:
    """One run: its task, what it trains on, and whether it is interrupted."""

    name: str
    options: Any
    resumed: bool = False

    def hash(self) -> str:
        """The first 16 digits of the SHA-256 of the final weights."""
        with tempfile.TemporaryDirectory(prefix="headrace-bits-") as folder:
            out = Path(folder) / "run"
            train = _node if self.name.startswith("node") else _link
            if not self.resumed:
                return _hash(train(self.options, out))
            try:
                train(self.options, out, watcher=CtrlC())
            except KeyboardInterrupt:
                return _hash(train(self.options, out, resume=True))
            raise RuntimeError(f"{self.name} ended before it was interrupted: let it have more steps")


class CtrlC(hr.train.Watcher):
    """Interrupts the run after some steps, as Ctrl-C does."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, *event: Any, **facts: Any) -> None:
        """Counts a step."""
        self.steps += 1
        if self.steps == STOP_AFTER:
            os.kill(os.getpid(), signal.SIGINT)


def cases(device: str) -> Iterator[Case]:
    """All runs for a device: nodes also without dropout, and each also resumed."""
    for name, changes in (ON_CPU if device == "cpu" else ON_CUDA).items():
        if name.startswith("node"):
            options: Any = node_options(**changes, device=device)
            both = {name: options, name + WITHOUT_DROPOUT: replace(options, dropout=0.0, input_dropout=0.0)}
        else:
            both = {name: link_options(**changes, device=device)}
        for full_name, options in both.items():
            yield Case(full_name, options)
            yield Case(full_name + RESUMED, options, resumed=True)


def node_options(**changes: Any) -> Any:
    """Options of a run of nodes."""
    options = {**NODE, **changes}
    if "capture" in options and hr.train.NodeOptions().capture is False:  # 0.1 said True and False
        options["capture"] = options["capture"] == "always"
    return hr.train.NodeOptions(**options)


def link_options(**changes: Any) -> Any:
    """Options of an exact run (the default staleness) that is validated after its last epoch."""
    names = {field.name for field in fields(hr.train.LinkOptions)}
    every = "validate_every" if "validate_every" in names else "eval_every"  # 0.1 called it eval_every
    return hr.train.LinkOptions(**{**LINK, every: EPOCHS, **changes})


@cache
def community() -> hr.Dataset:
    """600 training nodes of 4000, with features of 734 KiB."""
    return hr.generate.community(nodes=4000, edges=32_000, classes=5, features=47, seed=2, splits=(0.15, 0.1, 0.2), threads=1)


@cache
def knowledge() -> hr.Dataset:
    """4500 training edges among 1000 nodes."""
    return hr.generate.knowledge(nodes=1000, edges=5000, relations=6, seed=2, threads=1)


def _node(options: Any, out: Path, **how: Any) -> dict[str, Tensor]:
    return hr.train.node(community(), options=options, out=out, **how).model.state_dict()


def _link(options: Any, out: Path, **how: Any) -> dict[str, Tensor]:
    result = hr.train.link(knowledge(), options, out=out, **how)
    weights = dict(result.decoder.state_dict())
    if result.encoder is not None:
        weights |= {f"encoder.{name}": value for name, value in result.encoder.state_dict().items()}
    if result.rows is not None:
        return {**weights, "rows": result.rows.rows}
    with hr.store.Partitioned.open(out / "rows", capacity=options.buffer) as store:
        return {**weights, "rows": torch.cat([rows for _, rows in store.scan()])}


def _hash(weights: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def main() -> int:
    """Print a line for each run; 1 where resumed runs differ from whole ones, or hashes from those of the file to compare with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", default="*", metavar="PATTERN", help="runs whose names match, as 'link-*'")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write names and hashes to this file")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="compare with the hashes of this file")
    chosen = parser.parse_args()
    print(f"headrace {Path(hr.__file__).parent}, torch {torch.__version__}", file=sys.stderr)
    begin = perf_counter()
    hashes: dict[str, str] = {}
    for case in cases(chosen.device):
        if fnmatch(case.name, chosen.only):
            hashes[case.name] = case.hash()
            print(f"{case.name:42}{hashes[case.name]}", flush=True)
    print(f"{len(hashes)} runs in {perf_counter() - begin:.0f} s", file=sys.stderr)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(hashes, indent=1) + "\n")
    wrong = [
        f"{name} is {hashes[name]}, and uninterrupted {hashes[name.removesuffix(RESUMED)]}"
        for name in hashes
        if name.endswith(RESUMED) and hashes[name] != hashes.get(name.removesuffix(RESUMED), hashes[name])
    ]
    if chosen.compare is not None:
        before = {name: value for name, value in json.loads(chosen.compare.read_text()).items() if fnmatch(name, chosen.only)}
        wrong += [
            f"{name} is {hashes.get(name, 'absent')}, and was {before.get(name, 'absent')}"
            for name in sorted(before.keys() | hashes.keys())
            if hashes.get(name) != before.get(name)
        ]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
