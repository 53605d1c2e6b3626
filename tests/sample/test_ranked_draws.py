"""Draws by weight and LABOR: equal to the contract in Python to the last bit, and as likely as they must be."""

import gc
import itertools
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_contract import (
    LABOR,
    SAMPLE,
    assert_equals_reference,
    assert_same_sample,
    labor_word,
    minus_log,
    philox,
    stream_key,
)
from scipy.stats import chi2

import headrace as hr
from headrace.sample import NeighborSampler
from headrace.sample.weights import drawable


def goodness(counts, expected):
    """The chance of counts this far from what is expected."""
    return chi2.sf(((counts - expected) ** 2 / expected).sum(), len(counts) - 1)


# ---- the logarithm


def test_minus_log_is_accurate_for_every_word():
    n = np.arange(1 << 23, dtype=np.uint32)
    ours, truth = minus_log(n << 9), -np.log((n + 0.5) * 2.0**-23)
    assert ours.dtype == np.float32
    assert np.abs(ours / truth - 1).max() < 1.2e-7
    assert np.abs(ours[-4096:] / truth[-4096:] - 1).max() < 6e-8  # next to x = 1
    assert (np.diff(ours) < 0).all()
    assert ours[-1] > 0


def test_ranks_are_equal_to_the_last_bit():
    """Two entries a row, of weights that make their ranks equal but for the last bit: any other rounding takes another entry."""
    rows, key = 3_000, stream_key(5, 0, 0, SAMPLE)
    numbers = minus_log([philox(key, (0, node, 0, 0))[:2] for node in range(rows)])
    weight = np.ones((rows, 2), np.float32)
    weight[:, 1] = numbers[:, 1] / numbers[:, 0]
    weight[::3, 1] = np.nextafter(weight[::3, 1], np.float32(0))
    weight[1::3, 1] = np.nextafter(weight[1::3, 1], np.float32(np.inf))
    graph = hr.Graph(
        torch.arange(0, 2 * rows + 1, 2),
        torch.arange(2 * rows, dtype=torch.int32) % rows,
        weight=torch.from_numpy(weight.reshape(-1)),
    )
    sample = assert_equals_reference(NeighborSampler(graph, [1], weighted=True, seed=5), range(rows))
    assert 0.2 < (sample.edge_id % 2).float().mean() < 0.8


def test_ranks_of_a_long_row_equal_the_contract():
    degree = 1 << 15
    weight = torch.from_numpy(np.exp(np.random.default_rng(0).normal(0, 3, degree)).astype(np.float32))
    graph = hr.Graph(torch.tensor([0, degree]), torch.zeros(degree, dtype=torch.int32), weight=weight)
    for fanout in (1, 2, 100, 5_000, degree - 1):
        assert_equals_reference(NeighborSampler(graph, [fanout], weighted=True, seed=fanout), [0])


# ---- equal to the contract


@st.composite
def weighted_graphs(draw):
    nodes = draw(st.integers(1, 20))
    degrees = draw(st.lists(st.sampled_from([0, 0, 1, 2, 5, 16, 17, 40, 90]), min_size=nodes, max_size=nodes))
    indptr = np.r_[0, np.cumsum(degrees)]
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    indices = rng.integers(0, nodes, indptr[-1]).astype(draw(st.sampled_from([np.int32, np.int64])))
    kind = draw(st.sampled_from(["even", "wild", "gaps", "none"]))
    weight = {
        "even": np.ones(indptr[-1]),
        "wild": np.exp(rng.normal(0, 20, indptr[-1])),
        "gaps": rng.integers(0, 3, indptr[-1]),
        "none": np.zeros(indptr[-1]),
    }[kind]
    ids = torch.from_numpy(rng.permutation(indptr[-1])) if draw(st.booleans()) else None
    return hr.Graph(
        torch.from_numpy(indptr), torch.from_numpy(indices), weight=torch.from_numpy(weight.astype(np.float32)), edge_id=ids
    )


