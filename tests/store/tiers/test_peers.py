"""`Tiered` over the GPUs of several processes, by its parts that need no driver. On a GPU: tests/gpu/test_clique_on_gpu.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs triton")


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs POSIX shared memory in /dev/shm")
def test_several_ranks_under_the_interpreter(tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "error::UserWarning"}
    command = [sys.executable, str(Path(__file__).parents[2] / "peer_checks.py"), str(tmp_path / "x.npy")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.stdout == "equal\n", done.stderr
