"""Who takes part: values reach every rank, an error of one is an error of all."""

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist

from headrace.ranks import Alone, GroupRanks, Ranks, machine, ranks_of, together
from rank_threads import on_every_rank


def test_one_process_alone_needs_no_group():
    ranks: Ranks = Alone()
    assert (ranks.rank, ranks.size, ranks.local_rank, ranks.machines) == (0, 1, 0, [machine()])
    assert ranks.all_gather(3) == [3]
    assert ranks.broadcast("word") == "word"
    ranks.barrier()


def test_broadcast_gives_the_value_of_the_source():
    assert on_every_rank(3, lambda ranks: ranks.broadcast(ranks.rank * 10, source=2)) == [20] * 3
    assert on_every_rank(3, lambda ranks: ranks.broadcast(f"of {ranks.rank}")) == ["of 0"] * 3


def test_what_fails_on_one_rank_is_an_error_on_all():
    results = on_every_rank(3, lambda ranks: together(ranks, lambda: 6 // ranks.rank, consequence="no store is built"))
    assert isinstance(results[0], ZeroDivisionError)
    for error in results[1:]:
        assert isinstance(error, RuntimeError)
        assert "rank 0 failed, so no store is built: ZeroDivisionError" in str(error)
    assert on_every_rank(2, lambda ranks: together(ranks, lambda: ranks.rank * 10)) == [[0, 10]] * 2


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_process_group_is_ranks(tmp_path, monkeypatch, device):
    entered = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: entered.append(device) or nullcontext())
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        ranks = ranks_of(dist.group.WORLD, torch.device(device))
        assert (ranks.rank, ranks.size, ranks.local_rank, ranks.machines) == (0, 1, 0, [machine()])
        assert together(ranks, lambda: "here") == ["here"]
        assert ranks.broadcast([1]) == [1]
        monkeypatch.setenv("LOCAL_RANK", "3")
        assert GroupRanks(dist.group.WORLD, torch.device(device)).local_rank == 3
    finally:
        dist.destroy_process_group()
    assert set(entered) == ({torch.device("cuda", 0)} if device != "cpu" else set())


def test_a_machine_has_one_name():
    assert machine() == machine()
    assert len(machine()) > 10


def test_what_is_no_group_is_named():
    with pytest.raises(ValueError, match="or have rank, size and all_gather, not 3"):
        ranks_of(3, torch.device("cuda", 0))