FANOUTS = st.lists(st.sampled_from([-1, 0, 1, 2, 3, 5, 16, 17, 50]), min_size=1, max_size=3)


@settings(derandomize=True, deadline=None, max_examples=120)
@given(
    graph=weighted_graphs(),
    fanouts=FANOUTS,
    replace=st.booleans(),
    disjoint=st.booleans(),
    by=st.sampled_from(["auto", "hash"]),
    seed=st.sampled_from([0, 7, 2**64 - 1]),
    batch=st.sampled_from([0, 3, 2**64 - 1]),
    data=st.data(),
)
def test_weighted_samples_equal_the_contract(graph, fanouts, replace, disjoint, by, seed, batch, data):
    seeds = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=6))
    sampler = NeighborSampler(graph, fanouts, weighted=True, replace=replace, disjoint=disjoint, seed=seed, deduplicate_by=by)
    assert_equals_reference(sampler, seeds, epoch=1, batch=batch)


@settings(derandomize=True, deadline=None, max_examples=120)
@given(
    graph=weighted_graphs(),
    fanouts=FANOUTS,
    weighted=st.booleans(),
    layer=st.booleans(),
    dependency=st.sampled_from([1, 2, 5, 2**32 - 1]),
    batch=st.sampled_from([0, 1, 9, 2**32 - 1]),
    by=st.sampled_from(["stamp", "hash"]),
    data=st.data(),
)
def test_labor_samples_equal_the_contract(graph, fanouts, weighted, layer, dependency, batch, by, data):
    seeds = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=8))
    sampler = NeighborSampler(
        graph,
        fanouts,
        weighted=weighted,
        labor=True,
        layer_dependency=layer,
        batch_dependency=dependency,
        seed=3,
        deduplicate_by=by,
    )
    assert_equals_reference(sampler, seeds, epoch=2, batch=batch)


def communities(nodes=6_000, edges=120_000):
    graph = hr.generate.community(nodes, edges, features=0, classes=5, seed=1).graph
    weight = torch.from_numpy(np.random.default_rng(5).gamma(0.5, size=graph.num_edges).astype(np.float32))
    weight[::7] = 0
    return hr.Graph(graph.indptr, graph.indices, weight=weight)


@pytest.fixture(scope="module")
def large():
    return communities()


WAYS = [
    {"weighted": True},
    {"weighted": True, "replace": True},
    {"weighted": True, "disjoint": True},
    {"labor": True},
    {"labor": True, "weighted": True, "batch_dependency": 4},
]


@pytest.mark.parametrize("options", WAYS, ids=lambda o: "-".join(o))
def test_the_parallel_path_equals_the_contract(large, options):
    seeds = np.random.default_rng(0).integers(0, large.num_nodes, 1_600)
    sampler = NeighborSampler(large, [9], seed=3, **options)
    sample = assert_equals_reference(sampler, seeds, epoch=1, batch=4, threads=2)
    assert sample.num_edges > 2 * 4_096


@pytest.mark.parametrize("options", WAYS, ids=lambda o: "-".join(o))
def test_threads_tables_and_id_types_change_nothing(large, options):
    wide = hr.Graph(large.indptr, large.indices.long(), weight=large.weight)
    seeds = torch.from_numpy(np.random.default_rng(2).integers(0, large.num_nodes, 2_000))
    first = None
    for graph, by, threads in itertools.product((large, wide), ("auto", "hash"), (1, 2, 5)):
        sample = NeighborSampler(graph, [10, 4], seed=8, deduplicate_by=by, **options).sample(seeds, 2, 9, threads=threads)
        assert sample.nodes.dtype == graph.indices.dtype
        first = first or sample
        assert torch.equal(sample.nodes.int(), first.nodes.int())
        assert_same_sample(sample, first) if graph is large else None


# ---- chances


