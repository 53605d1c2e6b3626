"""One rank that trains from its own part alone, run by `cluster/test_over_parts.py` as `parts_training.py FOLDER CASE...`.

A case is MODEL:columns or MODEL:rows: the part is in FOLDER/KIND-RANK, where no other part is. Or MODEL:push_pull or MODEL:data:
the rank makes its part of the whole dataset (topology split). Weights go to FOLDER/CASE.pt.
"""

import os
import sys
from pathlib import Path

import torch

import headrace as hr
from headrace.cluster import Part
from headrace.train import NodeOptions, node


def dataset():
    return hr.generate.community(nodes=600, edges=2500, classes=4, features=37, seed=5)


def options(model, **more):
    """Of 60 training nodes 12 batches: three steps an epoch."""
    usual = {"hidden": 16, "heads": 4, "fanout": (4, 3), "epochs": 2, "batch_size": 5, "accumulate": 4, "dropout": 0.5}
    usual |= {"optimizer": "sgd", "lr": 0.05, "threads": 1, "seed": 3, "log_every": 1}
    return NodeOptions(model=model, **{**usual, **more})


def main(folder: Path, cases: list[str]) -> None:
    rank = int(os.environ["RANK"])
    for case in cases:
        model, kind = case.split(":")
        if kind in ("columns", "rows"):
            data, how = Part.open(folder / f"{kind}-{rank}"), options(model)
        else:
            data, how = dataset(), options(model, topology="split", parallel=kind)
        result = node(data, how, out=folder / f"{model}-{kind}")
        if rank == 0:
            torch.save(result.model.state_dict(), folder / f"{model}-{kind}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
