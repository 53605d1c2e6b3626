"""One of three ranks goes wrong in the middle of a push-pull exchange: all are gone within 10 seconds, and say which one it was."""

import pytest

import push_pull_fault_child
from namespaces import in_namespaces, namespaces
from rank_jobs import Job, wait_for_files

RANKS, CULPRIT = 3, 1
SAID = {"kill": "has ended without a word", "stop": "was stopped (SIGSTOP)", "raise": "OSError: the disk is gone"}


def gone_after(mode, folder, act=lambda: None, **how):
    """What each rank wrote. `act` is called when all are at work."""
    job = Job(push_pull_fault_child.__file__, [mode, CULPRIT, folder], size=RANKS, folder=folder, **how)
    try:
        wait_for_files([folder / f"ready.{rank}" for rank in range(RANKS)])
        act()
        statuses = job.wait(10)
        said = [job.said(rank) for rank in range(RANKS)]
        assert None not in statuses, (statuses, said)
        assert all(statuses), said
        return said
    finally:
        job.end()


@pytest.mark.parametrize("mode", ["kill", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("raise", "stop"))])
def test_a_rank_that_goes_wrong_in_an_exchange_ends_all(tmp_path, mode):
    said = gone_after(mode, tmp_path)
    for rank in {0, 1, 2} - {CULPRIT}:
        assert f"rank {CULPRIT} (process" in said[rank]
        assert SAID[mode] in said[rank]


@pytest.mark.slow
def test_a_cut_link_ends_all(tmp_path):
    with namespaces(2) as network:
        said = gone_after("cut", tmp_path, lambda: network.cut(1), **in_namespaces(network, [0, 1, 0]))
    for rank in {0, 1, 2} - {CULPRIT}:
        assert f"rank {CULPRIT} (process" in said[rank]
        assert "has given no sign of life" in said[rank]
