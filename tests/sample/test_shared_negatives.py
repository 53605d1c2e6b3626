"""Negatives that chunks share, and known edges among them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sample import KnownEdges, SharedNegatives, known_among


def test_draws_depend_on_seed_epoch_and_batch_alone():
    sampler = SharedNegatives(1000, amount=7, chunks=3, degree_fraction=0.5, seed=5)
    first = sampler.sample([1, 2], [3, 4], epoch=1, batch=2)
    sampler.sample([9], [9], epoch=4, batch=0, ranges=[(5, 9)])
    again = SharedNegatives(1000, amount=7, chunks=3, degree_fraction=0.5, seed=5, threads=1).sample(
        [1, 2], [3, 4], epoch=1, batch=2
    )
    assert torch.equal(first, again)
    assert first.shape == (3, 7)
    for other in ({"epoch": 0, "batch": 2}, {"epoch": 1, "batch": 3}):
        assert not torch.equal(first, sampler.sample([1, 2], [3, 4], **other))


def test_share_of_the_batch_comes_first():
    sampler = SharedNegatives(10**12, amount=8, chunks=50, degree_fraction=0.25, seed=1)
    drawn = sampler.sample(torch.tensor([10, 20], dtype=torch.int32), [30, 30])
    own, others = drawn[:, :2], drawn[:, 2:]
    assert set(own.flatten().tolist()) == {10, 20, 30}
    assert (own == 30).float().mean() > 0.3  # twice as often, as it has two edges
    assert bool((others > 100).all())
    assert int(others.max()) > 2**38
    in_batch = SharedNegatives(10**6, amount=4, degree_fraction=1.0).sample([1, 2], [3, 4])
    assert set(in_batch.flatten().tolist()) <= {1, 2, 3, 4}


def test_ranges_restrict_and_are_uniform():
    sampler = SharedNegatives(100, amount=4000, seed=3)
    drawn = sampler.sample([], [], ranges=[(10, 20), (90, 92), (50, 50)])
    assert set(drawn.flatten().tolist()) == {*range(10, 20), 90, 91}
    assert abs((drawn >= 90).float().mean() - 2 / 12) < 0.03
    assert set(sampler.sample([], [], ranges=[(97, 100)]).flatten().tolist()) == {97, 98, 99}


def test_weights_within_ranges():
    weight = torch.zeros(20)
    weight[3], weight[15], weight[16] = 1.0, 1.0, 3.0
    sampler = SharedNegatives(20, amount=4000, weight=weight, seed=3)
    assert set(sampler.sample([], []).flatten().tolist()) == {3, 15, 16}
    drawn = sampler.sample([], [], ranges=[(10, 20)])
    assert set(drawn.flatten().tolist()) == {15, 16}
    assert abs((drawn == 16).float().mean() - 0.75) < 0.03
    with pytest.raises(ValueError, match="weight 0"):
        sampler.sample([], [], ranges=[(0, 3)])


@pytest.mark.parametrize(
    ("change", "message"),
    [({"amount": 0}, "at least 1"), ({"degree_fraction": 1.5}, "from 0 to 1"), ({"weight": [1.0]}, "for 5 nodes")],
)
def test_wrong_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        SharedNegatives(5, **{"amount": 2, **change})


def test_wrong_ranges_are_refused():
    sampler = SharedNegatives(5, amount=2, degree_fraction=0.5)
    with pytest.raises(ValueError, match="0 to 4"):
        sampler.sample([1], [2], ranges=[(0, 6)])
    with pytest.raises(ValueError, match="no node"):
        sampler.sample([1], [2], ranges=[])
    with pytest.raises(ValueError, match="degree_fraction 0"):
        sampler.sample([], [])


@settings(max_examples=25, deadline=None)
@given(
    triples=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(0, 5)), max_size=12),
    asked=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), min_size=4, max_size=4),
    candidates=st.lists(st.integers(0, 5), min_size=6, max_size=6),
    side=st.sampled_from(["tail", "head"]),
)
def test_known_candidates_are_those_of_a_set(triples, asked, candidates, side):
    known = KnownEdges(torch.tensor(triples).reshape(-1, 3), num_nodes=6, num_relations=2)
    end = torch.tensor([e for e, _ in asked]).view(2, 2)
    relation = torch.tensor([r for _, r in asked]).view(2, 2)
    shared = torch.tensor(candidates, dtype=torch.int32).view(2, 3)
    mask = known_among(known, end, relation, shared, side=side)
    true = set(triples)
    for chunk in range(2):
        for i in range(2):
            for j in range(3):
                edge = (int(end[chunk, i]), int(relation[chunk, i]), int(shared[chunk, j]))
                edge = edge if side == "tail" else edge[::-1]
                assert bool(mask[chunk, i, j]) == (edge in true)


def test_answers_of_nothing():
    known = KnownEdges(torch.zeros(0, 3, dtype=torch.int32), num_nodes=3, num_relations=1)
    position, node = known.answers(torch.tensor([1, 2]), torch.tensor([0, 0]), side="head")
    assert len(position) == len(node) == 0
    with pytest.raises(ValueError, match="head, relation and tail"):
        KnownEdges(torch.zeros(4, 2), num_nodes=3, num_relations=1)


@settings(max_examples=50, deadline=None)
@given(
    ends=st.lists(st.tuples(*[st.integers(-(2**62), 2**62) | st.integers(0, 5)] * 2), min_size=1, max_size=30),
    narrow=st.booleans(),
    chunks=st.integers(1, 3),
    fraction=st.sampled_from([0.0, 0.5, 1.0]),
    ranges=st.sampled_from([None, [(3, 9)], [(0, 2), (90, 100)]]),
)
def test_edges_are_numbered_with_their_negatives_in_order_of_first_appearance(ends, narrow, chunks, fraction, ranges):
    dtype = torch.int32 if narrow else torch.int64
    triples = torch.tensor([[h % 2**31, i, t % 2**31] if narrow else [h, i, t] for i, (h, t) in enumerate(ends)], dtype=dtype)
    positions = torch.arange(len(ends)).flip(0)[: len(ends) // 2 + 1]
    sampler = SharedNegatives(100, amount=4, degree_fraction=fraction, seed=3)
    found = sampler.of_edges(triples, positions, epoch=1, batch=2, ranges=ranges, chunks=chunks)
    head, relation, tail = triples[positions].long().unbind(1)
    drawn = sampler.sample(head, tail, epoch=1, batch=2, ranges=ranges, chunks=chunks)
    nodes = torch.cat([head, tail, drawn.flatten()])
    assert torch.equal(found.relation, relation)
    assert torch.equal(found.nodes, nodes)
    assert found.ids.tolist() == list(dict.fromkeys(nodes.tolist()))
    assert torch.equal(found.ids[found.place], nodes)
    sorted_ = sampler.of_edges(triples, positions, epoch=1, batch=2, ranges=ranges, chunks=chunks, ascending=True)
    assert sorted_.ids.tolist() == sorted(set(nodes.tolist()))
    assert torch.equal(sorted_.ids[sorted_.place], nodes)


def test_positions_past_the_edges_are_refused():
    sampler = SharedNegatives(5, amount=2)
    for position in (-1, 1):
        with pytest.raises(ValueError, match="out of range"):
            sampler.of_edges(torch.ones(1, 3).long(), torch.tensor([position]))
