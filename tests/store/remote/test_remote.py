"""`Remote`, checked by three gloo processes on this machine."""

import subprocess
import sys

import pytest
import torch

import remote_checks
from checks import assert_passed, outcomes_in
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
    return outcomes_in(folder, remote_checks.RANKS), said


@pytest.mark.parametrize("check", remote_checks.CHECKS)
def test_on_three_ranks(outcomes, check):
    assert_passed(*outcomes, check)


def test_without_a_process_group_it_says_what_to_do():
    with pytest.raises(RuntimeError, match="init_process_group first"):
        Remote(torch.zeros(4, 2), hash_owners(4, 1))
