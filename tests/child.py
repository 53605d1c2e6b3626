"""Python in a process of its own, which may import from this folder."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import warm


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=300, env=environment)


def assert_same_digest_on_every_level(*arguments: str) -> None:
    """Run a script, which prints the instruction set it ran with and a digest of its results, with each set of this machine."""
    digests = {}
    for level in ("avx512", "avx2", "baseline"):
        with tempfile.TemporaryDirectory() as folder:
            done = warm.run(*arguments, folder=folder, environment={**os.environ, "HEADRACE_LEVEL": level})
        assert done.returncode == 0, done.stderr[-2_000:]
        name, digest = done.stdout.split()
        digests[name] = digest
    assert len(digests) >= 2
    assert "baseline" in digests
    assert len(set(digests.values())) == 1, digests
