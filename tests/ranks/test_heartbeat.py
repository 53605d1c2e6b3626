"""One of three ranks is killed, stopped, raises or is cut off: all are gone within 10 seconds and say which one it was."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import heartbeat_child
from headrace.ranks import Alone, Heartbeat, guarded
from headrace.ranks.heartbeat import of_collective
from namespaces import in_namespaces, namespaces
from rank_jobs import Job, free_port, wait_for_files

RANKS = 3
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
SCRIPT = heartbeat_child.__file__
HOST = pytest.mark.slow  # rank 0 also hosts the store
CASES = [("kill", 2), ("stop", 1), pytest.param("kill", 0, marks=HOST), pytest.param("stop", 0, marks=HOST)]


@pytest.fixture
def start(tmp_path):
    """Start a job; returns it with the process numbers of its ranks once all of them are at work."""
    jobs = []

    def start(mode, culprit, **how):
        jobs.append(job := Job(SCRIPT, [mode, culprit, tmp_path], size=RANKS, folder=tmp_path, **how))
        try:
            ready = wait_for_files([tmp_path / f"ready.{rank}" for rank in range(RANKS)])
        except AssertionError:
            pytest.fail("\n".join(job.said(rank) for rank in range(RANKS)))
        return job, [int(text.split()[0]) for text in ready]

    yield start
    for job in jobs:
        job.end()


def shared_memory_of(tmp_path):
    name = (tmp_path / "ready.0").read_text().split()[1]
    return Path("/dev/shm") / f"headrace-rows-{name}"


def gone_within(job, seconds):
    """Exit statuses; an error if a rank is still there after so many seconds."""
    statuses = job.wait(seconds)
    assert None not in statuses, (statuses, [job.said(rank) for rank in range(RANKS)])
    return statuses


@pytest.mark.parametrize(
    ("mode", "culprit"),
    CASES,
)
def test_a_signal_to_one_rank_ends_all(start, tmp_path, mode, culprit):
    job, processes = start(mode, culprit)
    job.processes[culprit].send_signal(SIGNALS[mode])
    statuses = gone_within(job, 10)
    what = "has ended without a word" if mode == "kill" else "was stopped (SIGSTOP)"
    for rank in range(RANKS):
        if rank == culprit:
            assert statuses[rank] == -signal.SIGKILL  # of the others, if it was stopped
        else:
            assert statuses[rank] == 1
            assert f"rank {culprit} (process {processes[culprit]} on {os.uname().nodename}) {what}" in job.said(rank)
            assert mode == "stop" or f"Rank {rank} waits for gradients" in job.said(rank)
            assert (tmp_path / f"cleaned.{rank}").exists()
    assert not shared_memory_of(tmp_path).exists()


@pytest.mark.parametrize("culprit", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_an_error_of_one_rank_ends_all_with_its_traceback(start, tmp_path, culprit):
    job, _ = start("raise", culprit)
    assert gone_within(job, 10) == [1] * RANKS
    for rank in range(RANKS):
        said = job.said(rank)
        assert "OSError: the disk is gone" in said
        assert (f"rank {culprit} (process" in said) == (rank != culprit)
    assert not shared_memory_of(tmp_path).exists()


def test_ranks_that_end_one_after_another_are_not_missed(start, tmp_path):
    job, _ = start("end", 1)
    assert gone_within(job, 30) == [0] * RANKS
    assert [job.said(rank) for rank in range(RANKS)] == [""] * RANKS
    assert not list(tmp_path.glob("cleaned.*"))
    assert not shared_memory_of(tmp_path).exists()


def test_under_torchrun_a_stopped_rank_ends_all(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", RANKS, "--master-port", free_port()]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    with open(tmp_path / "said", "wb") as said:
        job = subprocess.Popen([*map(str, command), SCRIPT, "stop", "2", tmp_path], env=environment, stdout=said, stderr=said)
    try:
        ready = wait_for_files([tmp_path / f"ready.{rank}" for rank in range(RANKS)])
        processes = [int(text.split()[0]) for text in ready]
        start = time.monotonic()
        os.kill(processes[2], signal.SIGSTOP)
        assert job.wait(20) != 0
        assert time.monotonic() - start < 10
    finally:
        if job.poll() is None:
            job.kill()
            job.wait()
    assert f"rank 2 (process {processes[2]} on {os.uname().nodename}) was stopped" in (tmp_path / "said").read_text()
    assert not any(Path(f"/proc/{process}").exists() for process in processes)
    assert not shared_memory_of(tmp_path).exists()


def test_a_cut_link_ends_all(start, tmp_path):
    with namespaces(2) as network:
        job, _ = start("cut", 2, **in_namespaces(network, [0, 0, 1]))  # rank 2 is on the other machine
        network.cut(1)
        assert gone_within(job, 10) == [1] * RANKS
    for rank in (0, 1):
        assert "rank 2 (process" in job.said(rank)
        assert "has given no sign of life for 5 s" in job.said(rank)
    assert "The job's store, which rank 0 (process" in job.said(2)
    assert not shared_memory_of(tmp_path).exists()


def test_one_process_alone_is_not_watched():
    with pytest.raises(OSError, match="gone"), guarded(Alone()):
        raise OSError("gone")
    heartbeat = Heartbeat(Alone())
    heartbeat.fail(OSError("gone"))
    heartbeat.close()


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="interval must be positive and less than patience, not 5 and 5"):
        Heartbeat(Alone(), interval=5.0)
    several = Alone()
    several.size = 2
    with pytest.raises(RuntimeError, match=r"a heartbeat needs the store of torch\.distributed"):
        Heartbeat(several)


def test_errors_of_collectives_are_told_from_others():
    lost = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:2435")
    assert of_collective(lost)
    absent = TimeoutError("rank 2 did not come")
    absent.__cause__ = lost
    assert of_collective(absent)
    assert not of_collective(RuntimeError("shapes differ"))
    assert not of_collective(OSError("gloo"))
