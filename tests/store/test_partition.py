"""Partitions: every node has one owner and one row there, shares are even, budgets hold."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.store import Partition, TablePartition, hash_partition, probability_partition
from headrace.store.partition import HashPartition


def check_is_a_partition(partition: Partition, nodes: int, ranks: int) -> None:
    assert isinstance(partition, Partition)
    assert (partition.num_nodes, partition.ranks) == (nodes, ranks)
    shares = [partition.ids_of(rank) for rank in range(ranks)]
    assert torch.equal(torch.cat(shares).sort().values, torch.arange(nodes))
    for rank, share in enumerate(shares):
        assert len(share) == partition.size(rank)
        owner, row = partition.locate(share)
        assert torch.equal(owner, torch.full_like(share, rank))
        assert torch.equal(row, torch.arange(len(share)))


@settings(max_examples=40, deadline=None)
@given(nodes=st.integers(0, 400), ranks=st.integers(1, 9), seed=st.integers(0, 1 << 40))
def test_hash_partition_is_a_partition_into_even_shares(nodes, ranks, seed):
    partition = hash_partition(nodes, ranks, seed)
    check_is_a_partition(partition, nodes, ranks)
    sizes = [partition.size(rank) for rank in range(ranks)]
    assert max(sizes) - min(sizes) <= 1


def test_hash_partition_spreads_runs_and_strides_of_ids():
    partition = hash_partition(1_000_000, 4, seed=7)
    for ids in (torch.arange(1000), torch.arange(500_000, 501_000), torch.arange(0, 8000, 2), torch.arange(1, 64_000, 16)):
        counts = torch.bincount(partition.locate(ids.int())[0], minlength=4)
        assert int(counts.max()) < 1.35 * len(ids) / 4, counts


def test_seeds_differ_and_repeat():
    assert hash_partition(1000, 3, 1) == hash_partition(1000, 3, 1)
    assert hash_partition(1000, 3, 1).fingerprint != hash_partition(1000, 3, 2).fingerprint


def test_ids_past_32_bits_stay_exact():
    nodes = (1 << 39) + 12_345
    partition = hash_partition(nodes, 3, 5)
    ids = [0, 1, (1 << 31) + 1, (1 << 33) + 7, nodes - 1]
    owner, row = partition.locate(torch.tensor(ids))
    for id_, found, at in zip(ids, owner.tolist(), row.tolist(), strict=True):
        place = (partition.factor * id_ + partition.shift) % nodes
        assert sum(partition.size(rank) for rank in range(found)) + at == place
    small = HashPartition(num_nodes=(1 << 33) + 1, ranks=1 << 20, factor=5, shift=9)
    assert torch.equal(small.locate(small.ids_of(77))[0], torch.full((small.size(77),), 77))


def test_more_ranks_than_nodes():
    check_is_a_partition(hash_partition(2, 5), 2, 5)
    check_is_a_partition(TablePartition(torch.tensor([4, 1]), 5), 2, 5)
    check_is_a_partition(probability_partition(torch.rand(5, 2)), 2, 5)


def best_owner_cost(wanted, owner):
    """Rows asked of other ranks, per batch."""
    return float(wanted.sum() - wanted[owner.long(), torch.arange(wanted.shape[1])].sum())


@settings(max_examples=25, deadline=None)
@given(nodes=st.integers(0, 300), ranks=st.integers(1, 5), chunk=st.integers(1, 64), seed=st.integers(0, 100))
def test_probability_partition_is_even_and_no_worse_than_hashing(nodes, ranks, chunk, seed):
    wanted = torch.rand(ranks, nodes, generator=torch.Generator().manual_seed(seed)) ** 4
    partition = probability_partition(wanted, chunk=chunk)
    check_is_a_partition(partition, nodes, ranks)
    sizes = [partition.size(rank) for rank in range(ranks)]
    assert max(sizes) - min(sizes) <= 1
    if nodes >= 100 and chunk >= 20:
        hashed = hash_partition(nodes, ranks).locate(torch.arange(nodes))[0]
        assert best_owner_cost(wanted, partition.owner) <= best_owner_cost(wanted, hashed)


def test_rows_go_to_the_rank_that_wants_them_where_all_can_be_served():
    wanted = torch.zeros(3, 300)
    favourite = torch.arange(300) % 3
    wanted[favourite, torch.arange(300)] = torch.rand(300) + 0.1
    partition = probability_partition(wanted, chunk=300)
    assert torch.equal(partition.owner.long(), favourite)
    assert partition.replicas(0).numel() == 0


@pytest.mark.parametrize("kind", ["own", "common"])
def test_replicas_fill_the_budget_with_the_hottest_rows_of_others(kind):
    wanted = torch.rand(3, 90)
    wanted[:, 80:] = 0
    partition = probability_partition(wanted, budget_bytes=40 * 16, row_bytes=16, replicas=kind)
    lists = [partition.replicas(rank) for rank in range(3)]
    for rank, ids in enumerate(lists):
        copies = ids[partition.owner[ids] != rank]
        assert partition.size(rank) + len(copies) <= 40
        heat = wanted[rank] if kind == "own" else wanted.sum(0)
        candidates = heat.clone()
        if kind == "own":
            assert len(copies) == len(ids) == 10
            candidates[partition.owner == rank] = 0
        assert torch.equal(heat[ids], candidates.sort(descending=True).values[: len(ids)])
    if kind == "common":
        assert torch.equal(lists[0], lists[1])
        assert max(partition.size(r) + int((partition.owner[lists[r]] != r).sum()) for r in range(3)) == 40


def test_rows_nobody_asks_for_are_not_copied():
    assert [len(probability_partition(torch.zeros(2, 10), budget_rows=8, replicas=k).replicas(0)) for k in ("own", "common")] == [
        0,
        0,
    ]


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="budget of 4 rows on each of 2 ranks does not hold 10 rows: it takes 5"):
        probability_partition(torch.rand(2, 10), budget_rows=4)
    with pytest.raises(ValueError, match="row_bytes"):
        probability_partition(torch.rand(2, 10), budget_bytes=4)
    with pytest.raises(ValueError, match="not both"):
        probability_partition(torch.rand(2, 10), budget_bytes=4, budget_rows=4)
    with pytest.raises(ValueError, match="negative, nor NaN"):
        probability_partition(torch.tensor([[0.1, torch.nan]]))
    with pytest.raises(ValueError, match=r"shape \[ranks, nodes\]"):
        probability_partition(torch.rand(10))
    with pytest.raises(ValueError, match="'own' or 'common'"):
        probability_partition(torch.rand(2, 3), replicas="all")
    with pytest.raises(ValueError, match="ranks must be at least 1 and at most 4194304, not 0"):
        hash_partition(10, 0)
    with pytest.raises(ValueError, match="num_nodes must be"):
        hash_partition(-1, 2)
    with pytest.raises(ValueError, match="owners must be ranks 0 to 1, got 0 to 2"):
        TablePartition(torch.tensor([0, 2]), 2)
    with pytest.raises(ValueError, match="1 lists for 2 ranks"):
        TablePartition(torch.tensor([0, 1]), 2, replicas=[torch.tensor([1])])
