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
