"""`Remote`, checked by three gloo processes on this machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import remote_checks
from headrace.store import Remote, hash_owners


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("remote")
    processes = [
        subprocess.Popen(
            [sys.executable, remote_checks.__file__, str(rank), str(folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for rank in range(remote_checks.RANKS)
    ]
    said = []
    for process in processes:
        try:
            said.append(process.communicate(timeout=90)[0].decode())
        except subprocess.TimeoutExpired:
            process.kill()
            said.append("it hung and was stopped: " + process.communicate()[0].decode())
    files = [Path(folder / f"outcomes.{rank}.json") for rank in range(remote_checks.RANKS)]
    return [json.loads(file.read_text()) if file.exists() else {} for file in files], said


@pytest.mark.parametrize("check", remote_checks.CHECKS)
def test_on_three_ranks(outcomes, check):
    for rank, (found, said) in enumerate(zip(*outcomes, strict=True)):
        assert found.get(check, f"not reached\n{said}") == "", f"rank {rank}:\n{found.get(check, said)}"


def test_without_a_process_group_it_says_what_to_do():
    with pytest.raises(RuntimeError, match="init_process_group first"):
        Remote(torch.zeros(4, 2), hash_owners(4, 1))
