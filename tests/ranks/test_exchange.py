"""`join`, `Exchange` and `sum_gradients`, checked by three gloo processes on this machine."""

import pytest

import rank_checks
from checks import assert_passed, outcomes_in
from headrace.ranks import Exchange
from rank_jobs import Job


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    job = Job(rank_checks.__file__, [folder], size=rank_checks.RANKS, folder=folder)
    statuses = job.wait(90)
    job.end()
    return outcomes_in(folder, rank_checks.RANKS), [job.said(rank) for rank in range(rank_checks.RANKS)], statuses


@pytest.mark.parametrize("check", rank_checks.CHECKS)
def test_on_three_ranks(outcomes, check):
    assert_passed(*outcomes[:2], check)


def test_the_job_ends_well(outcomes):
    assert outcomes[2] == [0] * rank_checks.RANKS, outcomes[1]


def test_without_a_process_group_it_says_what_to_do():
    with pytest.raises(RuntimeError, match="init_process_group first"):
        Exchange()
