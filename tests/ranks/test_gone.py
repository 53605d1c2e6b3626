"""A rank that died is named at once, by those who wait for it."""

import re
import signal
import time

import pytest

import rank_jobs

SCRIPT = f"{__file__.rpartition('/')[0]}/../gone_child.py"


LONGER = [("ranks", 2, 3), ("exchange", 1, 3), ("remote", 0, 3)]


@pytest.mark.parametrize(
    ("kind", "victim", "size"), [("remote", 1, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in LONGER)]
)
def test_a_killed_rank_is_named_at_once(tmp_path, kind, victim, size):
    """Rank 0 hosts the job's store, so that the others cannot ask one another when it is gone."""
    job = rank_jobs.Job(SCRIPT, [kind, victim], size=size, folder=tmp_path)
    try:
        assert job.processes[victim].wait(90) == -signal.SIGKILL
        died = time.time()
        assert [code for code in job.wait(30) if code] == [-signal.SIGKILL]
    finally:
        job.end()
    for rank in set(range(size)) - {victim}:
        said = [line for line in job.said(rank).splitlines() if re.match(r"\d+\.\d+ ", line)]
        assert len(said) == 1, job.said(rank)
        when, _, told = said[0].partition(" ")
        wanted = rf"(exchange \d of rank {rank}: )?rank {victim} \(process {job.processes[victim].pid} on .+\) is gone: killed"
        assert re.match(wanted, told), told
        assert float(when) - died < 3
