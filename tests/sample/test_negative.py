"""Negatives against a plain Python version of their contract, and what filtering and weights promise."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

import headrace as hr
from headrace import _native
from headrace.sample import NegativeSampler, NegativeSampling
from plain_philox import MASK, philox, stream_key


def one_end(high, low, count, weight):
    word = high << 32 | low
    if weight is None:
        return word * count >> 64
    sums = torch.tensor(weight, dtype=torch.float64).cumsum(0)
    u = (word >> 11) * 2.0**-53 * float(sums[-1])
    return next(i for i, s in enumerate(sums.tolist()) if s > u)


def reference(sampler, src, epoch, batch, edges=()):
    """(sources, targets, how many are edges) drawn for positives with sources `src`."""
    how = sampler.sampling
    key = stream_key(sampler.seed, epoch, batch, _native.Purpose.negative)
    triplet = how.mode == "triplet"
    pairs, left = [], 0
    for slot in range(-int(-len(src) * how.amount // 1)):
        for turn in range(how.rounds if edges else 1):
            words = philox(key, (slot & MASK, slot >> 32, turn, 0))
            u = src[slot // int(how.amount)] if triplet else one_end(*words[:2], sampler.num_src, how.src_weight)
            pair = u, one_end(*words[2:], sampler.num_dst, how.dst_weight)
            if pair not in edges:
                break
        pairs.append(pair)
        left += pair in edges
    return [u for u, _ in pairs], [v for _, v in pairs], left


def assert_equals_reference(sampler, src, *, epoch=0, batch=0, edges=()):
    drawn = sampler.sample(src, epoch, batch)
    assert (drawn.src.tolist(), drawn.dst.tolist(), drawn.left) == reference(sampler, src, epoch, batch, edges)
    assert drawn.src.dtype == drawn.dst.dtype == torch.int64
    return drawn


@pytest.mark.parametrize("mode", ["binary", "triplet"])
@pytest.mark.parametrize("amount", [1, 3])
@pytest.mark.parametrize("sizes", [(50, 50), (7, 2**40), (1, 1)])
def test_negatives_are_those_of_the_contract(mode, amount, sizes):
    sampler = NegativeSampler({"mode": mode, "amount": amount}, num_src=sizes[0], num_dst=sizes[1], seed=2**60 + 1)
    drawn = assert_equals_reference(sampler, [0, 5, 0, 6], epoch=3, batch=2**35)
    assert len(drawn.dst) == 4 * amount


@settings(max_examples=25, deadline=None)
@given(
    nodes=st.integers(1, 8),
    amount=st.sampled_from([0.5, 1, 1.3, 2]),
    rounds=st.integers(1, 4),
    weights=st.booleans(),
    edges=st.integers(0, 40),
    seed=st.integers(0, 2**64 - 1),
)
def test_filtered_negatives_are_those_of_the_contract(nodes, amount, rounds, weights, edges, seed):
    generator = torch.Generator().manual_seed(edges)
    src, dst = torch.randint(0, nodes, (2, edges), generator=generator)
    weight = [float(i % 3) + (i == 0) for i in range(nodes)] if weights else None
    how = NegativeSampling("binary", amount, src_weight=weight, dst_weight=weight, filter=True, rounds=rounds)
    sampler = NegativeSampler(how, num_src=nodes, num_dst=nodes, edges=hr.Graph.from_edges(src, dst, nodes), seed=seed)
    assert_equals_reference(sampler, list(range(9)), edges=set(zip(src.tolist(), dst.tolist(), strict=True)))


@pytest.mark.parametrize("mode", ["binary", "triplet"])
@pytest.mark.parametrize("wide", [False, True])
def test_filtering_leaves_no_edge_in_a_sparse_graph(mode, wide):
    data = hr.generate.community(nodes=300, edges=9000, classes=3, features=0).graph
    graph = hr.Graph(data.indptr, data.indices.long()) if wide else data
    true = set(map(tuple, graph.edge_index().t().tolist()))
    plain = NegativeSampler({"mode": mode, "amount": 4}, num_src=300, num_dst=300)
    filtered = NegativeSampler({"mode": mode, "amount": 4, "filter": graph, "rounds": 50}, num_src=300, num_dst=300)
    src = torch.arange(300)
    first, second = plain.sample(src), filtered.sample(src)
    pairs = list(zip(first.src.tolist(), first.dst.tolist(), strict=True))
    kept = list(zip(second.src.tolist(), second.dst.tolist(), strict=True))
    assert any(p in true for p in pairs)
    assert not any(p in true for p in kept)
    assert second.left == first.left == 0
    assert all(p == q for p, q in zip(pairs, kept, strict=True) if p not in true)  # others are not drawn again


def test_what_cannot_be_avoided_is_counted():
    full = hr.Graph.from_edges([0, 1, 0, 1], [0, 0, 1, 1])
    sampler = NegativeSampler({"mode": "binary", "filter": True}, num_src=2, num_dst=2, edges=full)
    assert sampler.sample([0] * 10).left == 10


def test_rectangular_edges_are_avoided_too():
    relation = hr.HeteroGraph.from_edges({("a", "r", "b"): ([0, 1, 2, 3], [0, 0, 0, 0])}).relations["a", "r", "b"]
    sampler = NegativeSampler({"mode": "binary", "filter": True, "rounds": 99}, num_src=5, num_dst=1, edges=relation)
    drawn = sampler.sample(range(20))
    assert set(drawn.src.tolist()) == {4}
    assert drawn.left == 0


@pytest.mark.parametrize("weight", [None, [1.0, 0.0, 3.0, 4.0]])
def test_ends_are_drawn_by_their_weights(weight):
    how = NegativeSampling("binary", src_weight=weight, dst_weight=weight)
    drawn = NegativeSampler(how, num_src=4, num_dst=4, seed=3).sample(torch.zeros(8000, dtype=torch.int64))
    shares = torch.tensor(weight or [1.0] * 4)
    for end in (drawn.src, drawn.dst):
        seen = torch.bincount(end, minlength=4)
        assert seen[shares == 0].sum() == 0
        expected = shares / shares.sum() * 8000
        assert chisquare(seen[shares > 0], expected[shares > 0]).pvalue > 1e-4


def test_a_batch_depends_on_seed_epoch_and_batch_alone():
    def drawn(seed=0, epoch=0, batch=0, threads=1):
        sampler = NegativeSampler("binary", num_src=10**6, num_dst=10**6, seed=seed)
        found = sampler.sample(torch.zeros(20_000, dtype=torch.int64), epoch, batch, threads=threads)
        return tuple(found.src.tolist() + found.dst.tolist())

    assert drawn() == drawn(threads=4)
    assert len({drawn(), drawn(seed=1), drawn(epoch=1), drawn(batch=1)}) == 4


def test_no_positives_have_no_negatives():
    for mode in ("binary", "triplet"):
        drawn = NegativeSampler(mode, num_src=0, num_dst=0).sample([])
        assert drawn.src.numel() == drawn.dst.numel() == drawn.left == 0


def test_settings_come_in_every_form_pyg_allows():
    wanted = ("triplet", 2)
    like = SimpleNamespace(mode=SimpleNamespace(value="triplet"), amount=2, src_weight=None, dst_weight=None)
    for form in ({"mode": "triplet", "amount": 2}, like, NegativeSampling("triplet", 2)):
        made = NegativeSampling.of(form)
        assert (made.mode, made.amount) == wanted
    assert NegativeSampling.of(None) is None
    assert NegativeSampling.of("binary").amount == 1


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("other", ValueError, "'binary' or 'triplet', not 'other'"),
        ({"mode": "binary", "ratio": 2}, ValueError, "ratio"),
        ({"mode": "binary", "amount": 0}, ValueError, "positive"),
        ({"mode": "triplet", "amount": 1.5}, ValueError, "whole number"),
        ({"mode": "binary", "rounds": 0}, ValueError, "at least 1"),
        ({"mode": "binary", "filter": True}, ValueError, "pass edges"),
        ({"mode": "binary", "src_weight": [1.0]}, ValueError, "src_weight has shape"),
        ({"mode": "binary", "dst_weight": [1.0, -1.0, 1.0]}, ValueError, "not negative"),
        ({"mode": "binary", "dst_weight": [0.0, 0.0, 0.0]}, ValueError, "positive, finite sum"),
        ({"mode": "binary", "filter": hr.Graph.from_edges([0], [8])}, ValueError, "9 targets"),
        ({"mode": "binary", "filter": "yes"}, TypeError, "filter must be"),
        (3, TypeError, "neg_sampling must be"),
        (None, ValueError, "needs to know how"),
    ],
)
def test_settings_that_mean_nothing_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        NegativeSampler(given, num_src=3, num_dst=3)


def test_a_graph_without_nodes_has_nothing_to_draw():
    with pytest.raises(ValueError, match="no nodes"):
        NegativeSampler("binary", num_src=0, num_dst=0).sample([0])