def exact_inclusion(weight, take):
    """The chance of each entry to be among `take` that are drawn one after the other by weight."""
    weight = np.asarray(weight, float)
    chance = np.zeros(len(weight))
    for order in itertools.permutations(range(len(weight)), take):
        p, left = 1.0, weight.sum()
        for i in order:
            p, left = p * weight[i] / left, left - weight[i]
        chance[list(order)] += p
    return chance


def positions_drawn(graph, fanout, draws, **options):
    sampler = NeighborSampler(graph, [fanout], seed=11, **options)
    return np.concatenate([sampler.sample([0], 0, batch, edge_ids=True).edge_id.numpy() for batch in range(draws)])


@pytest.mark.parametrize("options", [{}, {"labor": True}], ids=["weighted", "labor"])
@pytest.mark.parametrize("take", [1, 2, 4])
def test_weighted_inclusion_is_that_of_successive_draws(take, options):
    weight = [5.0, 1.0, 0.0, 0.5, 3.0, 0.1, 2.0]
    graph = hr.Graph(torch.tensor([0, 7] + [7] * 7), torch.arange(1, 8), weight=torch.tensor(weight))
    draws = 6_000
    counts = np.bincount(positions_drawn(graph, take, draws, weighted=True, **options), minlength=7)
    assert counts[2] == 0
    some = [0, 1, 3, 4, 5, 6]
    chance = exact_inclusion(np.asarray(weight)[some], take)
    assert np.abs(counts[some] - draws * chance).max() < 4.5 * np.sqrt(draws * chance * (1 - chance)).max()


def test_weighted_draws_with_replacement_are_in_proportion():
    weight = torch.tensor([5.0, 1.0, 0.0, 0.5, 3.0])
    graph = hr.Graph(torch.tensor([0, 5]), torch.zeros(5, dtype=torch.int64), weight=weight)
    taken = positions_drawn(graph, 20, 1_000, weighted=True, replace=True)
    some = [0, 1, 3, 4]
    counts = np.bincount(taken, minlength=5)
    assert counts[2] == 0
    assert goodness(counts[some], weight.numpy()[some] / 9.5 * len(taken)) > 1e-4


def test_labor_is_uniform_in_every_row():
    graph = hr.Graph(torch.tensor([0, 40] + [40] * 40), torch.arange(1, 41))
    counts = np.bincount(positions_drawn(graph, 10, 2_000, labor=True), minlength=40)
    assert counts.sum() == 20_000
    assert np.abs(counts - 500).max() < 4.5 * np.sqrt(2_000 * 0.25 * 0.75)


def test_labor_takes_as_many_and_meets_fewer_nodes():
    graph = hr.generate.community(5_000, 150_000, features=0, classes=5, seed=2).graph
    seeds = torch.arange(500)
    plain, labor, layers = (
        NeighborSampler(graph, [10, 10], seed=1, **options).sample(seeds)
        for options in ({}, {"labor": True}, {"labor": True, "layer_dependency": True})
    )
    degrees = graph.degrees()
    for sample in (plain, labor, layers):
        rows = sample.nodes[: len(sample.indptr) - 1].long()
        assert torch.equal(sample.indptr.diff(), degrees[rows].clamp_max(10))
    assert len(labor.nodes) < 0.9 * len(plain.nodes)
    assert len(layers.nodes) < len(labor.nodes)


def test_dependent_batches_overlap():
    graph = hr.generate.community(5_000, 150_000, features=0, classes=5, seed=2).graph

    def overlap(dependency):
        sampler = NeighborSampler(graph, [5], labor=True, batch_dependency=dependency, seed=4)
        drawn = [set(sampler.sample(torch.arange(300), 0, batch, edge_ids=True).edge_id.tolist()) for batch in range(6)]
        return np.mean([len(a & b) / len(a) for a, b in itertools.pairwise(drawn)])

    one, four, many = (overlap(k) for k in (1, 4, 64))
    assert one < 0.5  # short rows are taken whole
    assert one + 0.2 < four < many
    assert many > 0.9


