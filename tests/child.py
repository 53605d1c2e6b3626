"""Python in a process of its own, which may import from this folder."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from headrace import _native

LEVELS = ("avx512", "avx2", "baseline")
# A process for each instruction set runs all scripts that ask for it: each starts with torch and headrace imported.
SERVER = """
import contextlib, io, json, runpy, sys
import headrace
for line in sys.stdin:
    command, said = json.loads(line), io.StringIO()
    with contextlib.redirect_stdout(said):
        if command[0] == "-c":
            exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_path(command[0], run_name="__main__")
    print(json.dumps(said.getvalue()), flush=True)
"""


def _environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **more}


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=_environment(**environment))


@cache
def _level(name: str) -> subprocess.Popen[str]:
    """A process that runs scripts with this instruction set at most. It ends with this one, as its input does."""
    environment = _environment(HEADRACE_LEVEL=name)
    return subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def assert_same_digest_on_every_level(*command: str) -> None:
    """Run a script, which prints the instruction set it ran with and a digest of its results, with each set of this machine."""
    digests = {}
    for level in LEVELS:
        process = _level(level)
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(command), file=process.stdin, flush=True)
        answer = process.stdout.readline()
        assert answer, f"{level}: the script failed"
        name, digest = json.loads(answer).split()
        digests[name] = digest
    assert _native.level in digests
    assert "baseline" in digests
    assert len(set(digests.values())) == 1, digests
