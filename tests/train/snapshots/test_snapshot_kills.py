"""Jobs on snapshot groups that are killed between checkpoints go on, on other numbers of ranks, to the bits of one that was not."""

import signal
from pathlib import Path

import pytest
import torch

import snapshot_training
from headrace.train import Run
from rank_jobs import Job
from training_cases import assert_same_weights, lasting

SCRIPT = Path(snapshot_training.__file__)
CASES = ["tgcn-balanced-hoist-alone", "gclstm-balanced-hoist-overlap", "gclstm-vertex-hoist-alone", "gclstm-snapshot-hoist-overlap"]


def ran(folder, case, *, size):
    """Exit statuses and what the ranks said."""
    job = Job(SCRIPT, [folder, case], size=size, folder=folder)
    try:
        codes = job.wait(150)
        return codes, "\n".join(job.said(rank) for rank in range(size))
    finally:
        job.end()


def killed(folder, case, *, size, step, victim, resume):
    codes, said = ran(folder, f"{case}:{'resume:' if resume else ''}{step}@{victim}", size=size)
    assert codes[victim] == -signal.SIGKILL, said
    assert None not in codes
    assert all(codes), codes


def assert_ended_as(folder, wanted, case, *, tolerance=0.0):
    found, other = (torch.load(place / f"{case}.weights", weights_only=True) for place in (folder, wanted))
    if not tolerance:
        assert_same_weights(found, other)
        assert lasting(Run(folder / case).metrics("step")) == lasting(Run(wanted / case).metrics("step"))
    for name, values in other.items():
        torch.testing.assert_close(found[name], values, rtol=tolerance, atol=tolerance)


# Of a job: ranks, the step (six in all, of two epochs) before which one of them kills itself, and which.
TWICE = {True: [(2, 3, 0), (3, 3, 2)], False: [(2, 3, 0), (2, 3, 1)]}  # those that split groups add up otherwise on other ranks
JOBS = [(CASES[1], [(2, 5, 1)]), *(pytest.param(case, TWICE["balanced" in case], marks=pytest.mark.slow) for case in CASES)]


@pytest.mark.parametrize(("case", "kills"), JOBS)
def test_a_killed_job_ends_as_one_that_was_not(tmp_path, case, kills):
    whole, parts, last = tmp_path / "whole", tmp_path / "parts", 1 if "balanced" in case else 2
    whole.mkdir()
    parts.mkdir()
    if last == 1:
        snapshot_training.main(whole, [case])
    else:
        codes, said = ran(whole, case, size=last)
        assert codes == [0] * last, said
    measured = 0
    for number, (size, step, victim) in enumerate(kills):
        killed(parts, case, size=size, step=step, victim=victim, resume=number > 0)
        costs = Run(parts / case).load_checkpoint()["recipe"]["costs"]
        if last == 1:
            assert costs["measured"] > measured  # they go on, and change no bit of the result
            measured = costs["measured"]
    codes, said = ran(parts, f"{case}:resume", size=last)
    assert codes == [0] * last, said
    found, wanted = (torch.load(place / f"{case}.weights", weights_only=True) for place in (parts, whole))
    assert_same_weights(found, wanted)
    logs = [[epoch | {"balance": None} for epoch in lasting(Run(place / case).metrics("epoch"))] for place in (parts, whole)]
    assert logs[0] == logs[1]