def test_in_each_batch_one_node_in_k_gets_a_new_number():
    key = stream_key(3, 0, 0, LABOR)
    words = np.array([[labor_word(key, 0, batch, node, 8) for batch in range(9)] for node in range(500)])
    changed = (np.diff(words, axis=1) != 0).mean(0)
    assert np.abs(changed - 1 / 8).max() < 0.07
    assert all(len(set(row)) == 2 for row in words.tolist())


# ---- what is kept, and what is refused


def test_edges_of_weight_zero_are_dropped_from_a_copy():
    graph = hr.Graph.from_edges([0, 1, 2, 0], [3, 3, 3, 1], weight=[0.0, 2.0, 0.0, 1.0])
    drawn = drawable(graph)
    assert (drawn.num_nodes, drawn.num_edges, graph.num_edges) == (4, 2, 4)
    assert drawable(graph) is drawn
    for replace in (False, True):
        sample = NeighborSampler(graph, [-1], weighted=True, replace=replace).sample([3, 1], edge_ids=True)
        assert sample.nodes.tolist() == [3, 1, 0]
        assert sample.indices.tolist() == [1, 2]
        assert graph.indices[sample.edge_id].tolist() == [1, 0]


def test_a_graph_of_positive_weights_is_drawn_from_as_it_is():
    graph = hr.Graph.from_edges([0], [1], weight=[1.0])
    assert drawable(graph) is graph
    gone = weakref.ref(graph)
    gc.disable()  # nothing must wait for it: graphs are large
    try:
        del graph
        assert gone() is None
    finally:
        gc.enable()


def test_weights_of_other_types_are_read_as_float32():
    graph = hr.generate.community(300, 4_000, features=0, classes=3, seed=0).graph
    weight = torch.randint(0, 5, (graph.num_edges,), generator=torch.Generator().manual_seed(0))
    samples = [
        NeighborSampler(hr.Graph(graph.indptr, graph.indices, weight=w), [4, 4], weighted=True).sample(range(50))
        for w in (weight, weight.float(), weight.double(), weight.half())
    ]
    for sample in samples[1:]:
        assert_same_sample(sample, samples[0])


@pytest.mark.parametrize(
    ("weight", "options", "complaint"),
    [
        (None, {"weighted": True}, "this graph has no weights"),
        ([1.0, -1.0], {"weighted": True}, r"weight\[1\] is -1.0: weights to draw by must be finite and not negative"),
        ([float("nan"), 1.0], {"weighted": True}, r"weight\[0\] is nan"),
        ([1.0, float("inf")], {"weighted": True}, r"weight\[1\] is inf"),
        ([[1.0, 1.0], [1.0, 1.0]], {"weighted": True}, r"weight must have one number per edge, not shape \(2, 2\)"),
        (None, {"labor": True, "replace": True}, "neither with replace nor with disjoint"),
        (None, {"labor": True, "disjoint": True}, "neither with replace nor with disjoint"),
        (None, {"batch_dependency": 2}, "need labor=True"),
        (None, {"layer_dependency": True}, "need labor=True"),
        (None, {"labor": True, "batch_dependency": 0}, "batch_dependency must be from 1"),
        (None, {"labor": True, "batch_dependency": 2**32}, "batch_dependency must be from 1"),
    ],
)
def test_what_cannot_be_is_refused(weight, options, complaint):
    graph = hr.Graph.from_edges([0, 1], [1, 2], weight=weight)
    with pytest.raises(ValueError, match=complaint):
        NeighborSampler(graph, [2], **options)


def test_labor_counts_batches_in_32_bits():
    graph = hr.Graph.from_edges([0, 1], [1, 2])
    NeighborSampler(graph, [2], labor=True).sample([1], 0, 2**32 - 1)
    with pytest.raises(ValueError, match="epoch and batch must be counts"):
        NeighborSampler(graph, [2], labor=True).sample([1], 0, 2**32)
