"""What tests of elastic workers share: where worker processes import from, and whether processes have ended."""

import os
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def worker_path() -> str:
    """What worker processes import from: what this process does."""
    return os.pathsep.join([str(TESTS), *filter(None, sys.path)])


def wait_for_end(pids, seconds=20.0):
    """Until these processes are no more."""
    deadline = time.monotonic() + seconds
    while alive := [pid for pid in pids if _is_alive(pid)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)


def _is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
