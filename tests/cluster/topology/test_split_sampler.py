"""`SplitSampler`, checked by one to four gloo processes on this machine."""

import re
import signal
import time
from pathlib import Path

import pytest
import torch

import headrace as hr
import rank_jobs
import topology_checks
from checks import assert_passed, outcomes_in
from headrace.cluster.topology import SplitSampler
from headrace.store import hash_owners
from topology_cases import assert_equals_whole, awkward_graph, share_of

GONE = Path(topology_checks.__file__).with_name("topology_gone_child.py")


@pytest.fixture(scope="module", params=[1, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))])
def outcomes(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("topology")
    job = rank_jobs.Job(topology_checks.__file__, [folder], size=request.param, folder=folder)
    try:
        job.wait(120)
    finally:
        job.end()
    return outcomes_in(folder, request.param), [job.said(rank) for rank in range(request.param)]


@pytest.mark.parametrize("check", topology_checks.CHECKS)
def test_on_ranks(outcomes, check):
    assert_passed(*outcomes, check)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_in_the_middle_is_named_by_the_others(tmp_path, victim):
    """Rank 0 hosts the job's store, so that the others cannot ask one another when it is gone."""
    job = rank_jobs.Job(GONE, [victim], size=3, folder=tmp_path)
    try:
        assert job.processes[victim].wait(90) == -signal.SIGKILL
        died = time.time()
        assert [code for code in job.wait(30) if code] == [-signal.SIGKILL]
    finally:
        job.end()
    for rank in {0, 1, 2} - {victim}:
        said = [line for line in job.said(rank).splitlines() if re.match(r"\d+\.\d+ ", line)]
        assert len(said) == 1, job.said(rank)
        when, _, told = said[0].partition(" ")
        wanted = rf"exchange 1 of rank {rank}: rank {victim} \(process {job.processes[victim].pid} on .+\) is gone: killed"
        assert re.match(wanted, told), told
        assert float(when) - died < 10


def test_alone_it_needs_no_process_group():
    graph, owners = awkward_graph(), hash_owners(300, 1, seed=4)
    rows = share_of(graph, owners, 0)
    sampler = SplitSampler(*rows, owners, [5, 3], seed=3, group=hr.ranks.Alone())
    request = ([5, 5, 299], 1, 2)
    assert_equals_whole(sampler.sample(*request), graph, [5, 3], request, seed=3)
    assert torch.equal(sampler.degrees(range(300)), graph.degrees(loops=False))
    sampler.finish()
    sampler.close()
    with pytest.raises(IndexError, match=r"seeds\[0\] is 300"):
        sampler.sample([300])
    with pytest.raises(ValueError, match="owners are for 2 ranks, the group has 1"):
        SplitSampler(*rows, hash_owners(300, 2), [5], group=hr.ranks.Alone())
    with pytest.raises(ValueError, match="indptr must rise from 0 to the 1 entries of indices, but goes from 0 to 2"):
        SplitSampler([0, 2], [0], hash_owners(1, 1), [5], group=hr.ranks.Alone())


@pytest.mark.parametrize("option", [{"weighted": True}, {"labor": True}, {"disjoint": True}, {"temporal": "last"}])
def test_draws_that_need_the_whole_graph_are_refused(option):
    with pytest.raises(ValueError, match=f"a split graph is drawn from uniformly: {next(iter(option))} need NeighborSampler"):
        SplitSampler([0, 0], [], hash_owners(1, 1), [5], group=hr.ranks.Alone(), **option)


def test_without_a_process_group_it_says_what_to_do():
    with pytest.raises(RuntimeError, match="init_process_group first"):
        SplitSampler([0], [], hash_owners(0, 1), [5])
    with pytest.raises(ValueError, match="not both"):
        SplitSampler([0], [], hash_owners(0, 1), [5], group=hr.ranks.Alone(), exchange=object())
