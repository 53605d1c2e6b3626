"""A rank of push-pull training in which one goes wrong, run by `cluster/test_rank_faults.py` as
`push_pull_fault_child.py MODE CULPRIT FOLDER`.

It goes wrong in the middle of an exchange: when the others have sent their sums and wait for its own.
"""

import os
import signal
import sys
from pathlib import Path

import headrace as hr
from headrace.cluster import Team
from headrace.train import NodeOptions, Watcher, node

AT = 30  # exchanges before


def main(mode: str, culprit: int, folder: Path) -> None:
    rank, exchanges = int(os.environ["RANK"]), 0
    reduce = Team.reduce

    def counted(*args):
        nonlocal exchanges
        exchanges += 1
        if exchanges == AT:
            (folder / f"ready.{rank}").write_text(str(os.getpid()))
            if rank == culprit and mode == "raise":
                raise OSError("the disk is gone")
            if rank == culprit and mode in ("kill", "stop"):
                os.kill(os.getpid(), signal.SIGKILL if mode == "kill" else signal.SIGSTOP)
        return reduce(*args)

    Team.reduce = counted
    data = hr.generate.community(nodes=700, edges=7000, classes=4, features=37, seed=5)
    usual = {"hidden": 16, "fanout": (4, 3), "batch_size": 4, "threads": 1, "validate": "none", "epochs": 10_000}
    node(data, NodeOptions(parallel="push_pull", versions="stash", **usual), out=folder / "run", watcher=Watcher())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
