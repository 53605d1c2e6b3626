"""Trains a partitioned store until it is killed, with a checkpoint now and then: run by test_partitioned_crash.py.

For every line of its input (path, seed) it forks a child that trains, prints the child's number, and waits for its end: the slow
part, importing, is done once.
"""

import os
import random
import sys

from headrace.pipeline import orders
from headrace.store import Partitioned
from partition_cases import update


def train(path: str, seed: int) -> None:
    drawn = random.Random(seed)
    with Partitioned.open(path, capacity=2, spare=1, direct="auto" if seed % 2 else False, threads=1) as store:
        assert isinstance(store.extra, dict)
        pairs = store.extra["pairs"]
        while True:
            with store.walk(orders.beta(4, 2)) as walk:
                for step in walk:
                    for i, j in step.buckets:
                        with walk.hold((i, j)):
                            update(store, len(pairs), store.rows_of(i), store.rows_of(j), store.state_width)
                        pairs.append((i, j))
                        if drawn.random() < 0.3:
                            store.checkpoint({"pairs": pairs})


def main() -> None:
    for line in sys.stdin:
        path, seed = line.split()
        child = os.fork()
        if child == 0:
            train(path, int(seed))
        print(child, flush=True)
        os.waitpid(child, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main()
