"""Meeting the others: alone without torchrun, NCCL where every rank has a GPU of its own. `test_exchange.py` runs three."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from headrace.ranks import Alone, GroupRanks, device_of, join
from headrace.ranks.join import _backend, _connect

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def _no_torchrun(monkeypatch):
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)


def test_without_torchrun_a_process_is_alone(monkeypatch):
    monkeypatch.setenv("RANK", "1")  # some schedulers set a part of it
    with join() as ranks:
        assert isinstance(ranks, Alone)
        assert not dist.is_initialized()


def test_a_group_that_exists_is_used_and_left_alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        with join() as ranks:
            assert isinstance(ranks, GroupRanks)
            assert ranks.all_gather("word") == ["word"]
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("fails", [False, True])
def test_the_group_of_torchrun_ends_with_the_context(monkeypatch, fails):
    from rank_jobs import free_port

    for name, value in zip(TORCHRUN, ("0", "1", "0", "127.0.0.1", str(free_port())), strict=True):
        monkeypatch.setenv(name, value)
    try:
        with join(timeout=30) as ranks:
            assert (ranks.rank, ranks.size, dist.get_backend()) == (0, 1, "gloo")
            if fails:
                raise OSError("gone")
    except OSError:
        assert fails
    assert not dist.is_initialized()


def test_a_wrong_timeout_is_named(monkeypatch):
    for name, value in zip(TORCHRUN, ("0", "1", "0", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="timeout must be a positive number of seconds, not 0"), join(timeout=0):
        pass


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_does_not_come_is_waited_for_as_long_as_was_said(monkeypatch, rank):
    from rank_jobs import free_port

    for name, value in zip(TORCHRUN, (rank, "2", rank, "127.0.0.1", str(free_port())), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HEADRACE_JOIN_SECONDS", "1")
    text = rf"rank {rank} did not meet the 1 others at 127.0.0.1:\d+ within 1 s \(.*JOIN_SECONDS"
    with pytest.raises(TimeoutError, match=text), join():
        pass
    monkeypatch.setenv("HEADRACE_JOIN_SECONDS", "soon")
    with pytest.raises(ValueError, match="HEADRACE_JOIN_SECONDS must be a number of seconds, not 'soon'"), join():
        pass


def test_a_rank_that_went_before_all_were_connected_is_told_in_a_sentence():
    store = dist.PrefixStore("one", dist.HashStore())
    with pytest.raises(ConnectionError, match=r"rank 0 lost another of the 2 while they connected \(.*see how the others ended"):
        _connect("gloo", store, 0, 2, timedelta(seconds=1))


@pytest.mark.parametrize(
    ("gpus", "backend"),
    [
        (["a 0", "a 1", "b 0"], "cpu:gloo,cuda:nccl"),
        (["a 0", "a 0"], "gloo"),  # two ranks share one
        (["a 0", ""], "gloo"),
        (["", ""], "gloo"),
    ],
)
def test_nccl_needs_a_gpu_for_each_rank(monkeypatch, gpus, backend):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert _backend(gpus) == backend
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert _backend(gpus) == "gloo"


def test_a_rank_takes_the_gpu_of_its_local_rank(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    ranks = Alone()
    for local_rank, gpu in ((0, 0), (1, 1), (2, 0), (5, 1)):
        ranks.local_rank = local_rank
        assert device_of(ranks, "cuda") == torch.device("cuda", gpu)
        assert device_of(ranks, "cuda:1") == torch.device("cuda", 1)
        assert device_of(ranks, "cpu") == torch.device("cpu")


def test_a_gpu_that_is_not_there_is_named():
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    with pytest.raises(ValueError, match="torch sees no GPU here"):
        device_of(Alone(), "cuda")
