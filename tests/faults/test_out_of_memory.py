"""A native call that runs out of memory in a parallel loop raises MemoryError, where it once ended the process."""

import json
import sys
from pathlib import Path

import pytest

from child import run_python

CHILD = Path(__file__).with_name("out_of_memory.py")


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space, which Linux counts")
def test_memory_error_and_nothing_leaked():
    # A fixed threshold: every block of some size is a mapping of its own, which goes back to the system when it is freed; and one
    # arena, as those of threads hold 64 MiB each that a call could take without asking the system for more.
    done = run_python(str(CHILD), MALLOC_MMAP_THRESHOLD_="65536", MALLOC_ARENA_MAX="1")
    assert done.returncode == 0, f"ended with {done.returncode} in {done.stderr[-500:]}"
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(cases) == 9
    for case in cases:
        # Threads that happen to take turns need less memory: then a call may succeed. What it must not do is end the process.
        assert "MemoryError" in case["raised"], case
        assert set(case["raised"]) <= {"MemoryError", "nothing"}, case
        assert case["leaked"] < 1 << 20, case
