"""Trainings on snapshot groups by one rank or several: `python snapshot_training.py FOLDER CASE...`, as torchrun starts it.

A case with `:resume` goes on with the run that is there; with `:N@R`, rank R kills itself when it is about to begin its N-th step.
"""

import os
import signal
import sys
from pathlib import Path

import torch

import headrace as hr
from headrace.train import SnapshotOptions, Watcher, snapshot
from headrace.train.snapshots.recipe import SnapshotRecipe

CASES = {
    f"{model}-{strategy}-{'hoist' if hoist else 'plain'}-{'overlap' if overlap else 'alone'}": {
        "model": model,
        "strategy": strategy,
        "hoist": hoist,
        "overlap": overlap,
    }
    for model in ("tgcn", "gclstm")
    for strategy in ("balanced", "equal", "sequential", "vertex", "snapshot")
    for hoist in (True, False)
    for overlap in (True, False)
}
SHAPE = {
    "window": 3,
    "hidden": 8,
    "epochs": 2,
    "groups": 5,
    "stack": 2,
    "threads": 1,
    "val": 0.2,
    "lr": 0.01,
    "optimizer": "sgd",
    "checkpoint_seconds": 0.0,
}


def sequence():
    """Changing nodes; the third snapshot has no edges."""
    data = hr.generate.snapshots(nodes=20, edges=60, steps=24, features=3, seed=2)
    graphs = [([], []) if t == 2 else tuple(data.graph(t).edge_index()) for t in range(len(data))]
    return hr.Snapshots(graphs, data.num_nodes, x=data.x, y=data.y, mask=data.mask, nodes=data.nodes)


def killed_at(number):
    plain, steps = SnapshotRecipe.owners, []

    def owners(*given):
        steps.append(given)
        if len(steps) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*given)

    SnapshotRecipe.owners = owners


def main(folder, cases, resume=False, **more):
    for case in cases:
        case, *how = case.split(":")
        for number, victim in (part.split("@") for part in how if "@" in part):
            if victim == os.environ.get("RANK", "none"):
                killed_at(int(number))
        options = SnapshotOptions(**{**SHAPE, **CASES[case], **more})
        result = snapshot(sequence(), options, out=Path(folder) / case, watcher=Watcher(), resume=resume or "resume" in how)
        if (Path(folder) / case).is_dir() and result.run is not None:
            torch.save(result.model.state_dict(), Path(folder) / f"{case}.weights")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
