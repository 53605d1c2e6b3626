"""`headrace train` under torchrun: rank 0 speaks for all."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from headrace.train import Run
from rank_jobs import Job

DATASET = "generate:community?nodes=600&edges=9000&classes=3&features=8&seed=2&splits=0.4,0.2,0.4"
QUICK = ["--fanout", "4,4", "--hidden", "8", "--epochs", "2", "--batch-size", "60", "--threads", "1"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def by_torchrun(*arguments) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*TORCHRUN, "-m", "headrace", "train", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def on_two_ranks(tmp_path):
    """The command by two processes with torchrun's environment: statuses, and all that was written to stdout and stderr."""

    def run(*arguments):
        environments = {rank: {"OMP_NUM_THREADS": "1"} for rank in range(2)}
        job = Job("-m", ["headrace", "train", *map(str, arguments)], size=2, folder=tmp_path, environments=environments, apart=True)
        try:
            codes = job.wait(120)
        finally:
            job.end()
        errors = "".join((tmp_path / f"errors.{rank}").read_text() for rank in range(2))
        return SimpleNamespace(codes=codes, stdout="".join(map(job.said, range(2))), stderr=errors)

    return run


@pytest.fixture
def refused(on_two_ranks):
    """The one line that says why; torch says more of its own."""

    def run(*arguments):
        done = on_two_ranks(*arguments)
        assert done.codes == [2, 2]
        said = [line for line in done.stderr.splitlines() if line.startswith("headrace: ")]
        assert len(said) == 1, done.stderr
        assert done.stdout == ""
        return said[0]

    return run


def test_links_are_refused_once(tmp_path, refused):
    message = "headrace: train link works on one rank, and there are 2: start it without torchrun"
    assert refused("link", DATASET, "--dim", 8, "--out", tmp_path / "run") == message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([DATASET, "--epochs", "-1"], "epochs must be at least 0, not -1"),
        (["no/such/place"], "there is no dataset at no/such/place"),
        ([DATASET, "--out", "{}/nothing", "--resume"], "is no run: it has no options.json"),
    ],
)
def test_what_cannot_be_is_refused_once(tmp_path, refused, arguments, message):
    assert message in refused("node", *(argument.format(tmp_path) for argument in arguments))


def test_rank_0_prints_and_the_run_goes_on_with_its_own_options(tmp_path, on_two_ranks):
    done = by_torchrun("node", DATASET, *QUICK, "--seed", 3, "--out", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)  # one object, not two
    assert result["options"]["accumulate"] == 2
    assert done.stderr.count("finished after") == 1
    assert len(Run(tmp_path / "run").metrics("epoch")) == 2
    again = on_two_ranks("node", DATASET, "--out", tmp_path / "run", "--resume", "--json")
    assert again.codes == [0, 0], again.stderr
    assert json.loads(again.stdout) == result


EVENTS = [
    "temporal",
    "generate:events?nodes=50&events=800",
    "--hidden",
    "8",
    "--heads",
    "1",
    "--batch-size",
    "50",
    "--threads",
    "1",
]


def test_trainers_of_events_are_ranks(tmp_path, on_two_ranks):
    done = on_two_ranks(*EVENTS, "--parallel", "1x1x2", "--epochs", "2", "--out", tmp_path / "run", "--json")
    assert done.codes == [0, 0], done.stderr
    result = json.loads(done.stdout)  # one object, not two
    assert result["options"]["parallel"] == "1x1x2"
    assert result["test"]["ap"]["values"]
    assert done.stderr.count("finished after") == 1
    assert json.loads((tmp_path / "run" / "result.json").read_text())["test"] == result["test"]


def test_ranks_that_do_not_divide_the_trainers_are_refused_once(tmp_path, refused):
    message = "headrace: 2 ranks do not divide the 3 trainers of 1x3x1: start 1 or 3"
    assert refused(*EVENTS, "--parallel", "1x3x1", "--out", tmp_path / "run") == message
    assert not (tmp_path / "run").exists()
    assert "2 ranks do not divide the trainer of 1x1x1: start 1" in refused(*EVENTS, "--out", tmp_path / "run")
