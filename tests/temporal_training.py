"""One rank of temporal trainings, run by test_temporal_jobs.py as `temporal_training.py FOLDER CASE...`; weights go to CASE.pt.

A case is a shape such as 1x2x2, with :resume, and with :N, after which batch rank 0 kills itself, or :N@R, which rank R does.
"""

import os
import signal
import sys
from pathlib import Path

import torch

import headrace as hr
from headrace.train import TemporalOptions, Watcher, temporal
from headrace.train.events.recipe import TemporalRecipe


class Killed(Watcher):
    """Ends the process after so many batches, as a power cut would."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def step(self, event, clock):
        if event.step >= self.batches:
            os.kill(os.getpid(), signal.SIGKILL)


def die_before(batches: int) -> None:
    """Kill this process when it is about to read and write batches after so many, before it does."""
    loss = TemporalRecipe.loss

    def dying(self, batch, clock):
        if batch.turn is not None and batch.turn.writes and batch.turn.batch >= batches:
            os.kill(os.getpid(), signal.SIGKILL)
        return loss(self, batch, clock)

    TemporalRecipe.loss = dying


def data():
    return hr.EventStream.of(hr.generate.events(nodes=60, events=1200, new=0.02, seed=5))


def options(parallel, **more):
    base = {"hidden": 8, "neighbors": 3, "batch_size": 40, "dropout": 0.3, "lr": 1e-2, "heads": 2, "candidates": 3, "epochs": 8}
    run = {"checkpoint_seconds": 0.0, "log_every": 1, "threads": 1, "seed": 3}
    return TemporalOptions(**(base | run | {"parallel": parallel} | more))


def main(folder: Path, cases: list[str]) -> None:
    stream, rank = data(), os.environ.get("RANK", "0")
    for case in cases:
        parallel, *how = case.split(":")
        watcher = None
        for part in how:
            batches, _, victim = part.partition("@")
            if victim == rank:
                die_before(int(batches))
            elif batches.isdigit() and not victim:
                watcher = Killed(int(batches))
        result = temporal(stream, options(parallel), out=folder / parallel, resume="resume" in how, watcher=watcher)
        if rank == "0":
            torch.save(result.model.state_dict(), folder / f"{parallel}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
