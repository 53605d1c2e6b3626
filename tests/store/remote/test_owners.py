"""Partitions: every node has one owner and one row there, shares are even, budgets hold."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.store import Owners, TableOwners, hash_owners, probability_owners
from headrace.store.remote.owners import HashOwners


def check_splits_all_nodes(owners: Owners, nodes: int, ranks: int) -> None:
    assert isinstance(owners, Owners)
    assert (owners.num_nodes, owners.ranks) == (nodes, ranks)
    shares = [owners.ids_of(rank) for rank in range(ranks)]
    assert torch.equal(torch.cat(shares).sort().values, torch.arange(nodes))
    for rank, share in enumerate(shares):
        assert len(share) == owners.size(rank)
        owner, row = owners.locate(share)
        assert torch.equal(owner, torch.full_like(share, rank))
        assert torch.equal(row, torch.arange(len(share)))


@settings(max_examples=40, deadline=None)
@given(nodes=st.integers(0, 400), ranks=st.integers(1, 9), seed=st.integers(0, 1 << 40))
def test_hash_owners_splits_all_nodes_into_even_shares(nodes, ranks, seed):
    owners = hash_owners(nodes, ranks, seed)
    check_splits_all_nodes(owners, nodes, ranks)
    sizes = [owners.size(rank) for rank in range(ranks)]
    assert max(sizes) - min(sizes) <= 1


def test_hash_owners_spreads_runs_and_strides_of_ids():
    owners = hash_owners(1_000_000, 4, seed=7)
    for ids in (torch.arange(1000), torch.arange(500_000, 501_000), torch.arange(0, 8000, 2), torch.arange(1, 64_000, 16)):
        counts = torch.bincount(owners.locate(ids.int())[0], minlength=4)
        assert int(counts.max()) < 1.35 * len(ids) / 4, counts


def test_seeds_differ_and_repeat():
    assert hash_owners(1000, 3, 1) == hash_owners(1000, 3, 1)
    assert hash_owners(1000, 3, 1).fingerprint != hash_owners(1000, 3, 2).fingerprint


def test_ids_past_32_bits_stay_exact():
    nodes = (1 << 39) + 12_345
    owners = hash_owners(nodes, 3, 5)
    ids = [0, 1, (1 << 31) + 1, (1 << 33) + 7, nodes - 1]
    owner, row = owners.locate(torch.tensor(ids))
    for id_, found, at in zip(ids, owner.tolist(), row.tolist(), strict=True):
        place = (owners.factor * id_ + owners.shift) % nodes
        assert sum(owners.size(rank) for rank in range(found)) + at == place
    small = HashOwners(num_nodes=(1 << 33) + 1, ranks=1 << 20, factor=5, shift=9)
    assert torch.equal(small.locate(small.ids_of(77))[0], torch.full((small.size(77),), 77))


def test_more_ranks_than_nodes():
    check_splits_all_nodes(hash_owners(2, 5), 2, 5)
    check_splits_all_nodes(TableOwners(torch.tensor([4, 1]), 5), 2, 5)
    check_splits_all_nodes(probability_owners(torch.rand(5, 2)), 2, 5)


def best_owner_cost(wanted, owner):
    """Rows asked of other ranks, per batch."""
    return float(wanted.sum() - wanted[owner.long(), torch.arange(wanted.shape[1])].sum())


@settings(max_examples=25, deadline=None)
@given(nodes=st.integers(0, 300), ranks=st.integers(1, 5), chunk=st.integers(1, 64), seed=st.integers(0, 100))
def test_probability_owners_is_even_and_no_worse_than_hashing(nodes, ranks, chunk, seed):
    wanted = torch.rand(ranks, nodes, generator=torch.Generator().manual_seed(seed)) ** 4
    owners = probability_owners(wanted, chunk=chunk)
    check_splits_all_nodes(owners, nodes, ranks)
    sizes = [owners.size(rank) for rank in range(ranks)]
    assert max(sizes) - min(sizes) <= 1
    if nodes >= 100 and chunk >= 20:
        hashed = hash_owners(nodes, ranks).locate(torch.arange(nodes))[0]
        assert best_owner_cost(wanted, owners.owner) <= best_owner_cost(wanted, hashed)


def test_rows_go_to_the_rank_that_wants_them_where_all_can_be_served():
    wanted = torch.zeros(3, 300)
    favorite = torch.arange(300) % 3
    wanted[favorite, torch.arange(300)] = torch.rand(300) + 0.1
    owners = probability_owners(wanted, chunk=300)
    assert torch.equal(owners.owner.long(), favorite)
    assert owners.replicas(0).numel() == 0


@pytest.mark.parametrize("kind", ["own", "common"])
def test_replicas_fill_the_budget_with_the_hottest_rows_of_others(kind):
    wanted = torch.rand(3, 90)
    wanted[:, 80:] = 0
    owners = probability_owners(wanted, budget_bytes=40 * 16, row_bytes=16, replicas=kind)
    lists = [owners.replicas(rank) for rank in range(3)]
    for rank, ids in enumerate(lists):
        copies = ids[owners.owner[ids] != rank]
        assert owners.size(rank) + len(copies) <= 40
        heat = wanted[rank] if kind == "own" else wanted.sum(0)
        candidates = heat.clone()
        if kind == "own":
            assert len(copies) == len(ids) == 10
            candidates[owners.owner == rank] = 0
        assert torch.equal(heat[ids], candidates.sort(descending=True).values[: len(ids)])
    if kind == "common":
        assert torch.equal(lists[0], lists[1])
        assert max(owners.size(r) + int((owners.owner[lists[r]] != r).sum()) for r in range(3)) == 40


def test_rows_nobody_asks_for_are_not_copied():
    assert [len(probability_owners(torch.zeros(2, 10), budget_rows=8, replicas=k).replicas(0)) for k in ("own", "common")] == [
        0,
        0,
    ]


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="budget of 4 rows on each of 2 ranks does not hold 10 rows: it takes 5"):
        probability_owners(torch.rand(2, 10), budget_rows=4)
    with pytest.raises(ValueError, match="row_bytes"):
        probability_owners(torch.rand(2, 10), budget_bytes=4)
    with pytest.raises(ValueError, match="not both"):
        probability_owners(torch.rand(2, 10), budget_bytes=4, budget_rows=4)
    with pytest.raises(ValueError, match="negative, nor NaN"):
        probability_owners(torch.tensor([[0.1, torch.nan]]))
    with pytest.raises(ValueError, match=r"shape \[ranks, nodes\]"):
        probability_owners(torch.rand(10))
    with pytest.raises(ValueError, match="'own' or 'common'"):
        probability_owners(torch.rand(2, 3), replicas="all")
    with pytest.raises(ValueError, match="ranks must be at least 1 and at most 4194304, not 0"):
        hash_owners(10, 0)
    with pytest.raises(ValueError, match="num_nodes must be"):
        hash_owners(-1, 2)
    with pytest.raises(ValueError, match="owners must be ranks 0 to 1, got 0 to 2"):
        TableOwners(torch.tensor([0, 2]), 2)
    with pytest.raises(ValueError, match="1 lists for 2 ranks"):
        TableOwners(torch.tensor([0, 1]), 2, replicas=[torch.tensor([1])])
