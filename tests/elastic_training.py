"""One server of elastic trainings, run by `cluster/elastic/test_training.py` as `elastic_training.py FOLDER CASE...`.

A case is MODEL:FLOW:INTERVALS, with :resume or :N, after which epoch rank 0 kills itself; weights go to FOLDER/CASE.pt.
"""

import os
import signal
import sys
from pathlib import Path

import torch

import headrace as hr
from headrace.train import NodeOptions, Watcher, node


class Killed(Watcher):
    """Ends the process after so many epochs, as a power cut would."""

    def __init__(self, epochs):
        self.epochs = epochs

    def step(self, event, clock):
        if event.epoch >= self.epochs:
            os.kill(os.getpid(), signal.SIGKILL)


def dataset():
    """Some nodes have no neighbor."""
    return hr.generate.community(nodes=300, edges=500, classes=4, features=13, seed=5)


def options(model, **more):
    usual = {
        "hidden": 16,
        "layers": 2,
        "heads": 4,
        "epochs": 20,
        "dropout": 0.5,
        "input_dropout": 0.3,
        "optimizer": "sgd",
        "lr": 0.05,
    }
    usual |= {"class_weights": "balanced", "clip": 0.5, "full_batch": True, "threads": 1, "seed": 3, "checkpoint_seconds": 0.0}
    usual |= {"inner_norm": "layer"} if model == "gin" else {}
    return NodeOptions(model=model, **{**usual, **more})


def main(folder, cases):
    for case in cases:
        name, *how = case.split("/")
        model, flow, intervals = name.split(":")
        watcher = Killed(int(how[0])) if how and how[0].isdigit() else Watcher()
        chosen = options(model, flow=flow, intervals=int(intervals))
        place = folder / name.replace(":", "-")
        result = node(dataset(), chosen, out=place, resume="resume" in how, watcher=watcher)
        if os.environ.get("RANK", "0") == "0":
            torch.save(result.model.state_dict(), f"{place}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
