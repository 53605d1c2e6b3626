"""Partitions a memory-mapped dataset and prints how much memory that took beside it: run by test_partition_memory.py."""

import json
import sys
import threading
from pathlib import Path

import headrace as hr
from headrace.cluster import estimate, partition

_SECONDS = 0.001  # between two looks


def held() -> int:
    """Bytes of memory of the process's own, without pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def main() -> None:
    data, out, by, columns = hr.open(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4] == "columns"
    small = hr.generate.community(nodes=50, edges=200, classes=2, features=8)
    partition(small, out / "first", parts=2, by=by, columns=columns)  # what is loaded and started once
    most, ended, before = 0, threading.Event(), held()

    def watch() -> None:
        nonlocal most
        while not ended.wait(_SECONDS):
            most = max(most, held())

    watcher = threading.Thread(target=watch)
    watcher.start()
    partition(data, out / "parts", parts=2, by=by, columns=columns)
    ended.set()
    watcher.join()
    estimated = estimate(data, parts=2, by=by).memory
    print(json.dumps({"took": most - before, "estimate": estimated, "data": data.nbytes}))


if __name__ == "__main__":
    main()
