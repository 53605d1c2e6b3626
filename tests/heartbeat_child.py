"""A rank of a job in which one goes wrong. Run by `tests/ranks/test_heartbeat.py` as `heartbeat_child.py MODE CULPRIT FOLDER`."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from headrace.ranks import Exchange, guarded, join, sum_gradients
from headrace.store import SharedRows


def main():
    mode, culprit, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    with join("cpu", timeout=60) as ranks, guarded(ranks) as heartbeat:
        rows = SharedRows.of_machine(ranks, torch.full((8, 2), float(ranks.rank)))
        assert not rows.rows.any()  # those of rank 0
        heartbeat.on_end(lambda: (folder / f"cleaned.{ranks.rank}").touch())
        exchange = Exchange(ranks, timeout=60)
        (folder / f"ready.{ranks.rank}").write_text(f"{heartbeat._processes[ranks.rank].pid} {rows.name}")
        if mode == "end":
            time.sleep(ranks.rank)  # they end one after another, and are not missed
            return
        if ranks.rank == culprit:
            if mode == "raise":
                raise OSError("the disk is gone")
            time.sleep(100)
        # The others wait for it: in an exchange, or in the job's own group.
        if mode == "stop":
            dist.all_reduce(torch.zeros(1))
        with heartbeat.waits_for(lambda: f"Rank {ranks.rank} waits for gradients"):
            sum_gradients([torch.ones(10)], batches=3, exchange=exchange)


if __name__ == "__main__":
    main()
