"""A rank that is to train with others of another mind, run by `cluster/test_disagreement.py` as `disagreement_child.py FOLDER`.

Each case ends before the first step on all ranks, so one start serves all. Writes FOLDER/said.RANK.json: case -> what was said.
"""

import json
import sys
from pathlib import Path

import headrace as hr
from headrace.cluster import Part
from headrace.ranks import join
from headrace.train import NodeOptions, Watcher, node


class Steps(Watcher):
    def __init__(self):
        self.count = 0

    def step(self, event, clock):
        self.count += 1


def dataset(*, features=6, seed=5, classes=4):
    return hr.generate.community(nodes=300, edges=2000, classes=classes, features=features, seed=seed)


def options(**more):
    return NodeOptions(**{"hidden": 8, "fanout": (3, 2), "epochs": 1, "batch_size": 8, "threads": 1, **more})


def plan(rank, folder):
    """Of each case: the data and options of this rank, and which version of Headrace it has."""
    part = lambda kind, number=rank: Part.open(folder / kind, number)  # noqa: E731
    push_pull = {"parallel": "push_pull"}
    return {
        "data": (dataset(seed=5 + rank), {}, ""),
        "fewer classes": (dataset(classes=4 - rank), {}, ""),
        "option": (dataset(), {"lr": 0.01 * (rank + 1)}, ""),
        "delay": (dataset(), {**push_pull, "versions": ("flush", "stash")[rank]}, ""),
        "wire": (dataset(), {**push_pull, "wire": ("fp32", "bf16")[rank]}, ""),
        "version": (dataset(), {}, f".{rank}"),
        "partition": (part(("hash", "ldg")[rank]), {}, ""),
        "kind of partition": (part(("hash", "columns")[rank]), {}, ""),
        "number of a part": (part("hash", 0), {}, ""),
        "parts of more ranks": (part("three"), {}, ""),
        "columns": (dataset(features=1), push_pull, ""),
        "double_buffer": (dataset(), {**push_pull, "versions": "double_buffer", "accumulate": 5}, ""),
    }


def main(folder: Path) -> None:
    told, version = {}, hr.__version__
    with join() as ranks:
        for name, (data, more, suffix) in plan(ranks.rank, folder).items():
            steps, hr.__version__ = Steps(), version + suffix
            try:
                node(data, options=options(**more), watcher=steps)
                told[name] = "nothing was said"
            except ValueError as error:
                told[name] = str(error) if steps.count == 0 else f"after {steps.count} steps: {error}"
            ranks.all_gather(name)
        (folder / f"said.{ranks.rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
