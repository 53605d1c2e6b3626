"""Disjoint trees and temporal sampling: equal to the contract in Python, and blind to the future."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_contract import assert_equals_reference, assert_same_sample

import headrace as hr
from headrace.sample import NeighborSampler


@st.composite
def timed_graphs(draw, *, weighted=False):
    nodes = draw(st.integers(1, 15))
    degrees = draw(st.lists(st.sampled_from([0, 1, 2, 5, 16, 17, 40]), min_size=nodes, max_size=nodes))
    indptr = np.r_[0, np.cumsum(degrees)]
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    indices = rng.integers(0, nodes, indptr[-1]).astype(draw(st.sampled_from([np.int32, np.int64])))
    time = rng.integers(-5, 6, indptr[-1]).astype(draw(st.sampled_from([np.int64, np.float64])))
    weight = torch.from_numpy(rng.integers(0, 4, indptr[-1]).astype(np.float32)) if weighted else None
    graph = hr.Graph(torch.from_numpy(indptr), torch.from_numpy(indices), weight=weight, time=torch.from_numpy(time))
    return graph.sorted_by_time()


FANOUTS = st.lists(st.sampled_from([-1, 0, 1, 2, 5, 16, 17]), min_size=1, max_size=3)


@settings(derandomize=True, deadline=None, max_examples=120)
@given(graph=timed_graphs(), fanouts=FANOUTS, replace=st.booleans(), batch=st.sampled_from([0, 5, 2**64 - 1]), data=st.data())
def test_disjoint_samples_equal_the_contract(graph, fanouts, replace, batch, data):
    seeds = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=8))  # repeated, or none
    sampler = NeighborSampler(graph, fanouts, replace=replace, disjoint=True, seed=2)
    sample = assert_equals_reference(sampler, seeds, batch=batch)
    pairs = list(zip(sample.tree.tolist(), sample.nodes.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    source, target = sample.edge_index()
    assert torch.equal(sample.tree[source], sample.tree[target])


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    graph=timed_graphs(weighted=True),
    fanouts=FANOUTS,
    temporal=st.sampled_from(["uniform", "last"]),
    replace=st.booleans(),
    weighted=st.booleans(),
    inclusive=st.booleans(),
    hop_time=st.sampled_from(["seed", "edge"]),
    since=st.sampled_from([None, -2, 1]),
    data=st.data(),
)
def test_temporal_samples_equal_the_contract_and_never_see_the_future(
    graph, fanouts, temporal, replace, weighted, inclusive, hop_time, since, data
):
    if temporal == "last":
        replace = weighted = False
    if replace and weighted:
        since = None
    seeds = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=8))
    time = data.draw(st.lists(st.integers(-7, 7), min_size=len(seeds), max_size=len(seeds)))
    options = {"temporal": temporal, "replace": replace, "weighted": weighted, "inclusive": inclusive, "seed": 9}
    options |= {"hop_time": hop_time, "since": since}
    sampler = NeighborSampler(graph, fanouts, **options)
    sample = assert_equals_reference(sampler, seeds, epoch=1, batch=3, time=time)
    seen = NeighborSampler(hr.Graph(graph.indptr, graph.indices, weight=graph.weight, time=graph.time), fanouts, **options)
    positions = seen.sample(seeds, 1, 3, time=time, edge_ids=True).edge_id
    until = torch.tensor(time, dtype=graph.time.dtype)[sample.tree[sample.edge_index()[1]].long()]
    drawn = graph.time[positions]
    assert bool((drawn <= until if inclusive else drawn < until).all())
    assert since is None or bool((drawn >= since).all())
    if hop_time == "edge":
        source, target = sample.edge_index()
        assert source.tolist() == list(range(len(seeds), len(sample.nodes)))  # a node per edge
        of_later = target >= len(seeds)
        led = drawn[target[of_later] - len(seeds)]
        assert bool((drawn[of_later] <= led if inclusive else drawn[of_later] < led).all())


def test_each_tree_of_a_batch_is_the_tree_of_its_seed():
    """Seeds do not see one another, but for the counter that tells trees apart; taking all neighbors leaves nothing to it."""
    graph = hr.generate.community(400, 3_000, features=0, classes=3, seed=3).graph
    batch = NeighborSampler(graph, [-1, -1], disjoint=True).sample([5, 9, 5])
    for tree, seed in enumerate([5, 9, 5]):
        alone = NeighborSampler(graph, [-1, -1]).sample([seed])
        assert sorted(batch.nodes[batch.tree == tree].tolist()) == sorted(alone.nodes.tolist())


def test_repeated_seeds_draw_differently():
    graph = hr.Graph.from_edges(torch.arange(1, 1_001), torch.zeros(1_000, dtype=torch.int64))
    sample = NeighborSampler(graph, [10], disjoint=True).sample([0, 0])
    first, second = (set(sample.nodes[sample.tree == tree].tolist()) for tree in (0, 1))
    assert len(first & second) < 4


def test_the_last_are_the_latest_in_order():
    graph = hr.Graph.from_edges(range(6), [6] * 6, 7, time=[5, 1, 4, 1, 9, 3], edge_id=True).sorted_by_time()
    sampler = NeighborSampler(graph, [2], temporal="last")
    sample = sampler.sample([6, 6, 6, 6], time=[5, 6, 1, 100], edge_ids=True)
    assert sample.nodes[4:].tolist() == [5, 2, 2, 0, 0, 4]
    assert sample.tree.tolist() == [0, 1, 2, 3, 0, 0, 1, 1, 3, 3]
    assert sample.edge_id.tolist() == [5, 2, 2, 0, 0, 4]
    at = NeighborSampler(graph, [2], temporal="last", inclusive=True).sample([6, 6], time=[5, 1])
    assert at.nodes[2:].tolist() == [2, 0, 1, 3]


@pytest.mark.parametrize("kind", [torch.int64, torch.float64])
def test_hops_by_the_times_of_edges_see_what_was_there_then(kind):
    """Node 3 met 0, 1, 2 and 0 again; node 0 met 4 between. Exactly one past edge, exactly k, fewer, and ties of time."""
    events = [(0, 3, 10), (4, 0, 20), (1, 3, 20), (2, 3, 20), (0, 3, 30)]
    src, dst, time = zip(*events, strict=True)
    graph = hr.Graph.from_edges(src, dst, 5, time=torch.tensor(time, dtype=kind), edge_id=True, undirected=True).sorted_by_time()
    at = torch.tensor([11, 20, 21, 31, 10], dtype=kind)
    ask = {"time": at, "edge_ids": True, "edge_times": True}
    sample = NeighborSampler(graph, [3, 2], temporal="last", hop_time="edge").sample([3] * 5, **ask)
    assert sample.num_sampled_nodes == (5, 8, 2)
    assert sample.indptr.diff()[:5].tolist() == [1, 1, 3, 3, 0]
    assert sample.nodes[5:13].tolist() == [0, 0, 0, 1, 2, 1, 2, 0]
    assert sample.edge_time[:8].tolist() == [10, 10, 10, 20, 20, 20, 20, 30]
    assert sample.nodes[13:].tolist() == [3, 4]  # whom 0 had met by 30; by 10 nobody had met anybody
    assert sample.edge_time[8:].tolist() == [10, 20]
    assert sample.edge_time.dtype == kind
    window = NeighborSampler(graph, [3], temporal="last", since=20).sample([3] * 5, **ask)
    assert window.indptr.diff().tolist() == [0, 0, 2, 3, 0]
    assert window.edge_time.tolist() == [20, 20, 20, 20, 30]


def test_a_window_and_weights_with_replacement_do_not_go_together():
    graph = hr.Graph.from_edges([0], [1], time=[1], weight=[1.0])
    with pytest.raises(ValueError, match="since does not go with weighted draws with replacement"):
        NeighborSampler(graph, [2], temporal="uniform", weighted=True, replace=True, since=0)
    with pytest.raises(ValueError, match="edge_times is for temporal sampling"):
        NeighborSampler(hr.Graph.from_edges([0], [1]), [2]).sample([0], edge_times=True)


@pytest.fixture(scope="module")
def large():
    graph = hr.generate.community(6_000, 150_000, features=0, classes=5, seed=1).graph
    time = torch.from_numpy(np.random.default_rng(4).random(graph.num_edges))
    return hr.Graph(graph.indptr, graph.indices, time=time).sorted_by_time()


@pytest.mark.parametrize(
    "options",
    [
        {"disjoint": True},
        {"temporal": "uniform"},
        {"temporal": "last"},
        {"temporal": "uniform", "hop_time": "edge", "since": 0.1},
    ],
    ids=str,
)
def test_threads_and_id_types_change_nothing(large, options):
    wide = hr.Graph(large.indptr, large.indices.long(), time=large.time)
    rng = np.random.default_rng(2)
    seeds = torch.from_numpy(rng.integers(0, large.num_nodes, 1_500))
    time = torch.from_numpy(rng.random(1_500)) if "temporal" in options else None
    first = None
    for graph, by, threads in itertools.product((large, wide), ("auto", "hash"), (1, 2, 5)):
        sampler = NeighborSampler(graph, [10, 4], seed=8, deduplicate_by=by, **options)
        sample = sampler.sample(seeds, 2, 9, threads=threads, time=time)
        first = first or sample
        assert torch.equal(sample.nodes.int(), first.nodes.int())
        assert torch.equal(sample.indices, first.indices)
        assert torch.equal(sample.tree, first.tree)
    few = slice(0, 700)
    again = assert_equals_reference(
        NeighborSampler(large, [25], seed=8, **options),
        seeds[few].tolist(),
        threads=2,
        time=None if time is None else time[few].tolist(),
    )
    assert again.num_edges > 2 * 4_096 or "temporal" in options


def test_a_sampler_serves_batch_after_batch(large):
    """What a batch left in the table of trees does not show in later ones."""
    sampler = NeighborSampler(large, [5, 5], disjoint=True, seed=1)
    for batch in range(4):
        seeds = torch.arange(batch * 100, batch * 100 + 300)
        fresh = NeighborSampler(large, [5, 5], disjoint=True, seed=1)
        assert_same_sample(sampler.sample(seeds, 0, batch), fresh.sample(seeds, 0, batch))


def test_an_empty_batch_has_no_trees():
    graph = hr.Graph.from_edges([0], [1], time=[3])
    sample = NeighborSampler(graph, [2, 2], temporal="uniform").sample([], time=[], edge_ids=True)
    assert sample.tree.tolist() == []
    assert sample.num_sampled_nodes == (0, 0, 0)


def test_a_plain_sample_has_no_tree():
    assert NeighborSampler(hr.Graph.from_edges([0], [1]), [2]).sample([1]).tree is None


# ---- errors


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"temporal": "first"}, "temporal must be 'uniform', 'last' or None, not 'first'"),
        ({"temporal": "last", "replace": True}, "leaves nothing to chance"),
        ({"temporal": "last", "weighted": True}, "leaves nothing to chance"),
        ({"inclusive": True}, "inclusive says which edges are past"),
        ({"temporal": "uniform", "labor": True}, "neither with replace nor with disjoint"),
        ({"disjoint": True, "deduplicate_by": "stamp"}, "told apart by hashing"),
        ({"temporal": "last", "hop_time": "node"}, "hop_time must be 'seed' or 'edge', not 'node'"),
        ({"hop_time": "edge"}, "they need temporal='uniform' or 'last'"),
        ({"since": 3}, "they need temporal='uniform' or 'last'"),
        ({"temporal": "last", "since": 0.5}, "since=0.5: time holds real numbers, but the graph's times are integers"),
        ({"temporal": "uniform", "since": float("nan")}, "since=nan: .* is not a number"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        NeighborSampler(hr.Graph.from_edges([0], [1], time=[1]), [2], **options)


def test_graphs_without_times_or_out_of_order_are_refused():
    with pytest.raises(ValueError, match="needs a graph with times"):
        NeighborSampler(hr.Graph.from_edges([0], [1]), [2], temporal="uniform")
    graph = hr.Graph.from_edges([0, 1], [2, 2], time=[2, 1])
    with pytest.raises(ValueError, match=r"sample from graph.sorted_by_time\(\)"):
        NeighborSampler(graph, [2], temporal="uniform")
    with pytest.raises(ValueError, match="disjoint trees grow at most 255 hops"):
        NeighborSampler(graph, [1] * 256, disjoint=True)


@pytest.mark.parametrize(
    ("time", "complaint"),
    [
        (None, "needs the time of every seed"),
        ([1], "time has 1 entries for 2 seeds"),
        ([1.5, 2.5], "the graph's times are integers"),
        ([float("nan"), 1.0], r"time\[0\] is not a number"),
        ([[1], [2]], "time must have one dimension"),
        ([True, False], "time must hold integers or real numbers"),
    ],
)
def test_bad_seed_times_are_named(time, complaint):
    sampler = NeighborSampler(hr.Graph.from_edges([0], [1], time=[1]), [2], temporal="uniform")
    with pytest.raises(ValueError, match=complaint):
        sampler.sample([0, 1], time=time)


def test_a_time_without_temporal_sampling_is_refused():
    with pytest.raises(ValueError, match="time is for temporal sampling"):
        NeighborSampler(hr.Graph.from_edges([0], [1], time=[1]), [2]).sample([1], time=[4])
