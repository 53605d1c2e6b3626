"""What ranks agree on: every rank finds every row it should, one host copy fits all, and disagreements are named to all."""

import threading

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.store import Tiered
from headrace.store.tiers import meeting
from headrace.store.tiers.meeting import meet
from rank_threads import on_every_rank


@pytest.fixture
def world(monkeypatch):
    """Machines and peers as the test says; a rank is known by the name of its thread."""
    world = {"machines": [], "access": None}
    monkeypatch.setattr(meeting, "device_uuid", lambda device: f"GPU-{device.index}")
    monkeypatch.setattr(meeting, "machine", lambda: world["machines"][int(threading.current_thread().name)])
    monkeypatch.setattr(meeting, "reach", lambda offers, rank: world["access"][rank])
    return world


def agree(ranks, order, **changes):
    facts = {"shape": torch.Size((len(order), 3)), "dtype": torch.float32, "stride": 32, "hot": 4, "host": len(order)}
    facts |= {"placement": "clique", "shared": None, **changes}
    return meet(ranks, order, device=torch.device("cuda", ranks.rank), **facts)


@settings(derandomize=True, max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    nodes=st.integers(0, 60),
    machines=st.lists(st.sampled_from("ab"), min_size=1, max_size=5),
    hot=st.integers(0, 20),
    host=st.integers(0, 60),
    placement=st.sampled_from(["replicate", "clique"]),
    shared=st.sampled_from([None, True, False]),
    seed=st.integers(0, 99),
)
def test_every_rank_finds_every_row(world, nodes, machines, hot, host, placement, shared, seed):
    size, draw = len(machines), torch.Generator().manual_seed(seed)
    same = torch.tensor([[a == b for b in machines] for a in machines])
    linked = torch.rand(size, size, generator=draw) < 0.7
    world |= {"machines": machines, "access": (same & linked).tolist()}
    order = torch.randperm(nodes, generator=draw)
    met = on_every_rank(size, lambda ranks: agree(ranks, order, hot=hot, host=host, placement=placement, shared=shared))
    rows = torch.arange(nodes) * 7
    on_device = [rows[m.placed.shard(rank)] for rank, m in enumerate(met)]
    for rank, mine in enumerate(met):
        assert len(on_device[rank]) <= hot
        assert all(machines[other] == machines[rank] for other in mine.members)
        assert mine.shared == (machines.count(machines[rank]) > 1 if shared is None else shared)
        assert not mine.shared or torch.equal(mine.far_ids, met[mine.local[0]].far_ids)  # one copy, so it must be the same
        assert mine.far_rows <= host
        memories = [*(on_device[member] for member in mine.members), rows[mine.far_ids]]
        shard, row = mine.locations()
        for node in range(nodes):
            if shard[node] >= 0:
                assert memories[int(shard[node])][int(row[node])] == rows[node]
        held = (shard >= 0).nonzero().flatten()
        assert len(held) == mine.hot + mine.rest
        assert set(held.tolist()) == set(order[: len(held)].tolist())  # the hottest
        assert mine.hot + mine.rest == nodes or host < nodes


def test_one_host_copy_begins_where_the_smallest_group_ends(world):
    world |= {"machines": "aaa", "access": [[1, 1, 0], [1, 1, 0], [0, 0, 1]]}
    met = on_every_rank(3, lambda ranks: agree(ranks, torch.arange(20)))
    assert [m.members for m in met] == [[0, 1], [0, 1], [2]]
    assert [(m.hot, m.rest, m.far_begin, m.far_rows) for m in met] == [(8, 12, 4, 16)] * 2 + [(4, 16, 4, 16)]
    alone = on_every_rank(3, lambda ranks: agree(ranks, torch.arange(20), shared=False))
    assert [(m.hot, m.rest, m.far_begin, m.alone) for m in alone] == [(8, 12, 8, False)] * 2 + [(4, 16, 4, True)]


def test_the_least_room_counts_for_all(world):
    world |= {"machines": "aa", "access": [[1, 1], [1, 1]]}
    met = on_every_rank(2, lambda ranks: agree(ranks, torch.arange(20), hot=5 - ranks.rank, host=6 + ranks.rank))
    assert [(m.hot, m.rest) for m in met] == [(8, 6)] * 2


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"stride": 64}, "ranks must agree on stride: rank 0 has 32, rank 2 has 64"),
        ({"dtype": torch.int8}, "ranks must agree on dtype: rank 0 has 'torch.float32', rank 2 has 'torch.int8'"),
        ({"placement": "replicate"}, "ranks must agree on placement"),
        ({"shared": True}, "ranks must agree on shared"),
        ({"order": torch.arange(20).flip(0)}, "ranks must agree on order"),
    ],
)
def test_a_disagreement_is_named_to_every_rank(world, changes, complaint):
    world |= {"machines": "aaa", "access": [[1] * 3] * 3}

    def work(ranks):
        own = dict(changes) if ranks.rank == 2 else {}
        return agree(ranks, own.pop("order", torch.arange(20)), **own)

    for error in on_every_rank(3, work):
        assert isinstance(error, ValueError)
        assert complaint in str(error)


@pytest.mark.parametrize(
    ("keywords", "complaint"),
    [
        ({"placement": "spread"}, "placement must be 'replicate' or 'clique', not 'spread'"),
        ({"placement": "clique"}, "placement='clique' is for several processes: give their group="),
        ({"shared": True}, "shared=True is for several processes: give their group="),
        ({"group": object()}, "group= is for processes with a GPU each, and device is cpu"),
    ],
)
def test_bad_settings_are_named(keywords, complaint):
    with pytest.raises(ValueError, match=complaint):
        Tiered(torch.zeros(4, 2), device="cpu", **keywords)
