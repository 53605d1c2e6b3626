"""Temporal training by processes: bits of one, ends in step, resumes with another number of them."""

import random
import signal
import time
from pathlib import Path

import pytest
import torch

import temporal_training
from headrace.train import Run
from rank_jobs import Job
from training_cases import assert_same_weights, lasting

SCRIPT = Path(temporal_training.__file__)
SHARED = Path("/dev/shm")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Shapes, trained by one process when they are asked for."""
    folder = tmp_path_factory.mktemp("alone")

    def trained(parallel):
        if not (folder / f"{parallel}.pt").exists():
            temporal_training.main(folder, [parallel])
        return folder

    return trained


def trained_by(size, folder, cases):
    folder.mkdir(exist_ok=True)
    job = Job(SCRIPT, [folder, *cases], size=size, folder=folder)
    try:
        assert job.wait(240) == [0] * size, "\n".join(job.said(rank) for rank in range(size))
    finally:
        job.end()
    return folder


def assert_same_run(folder, wanted, parallel):
    assert_same_weights(torch.load(folder / f"{parallel}.pt"), torch.load(wanted / f"{parallel}.pt"))
    found, wanted = Run(folder / parallel), Run(wanted / parallel)
    assert lasting(found.metrics()) == lasting(wanted.metrics())  # one log, by rank 0, as one process writes it
    ends = [run.load_checkpoint()["recipe"] for run in (found, wanted)]
    assert len(ends[0]["memory"]) == len(ends[1]["memory"]) == int(parallel[-1])
    assert all(torch.equal(*rows) for rows in zip(ends[0]["memory"], ends[1]["memory"], strict=True))
    assert found.result()["test"] == wanted.result()["test"]


@pytest.mark.parametrize(("size", "shapes"), [(2, ["1x2x1", "1x1x2"]), pytest.param(4, ["1x2x2", "2x1x2"], marks=pytest.mark.slow)])
def test_processes_give_the_bits_of_one(alone, tmp_path, size, shapes):
    folder = trained_by(size, tmp_path / "run", shapes)
    for parallel in shapes:
        assert_same_run(folder, alone(parallel), parallel)


def killed_and_resumed(wanted, folder, parallel, kills):
    """Kill rank 0 after so many batches on so many ranks, one after the other; each time another number of ranks goes on."""
    folder.mkdir()
    for number, (size, batches) in enumerate(kills):
        cases = [f"{parallel}:{batches}"] if number == 0 else [f"{parallel}:resume:{batches}"]
        job = Job(SCRIPT, [folder, *cases], size=size, folder=folder)
        try:
            codes = job.wait(240)
            assert None not in codes
            assert all(codes), codes
            assert codes[0] == -signal.SIGKILL
        finally:
            job.end()
    trained_by(1 if kills[-1][0] > 1 else int(parallel[2]), folder, [f"{parallel}:resume"])
    assert_same_run(folder, wanted, parallel)


KILLS = [
    ("1x2x1", [(2, 25)]),
    pytest.param("1x2x2", [(4, 37)], marks=pytest.mark.slow),
    pytest.param("1x2x2", [(1, 30), (2, 70), (4, 101)], marks=pytest.mark.slow),
    pytest.param("2x1x2", [(4, 17), (2, 50)], marks=pytest.mark.slow),
    pytest.param("1x3x1", [(3, 40), (1, 80)], marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("parallel", "kills"), KILLS)
def test_a_killed_job_goes_on_with_another_number_of_ranks(alone, tmp_path, parallel, kills):
    killed_and_resumed(alone(parallel), tmp_path / "job", parallel, kills)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["1x2x2", "2x2x1"])
def test_kills_at_random_steps_with_other_numbers_of_ranks(alone, tmp_path, parallel):
    drawn = random.Random(7)
    steps = sorted(drawn.sample(range(1, 150), 6))
    killed_and_resumed(alone(parallel), tmp_path / "job", parallel, [(drawn.choice([1, 2, 4]), step) for step in steps])


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_rank_that_is_killed_before_its_ticket_ends_the_others_who_name_both(tmp_path, victim):
    """In 1x2x1 ranks take batches in turn: the other one waits for the write of a batch of the one that is gone."""
    case = f"1x2x1:{6 + victim}@{victim}"
    job = Job(SCRIPT, [tmp_path, case], size=2, folder=tmp_path)
    try:
        while job.processes[victim].poll() is None:
            time.sleep(0.02)
        killed = time.monotonic()
        codes = job.wait(15)
        assert time.monotonic() - killed < 10
        assert codes[victim] == -signal.SIGKILL
        assert codes[1 - victim] == 1
    finally:
        job.end()
    said = job.said(1 - victim)
    batch = 6 + victim
    assert f"rank {victim} (process {job.processes[victim].pid}" in said
    assert f"The next ticket of node memory 0 is {2 * batch}, rank {victim}'s (read of batch {batch})" in said
    assert not [name for process in job.processes for name in SHARED.glob(f"headrace-rows-{process.pid}-*")]
