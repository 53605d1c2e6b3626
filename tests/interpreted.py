"""Kernels of a GPU on CPU tensors: scripts run by Triton's interpreter, which must be chosen before triton is imported."""

import os
import tempfile
from pathlib import Path

import pytest

import warm


def run_interpreted(script: str, *arguments: str) -> None:
    """Run a script, which must print "equal", in a process of its own; it may import from this folder."""
    pytest.importorskip("triton", reason="needs triton")
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as folder:
        done = warm.run("-c", script, *arguments, folder=folder, environment=environment)
    assert done.stdout == "equal\n", done.stderr
