"""Hostile calls of the native module: none ends the process, hangs, or writes outside of its arrays."""

import json
import re
from pathlib import Path

import pytest

from child import run_python
from headrace import _native

FUZZER = Path(__file__).with_name("fuzz_native.py")


def report(seed: int, calls: int) -> dict:
    done = run_python(str(FUZZER), "--seed", str(seed), "--calls", str(calls), "--json")
    assert done.stdout, done.stderr[-2_000:]
    return json.loads(done.stdout)


def test_hostile_calls_leave_the_process_alive():
    said = report(seed=0, calls=3_000)
    assert said == {"seed": 0, "calls": said["calls"], "crashes": 0, "hangs": 0, "failures": []}
    assert said["calls"] >= 3_000


@pytest.mark.slow
def test_many_hostile_calls():
    said = report(seed=7, calls=60_000)
    assert said["failures"] == []


def test_every_native_function_is_called():
    words = set(
        re.findall(r"\w+", "".join(Path(__file__).with_name(f"native_{kind}.py").read_text() for kind in ("calls", "objects")))
    )
    nobody_makes = {"Access", "Cache", "Purpose"}  # what others return, derive from, or count by
    assert {name for name in dir(_native) if not name.startswith("_")} - nobody_makes <= words
