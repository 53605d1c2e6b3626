"""One rank of data-parallel trainings, run by test_ranks.py as `rank_training.py FOLDER CASE...`; weights go to FOLDER/CASE.pt.

A case is MODEL or MODEL@HOW (see `HOWS`), and either with :resume, and with :N, after which batch rank 0 kills itself.
"""

import os
import signal
import sys
from pathlib import Path

import torch

import headrace as hr
from headrace.train import NodeOptions, Watcher, node

HOWS = {
    "ranks": {"share": "ranks"},
    "copies": {"share": "ranks", "replicate": "30%"},
    "push": {"parallel": "push_pull", "optimizer": "sgd"},
    "stash": {"parallel": "push_pull", "optimizer": "sgd", "versions": "stash"},
}


class Killed(Watcher):
    """Ends the process after so many batches, as a power cut would."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def step(self, event, clock):
        if event.step >= self.batches:
            os.kill(os.getpid(), signal.SIGKILL)


def data():
    return hr.generate.community(nodes=700, edges=7000, classes=4, features=8, seed=5)


def options(model, **more):
    """Of 70 training nodes 18 batches, the last of two: five steps an epoch, the last of two batches; 20 in all."""
    return NodeOptions(
        model=model,
        hidden=16,
        heads=4,
        fanout=(4, 3),
        epochs=4,
        batch_size=4,
        accumulate=4,
        dropout=0.5,
        norm="batch" if model == "gin" else "none",
        class_weights="balanced" if model == "gcn" else "none",
        checkpoint_seconds=0.0,
        log_every=1,
        threads=1,
        seed=3,
        lr=0.01,
        **more,
    )


def main(folder: Path, cases: list[str]) -> None:
    graph = data()
    for case in cases:
        name, *how = case.split(":")
        model, _, way = name.partition("@")
        watcher = Killed(int(how[-1])) if how and how[-1].isdigit() else None
        run = options(model, **HOWS.get(way, {}))
        result = node(graph, options=run, out=folder / name, resume="resume" in how, watcher=watcher)
        if os.environ.get("RANK", "0") == "0":
            torch.save(result.model.state_dict(), folder / f"{name}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
