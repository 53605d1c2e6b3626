"""`NeighborSampler` against a plain Python sampler written from its contract: equal to the last bit, in the same order.

Run as a script, this file samples from damaged graphs whose arrays end at a page nobody may touch.
"""

import ctypes
import itertools
import mmap
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling_contract import MASK, assert_equals_reference, assert_same_sample, philox
from scipy.stats import chi2

import headrace as hr
from child import run_python
from headrace.sample import NeighborSampler
from headrace.store import BufferPool


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((MASK, MASK), (MASK, MASK, MASK, MASK), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0xA4093822, 0x299F31D0),
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_python_philox_gives_the_published_vectors(key, counter, words):
    assert philox(key, counter) == words


# ---- equal to the contract


@st.composite
def small_graphs(draw):
    nodes = draw(st.integers(1, 30))
    degrees = draw(st.lists(st.sampled_from([0, 0, 1, 2, 5, 15, 16, 17, 40]), min_size=nodes, max_size=nodes))
    indptr = np.r_[0, np.cumsum(degrees)]
    indices = np.random.default_rng(draw(st.integers(0, 10_000))).integers(0, nodes, indptr[-1])
    return hr.Graph(torch.from_numpy(indptr), torch.from_numpy(indices.astype(draw(st.sampled_from([np.int32, np.int64])))))


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    graph=small_graphs(),
    fanouts=st.lists(st.sampled_from([-1, 0, 1, 2, 3, 4, 5, 15, 16, 17, 25, 100]), min_size=1, max_size=3),
    replace=st.booleans(),
    by=st.sampled_from(["stamp", "hash"]),
    seed=st.sampled_from([0, 1, 7, 2**32, 2**64 - 1]),
    epoch=st.sampled_from([0, 1, 2**32 - 1]),
    batch=st.sampled_from([0, 3, 2**32, 2**64 - 1]),
    data=st.data(),
)
def test_samples_equal_the_contract(graph, fanouts, replace, by, seed, epoch, batch, data):
    seeds = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=12))  # repeated, or none
    sampler = NeighborSampler(graph, fanouts, replace=replace, seed=seed, deduplicate_by=by)
    sample = assert_equals_reference(sampler, seeds, epoch=epoch, batch=batch)
    assert sample.nodes.dtype == graph.indices.dtype
    assert (sample.indptr.dtype, sample.indices.dtype) == (torch.int64, torch.int32)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("degree", [65_535, 65_536, 65_537, 150_000])
def test_hubs_on_both_sides_of_the_wide_draw_equal_the_contract(degree, replace):
    indptr = torch.tensor([0, 3, 3 + degree, 3 + degree])
    indices = torch.from_numpy(np.random.default_rng(1).integers(0, 3, 3 + degree).astype(np.int32))
    graph = hr.Graph(indptr, indices)
    for fanouts in ([1, 2], [5, 16], [17, 3], [1_000]):
        sampler = NeighborSampler(graph, fanouts, replace=replace, seed=5)
        assert_equals_reference(sampler, [1, 0, 2, 1], batch=2)


@pytest.mark.parametrize("by", ["stamp", "hash"])
def test_a_whole_hub_is_taken_in_order(by):
    degree = 100_000
    graph = hr.Graph.from_edges(torch.arange(1, degree + 1), torch.zeros(degree, dtype=torch.int64), degree + 1)
    for fanout in (-1, degree, degree + 5):
        for threads in (1, 2):
            sample = NeighborSampler(graph, [fanout], deduplicate_by=by).sample([0], threads=threads)
            assert torch.equal(sample.nodes, torch.arange(degree + 1, dtype=torch.int32))
            assert torch.equal(sample.indices, torch.arange(1, degree + 1, dtype=torch.int32))


def power_law(nodes=30_000, edges=600_000, **options):
    return hr.generate.community(nodes, edges, features=0, classes=5, seed=1, **options).graph


@pytest.fixture(scope="module")
def large():
    return power_law()


@pytest.mark.parametrize("by", ["stamp", "hash"])
@pytest.mark.parametrize("replace", [False, True])
def test_the_parallel_path_equals_the_contract(large, by, replace):
    seeds = np.random.default_rng(0).integers(0, large.num_nodes, 1_500)
    sampler = NeighborSampler(large, [9, 4], replace=replace, seed=3, deduplicate_by=by)
    sample = assert_equals_reference(sampler, seeds, epoch=1, batch=4, threads=2)
    assert min(sample.num_sampled_edges) > 2 * 4_096  # each hop is cut in two


@pytest.mark.parametrize("fanouts", [[15, 10, 5], [-1, 3], [40, 0, 2], [0], [2, -1]])
@pytest.mark.parametrize("replace", [False, True])
def test_threads_and_tables_change_nothing(large, fanouts, replace):
    seeds = torch.from_numpy(np.random.default_rng(2).integers(0, large.num_nodes, 3_000))
    samplers = [NeighborSampler(large, fanouts, replace=replace, seed=8, deduplicate_by=by) for by in ("stamp", "hash")]
    first = samplers[0].sample(seeds, 2, 9, threads=1)
    for sampler, threads in itertools.product(samplers, (1, 2, 7)):
        assert_same_sample(sampler.sample(seeds, 2, 9, threads=threads), first)


def test_int64_indices_give_the_same_sample_as_int32_ones(large):
    wide = hr.Graph(large.indptr, large.indices.long())
    narrow, other = (NeighborSampler(g, [10, 5], seed=4).sample(torch.arange(500)) for g in (large, wide))
    assert other.nodes.dtype == torch.int64
    assert torch.equal(other.nodes, narrow.nodes.long())
    assert torch.equal(other.indices, narrow.indices)


def test_nodes_past_two_to_the_32(tmp_path):
    """A graph of 2^32 + 64 nodes in a file of holes: the last 20 nodes link to one another."""
    nodes, last, degree = (1 << 32) + 64, 20, 19
    file = tmp_path / "holes"
    file.touch()
    indptr = np.memmap(file, np.int64, "r+", shape=(nodes + 1,))
    indptr[-last - 1 :] = np.arange(last + 1) * degree
    ids = np.arange(nodes - last, nodes)
    indices = np.concatenate([np.delete(ids, i) for i in range(last)])
    sampler = NeighborSampler(hr.Graph(torch.from_numpy(indptr), torch.from_numpy(indices)), [5, 3, 17], seed=6)
    assert sampler.workspace_bytes < 1 << 20
    assert_equals_reference(sampler, [nodes - 1, nodes - 3, 7, nodes - 1])
    assert sampler.workspace_bytes < 1 << 24  # a hash table: no array over all nodes
    file.unlink()


# ---- what a sample depends on


def test_earlier_samples_change_nothing(large):
    sampler = NeighborSampler(large, [10, 5], seed=2)
    seeds = torch.arange(100, 200)
    first = sampler.sample(seeds, 1, 7)
    for batch in range(20):
        sampler.sample(torch.arange(batch, 3_000, 7), 0, batch)
    assert_same_sample(sampler.sample(seeds, 1, 7), first)
    assert_same_sample(NeighborSampler(large, [10, 5], seed=2).sample(seeds, 1, 7), first)


@pytest.mark.parametrize("by", ["stamp", "hash"])
def test_concurrent_callers_do_not_disturb_one_another(large, by):
    sampler = NeighborSampler(large, [10, 5], seed=2, deduplicate_by=by)
    batches = [torch.from_numpy(np.random.default_rng(b).integers(0, large.num_nodes, 50 + 20 * b)) for b in range(64)]
    alone = [NeighborSampler(large, [10, 5], seed=2).sample(seeds, 0, b, threads=1) for b, seeds in enumerate(batches)]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda b: sampler.sample(batches[b], 0, b, threads=1 + b % 2), range(64)))
    for a, b in zip(together, alone, strict=True):
        assert_same_sample(a, b)
    assert sampler.workspace_bytes > 0


@pytest.mark.parametrize("change", [{"seed": 1}, {"seed": 2**32}, {"epoch": 1}, {"batch": 1}, {"batch": 2**32}])
def test_seed_epoch_and_batch_each_change_the_sample(large, change):
    seeds = torch.arange(200)

    def sample(seed=0, epoch=0, batch=0):
        return NeighborSampler(large, [5, 5], seed=seed).sample(seeds, epoch, batch)

    assert not torch.equal(sample().nodes, sample(**change).nodes)
    assert_same_sample(sample(**change), sample(**change))


def test_a_nodes_draws_do_not_depend_on_the_other_seeds(large):
    sampler = NeighborSampler(large, [6], seed=2)
    alone, among = sampler.sample([77]), sampler.sample([5, 6, 77])
    row = slice(int(among.indptr[2]), int(among.indptr[3]))
    assert among.nodes[among.indices[row].long()].tolist() == alone.nodes[alone.indices.long()].tolist()


# ---- what is sampled


@pytest.mark.parametrize("replace", [False, True])
def test_every_edge_exists_and_none_repeats_without_replacement(large, replace):
    sampler = NeighborSampler(large, [7, 3], replace=replace, seed=1)
    sample = sampler.sample(torch.arange(0, 30_000, 41), edge_ids=True)
    source, target = sample.nodes[sample.edge_index()].long()
    assert torch.equal(large.indices[sample.edge_id].long(), source)
    assert ((sample.edge_id >= large.indptr[target]) & (sample.edge_id < large.indptr[target + 1])).all()
    degree, drawn = large.degrees()[sample.nodes[: len(sample.indptr) - 1].long()], sample.indptr.diff()
    fanout = torch.tensor([7, 3]).repeat_interleave(torch.tensor(sample.num_sampled_nodes[:2]))
    assert torch.equal(drawn, torch.where(degree > 0, fanout, 0) if replace else torch.minimum(fanout, degree))
    if not replace:
        assert len(sample.edge_id.unique()) == len(sample.edge_id)


def test_every_node_appears_once_but_for_repeated_seeds(large):
    sample = NeighborSampler(large, [10, 10]).sample([4, 9, 4, 4])
    assert sample.nodes[:4].tolist() == [4, 9, 4, 4]
    others = sample.nodes[4:]
    assert len(others.unique()) == len(others)
    assert not torch.isin(others, torch.tensor([4, 9])).any()
    rows = [sample.indices[sample.indptr[i] : sample.indptr[i + 1]].tolist() for i in (0, 2, 3)]
    assert rows[0] == rows[1] == rows[2]
    assert not torch.isin(sample.indices, torch.tensor([2, 3])).any()  # a repeated seed keeps its first id


def uniform_p(observed, expected_each, factor=1.0):
    """The p-value of counts that should all be `expected_each`."""
    statistic = ((observed - expected_each) ** 2 / expected_each).sum() * factor
    return chi2.sf(statistic, len(observed) - 1)


def neighbors_taken(degree, fanout, replace, draws, vary):
    """How `draws` draws of a node with `degree` neighbors come out: [draws, fanout] of positions."""
    indptr = torch.arange(draws + 1) * degree if vary == "node" else torch.tensor([0, degree])
    nodes = len(indptr) - 1
    graph = hr.Graph(indptr, torch.zeros(degree * nodes, dtype=torch.int32))
    if vary == "node":
        taken = NeighborSampler(graph, [fanout], replace=replace, seed=12).sample(torch.arange(nodes), edge_ids=True).edge_id
        return (taken % degree).view(draws, fanout).numpy()
    out = []
    if vary == "seed":
        for seed in range(draws):
            out.append(NeighborSampler(graph, [fanout], replace=replace, seed=seed).sample([0], edge_ids=True).edge_id)
    else:
        sampler = NeighborSampler(graph, [fanout], replace=replace, seed=12)
        for i in range(draws):
            out.append(sampler.sample([0], **{vary: i}, edge_ids=True).edge_id)
    return torch.stack(out).numpy()


@pytest.mark.parametrize("vary", ["batch", "epoch", "node", "seed"])
@pytest.mark.parametrize(("degree", "fanout"), [(12, 5), (3, 1), (30, 20)])
def test_each_neighbor_is_equally_likely_without_replacement(vary, degree, fanout):
    draws = 20_000 if vary == "node" else 3_000
    taken = neighbors_taken(degree, fanout, False, draws, vary)
    counts = np.bincount(taken.ravel(), minlength=degree)
    assert counts.sum() == draws * fanout
    assert uniform_p(counts, draws * fanout / degree, (degree - 1) / (degree - fanout)) > 1e-4


@pytest.mark.parametrize("vary", ["batch", "node"])
def test_each_set_of_neighbors_is_equally_likely(vary):
    sets = {s: i for i, s in enumerate(itertools.combinations(range(6), 3))}
    draws = 20_000 if vary == "node" else 4_000
    taken = neighbors_taken(6, 3, False, draws, vary)
    counts = np.bincount([sets[tuple(sorted(t))] for t in taken.tolist()], minlength=len(sets))
    assert uniform_p(counts, draws / len(sets)) > 1e-4


@pytest.mark.parametrize("vary", ["batch", "node"])
@pytest.mark.parametrize("fanout", [4, 18])
def test_draws_with_replacement_are_uniform_and_independent(vary, fanout):
    draws = 20_000 if vary == "node" else 4_000
    taken = neighbors_taken(5, fanout, True, draws, vary)
    assert uniform_p(np.bincount(taken.ravel(), minlength=5), draws * fanout / 5) > 1e-4
    for a, b in ((0, 1), (0, fanout - 1), (fanout - 2, fanout - 1)):  # within a block of four words, and across
        assert uniform_p(np.bincount(taken[:, a] * 5 + taken[:, b], minlength=25), draws / 25) > 1e-4


@pytest.mark.parametrize("replace", [False, True])
def test_the_neighbors_of_a_wide_hub_are_equally_likely(replace):
    degree, fanout, draws, bins = 70_000, 50, 2_000, 70
    taken = neighbors_taken(degree, fanout, replace, draws, "batch") // (degree // bins)
    assert uniform_p(np.bincount(taken.ravel(), minlength=bins), draws * fanout / bins) > 1e-4


def test_hops_draw_independently():
    """A node that is met in hop 0 of one batch and in hop 1 of another draws anew."""
    indptr = torch.tensor([0, 1, 10_001])
    indices = torch.cat([torch.tensor([1]), torch.zeros(10_000, dtype=torch.int64)])
    graph = hr.Graph(indptr, indices)
    first = NeighborSampler(graph, [10]).sample([1], edge_ids=True).edge_id
    second = NeighborSampler(graph, [1, 10]).sample([0], edge_ids=True).edge_id[1:]
    assert len(set(first.tolist()) & set(second.tolist())) < 3


def test_edge_ids_are_the_graphs_own_where_it_keeps_them():
    src, dst = np.random.default_rng(3).integers(0, 50, (2, 600))
    graph = hr.Graph.from_edges(src, dst, 50, edge_id=True)
    sample = assert_equals_reference(NeighborSampler(graph, [4, 4]), [3, 1, 4])
    source, target = sample.nodes[sample.edge_index()]
    assert torch.equal(torch.from_numpy(src)[sample.edge_id.long()], source.long())
    assert torch.equal(torch.from_numpy(dst)[sample.edge_id.long()], target.long())
    assert NeighborSampler(graph, [4, 4]).sample([3]).edge_id is None


# ---- the sample as blocks


@pytest.mark.parametrize("fanouts", [[5], [5, 3], [4, 3, 2], [3, 0, 2]])
def test_blocks_are_nested_prefixes(large, fanouts):
    sample = NeighborSampler(large, fanouts, seed=1).sample([10, 20, 30, 20])
    total = np.cumsum(sample.num_sampled_nodes)
    assert len(sample.blocks) == len(fanouts)
    for h, block in enumerate(sample.blocks):
        assert block.num_dst == total[h]
        assert block.num_src == total[h + 1]
        assert block.num_edges == sum(sample.num_sampled_edges[: h + 1])
        assert torch.equal(block.indptr, sample.indptr[: total[h] + 1])
        assert torch.equal(block.indices, sample.indices[: block.num_edges])
        assert block.indptr[-1] == block.num_edges
        assert block.num_edges == 0 or int(block.indices.max()) < block.num_src
        assert block.indices.untyped_storage().data_ptr() == sample.indices.untyped_storage().data_ptr()
    assert sample.blocks[-1].num_src == len(sample.nodes)
    assert sample.num_seeds == 4


def test_edge_index_lists_targets_in_row_order(large):
    sample = NeighborSampler(large, [3, 2]).sample([1, 2])
    edges = sample.edge_index()
    assert edges.dtype == torch.int64
    assert edges.shape == (2, sample.num_edges)
    for row in range(len(sample.indptr) - 1):
        assert edges[0][edges[1] == row].tolist() == sample.indices[sample.indptr[row] : sample.indptr[row + 1]].tolist()


def test_an_empty_batch_is_an_empty_sample(large):
    sample = NeighborSampler(large, [3, 2]).sample([], edge_ids=True)
    assert sample.num_sampled_nodes == (0, 0, 0)
    assert sample.num_sampled_edges == (0, 0)
    assert [b.num_dst for b in sample.blocks] == [0, 0]
    assert sample.edge_index().shape == (2, 0)
    assert len(sample.edge_id) == 0


def test_isolated_seeds_have_empty_rows():
    graph = hr.Graph.from_edges([0], [1], 4)
    sample = NeighborSampler(graph, [3, 3], replace=True).sample([3, 1, 2])
    assert sample.nodes.tolist() == [3, 1, 2, 0]
    assert sample.indptr.tolist() == [0, 0, 3, 3, 3]


def test_samples_come_from_the_pool_and_go_back(large):
    pool = BufferPool()
    sampler = NeighborSampler(large, [5, 5], pool=pool)
    nodes = sampler.sample([1, 2, 3]).nodes
    copy = nodes.clone()
    for batch in range(20):
        sampler.sample(torch.arange(3), 0, batch)
    assert torch.equal(nodes, copy)
    assert pool.use().in_use > 0
    del nodes
    assert pool.use().in_use == 0


def test_a_sampler_keeps_its_graph_alive():
    sampler = NeighborSampler(hr.Graph.from_edges([0, 1], [1, 0]), [2])
    sampler.graph = None
    assert sampler._native.sample(torch.tensor([0]), sampler.pool.native, seed=0, epoch=0, batch=0, positions=False, threads=1)[
        0
    ].tolist() == [0, 1]


def test_repr_counts_what_was_sampled():
    sample = NeighborSampler(hr.Graph.from_edges([0, 1, 2], [1, 2, 0]), [2, 2]).sample([0])
    assert repr(sample) == "Sample(seeds=1, nodes=3, edges=1+1)"
    assert repr(sample.blocks[0]) == "Block(2 -> 1, num_edges=1)"
    assert sample.nbytes == 3 * 4 + 3 * 8 + 2 * 4


# ---- errors


@pytest.mark.parametrize(
    ("seeds", "complaint"),
    [
        ([0, 1, 4], r"seeds\[2\] is 4: the graph has nodes 0 to 3"),
        ([-1], r"seeds\[0\] is -1: the graph has nodes 0 to 3"),
        ([0, 2**40, -1], rf"seeds\[1\] is {2**40}: the graph has nodes 0 to 3"),
    ],
)
def test_seeds_out_of_range_are_named(seeds, complaint):
    sampler = NeighborSampler(hr.Graph.from_edges([0], [1], 4), [2])
    with pytest.raises(IndexError, match=complaint):
        sampler.sample(seeds)


@pytest.mark.parametrize(
    ("seeds", "keywords", "complaint"),
    [
        ([0.5], {}, "seeds must hold integers, not torch.float32"),
        ([True], {}, "seeds must hold integers, not torch.bool"),
        ([[0, 1]], {}, r"seeds must have one dimension, not shape \(1, 2\)"),
        (0, {}, r"seeds must have one dimension, not shape \(\)"),
        ([0], {"epoch": -1}, "epoch and batch must be counts, not -1 and 0"),
        ([0], {"epoch": 2**32}, "epoch and batch must be counts"),
        ([0], {"batch": -3}, "epoch and batch must be counts, not 0 and -3"),
        ([0], {"batch": 2**64}, "epoch and batch must be counts"),
        ([0], {"threads": 0}, "threads must be at least 1"),
    ],
)
def test_bad_batches_are_named(seeds, keywords, complaint):
    sampler = NeighborSampler(hr.Graph.from_edges([0], [1], 4), [2])
    with pytest.raises(ValueError, match=complaint):
        sampler.sample(seeds, **keywords)


@pytest.mark.parametrize(
    ("fanouts", "keywords", "complaint"),
    [
        ([], {}, r"fanouts must be one number per hop, each at least 0 or -1 for all; got \[\]"),
        ([3, -2], {}, r"got \[3, -2\]"),
        ([2**40], {}, "fanout"),
        ([2], {"seed": -1}, "seed must be from 0 to 2\\*\\*64 - 1, not -1"),
        ([2], {"seed": 2**64}, "seed must be from 0"),
        ([2], {"deduplicate_by": "sort"}, "deduplicate_by must be 'auto', 'stamp' or 'hash', not 'sort'"),
        ([2], {"threads": 0}, "threads must be at least 1"),
    ],
)
def test_bad_options_are_named(fanouts, keywords, complaint):
    with pytest.raises(ValueError, match=complaint):
        NeighborSampler(hr.Graph.from_edges([0], [1], 4), fanouts, **keywords)


@pytest.mark.parametrize("by", ["stamp", "hash"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("indptr", "indices", "complaint"),
    [
        ([0, 2, 1, 3], [0, 1, 2], "indptr is corrupt"),
        ([0, 1, 2, 4], [0, 1, 2], "indptr is corrupt"),
        ([-1, 1, 2, 3], [0, 1, 2], "indptr is corrupt"),
        ([0, 1, 2, 2**62], [0, 1, 2], "indptr is corrupt"),
        ([0, 1, 2, 3], [0, 1, 3], "an index out of range"),
        ([0, 1, 2, 3], [0, -1, 2], "an index out of range"),
    ],
)
def test_corrupt_graphs_are_value_errors(indptr, indices, complaint, dtype, by):
    sampler = NeighborSampler(hr.Graph(torch.tensor(indptr), torch.tensor(indices, dtype=dtype)), [2, 2], deduplicate_by=by)
    with pytest.raises(ValueError, match=complaint):
        sampler.sample([0, 1, 2])


@pytest.mark.parametrize("by", ["stamp", "hash"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_sampler_is_sound_after_an_error(large, by, threads):
    """What a failed batch left in the tables does not show in later ones."""
    indices = large.indices.clone()
    bad = int(large.indptr[29_999])
    indices[bad:] = 30_000
    sampler = NeighborSampler(hr.Graph(large.indptr, indices), [-1], seed=1, deduplicate_by=by)
    assert large.degrees()[29_999] > 0
    for batch in range(3):
        seeds = np.random.default_rng(batch).integers(0, 29_999, 800)
        with pytest.raises(ValueError, match="an index out of range"):
            sampler.sample([*seeds.tolist(), 29_999], 0, batch, threads=threads)
        assert_equals_reference(sampler, seeds[:50], batch=batch, threads=threads)


def guarded(array):
    """A copy of `array` that ends at a page nobody may touch."""
    page, pages = mmap.PAGESIZE, -(-max(array.nbytes, 1) // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    mprotect = ctypes.CDLL(None).mprotect
    mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert mprotect(address + pages * page, page, 0) == 0
    copy = np.frombuffer(memory, np.uint8, array.nbytes, pages * page - array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


WAYS = [
    {},
    {"weighted": True},
    {"weighted": True, "gaps": True},
    {"labor": True},
    {"labor": True, "weighted": True, "batch_dependency": 3},
    {"disjoint": True},
    {"temporal": "uniform"},
    {"temporal": "last", "inclusive": True},
]


def sample_from_damaged_graphs():
    tally = {"sampled": 0, "refused": 0}
    value = st.one_of(st.integers(-3, 60), st.sampled_from([-(2**62), -(2**31), 2**31 - 1, 2**32 + 1, 2**62]))

    @settings(derandomize=True, deadline=None, database=None, max_examples=300, suppress_health_check=list(HealthCheck))
    @given(small_graphs(), st.lists(st.tuples(st.booleans(), st.integers(0, 10**6), value), max_size=4), st.data())
    def one(graph, damage, data):
        arrays = [graph.indptr.numpy().copy(), graph.indices.numpy().copy()]
        for which, at, number in damage:
            array = arrays[which]
            if len(array):
                limits = np.iinfo(array.dtype)
                array[at % len(array)] = min(max(number, int(limits.min)), int(limits.max))
        edges = len(arrays[1])
        options = data.draw(st.sampled_from(WAYS))
        weight = guarded(np.arange(edges, dtype=np.float32) % 5 + ("gaps" not in options))
        time = guarded(np.sort(np.arange(edges) % 7))
        broken = hr.Graph(
            *(torch.from_numpy(guarded(a)) for a in arrays), weight=torch.from_numpy(weight), time=torch.from_numpy(time)
        )
        fanouts = data.draw(st.lists(st.sampled_from([-1, 0, 2, 16, 17, 300]), min_size=1, max_size=3))
        replace = data.draw(st.booleans()) and not {"labor", "temporal"} & options.keys()
        by = "auto" if {"disjoint", "temporal"} & options.keys() else data.draw(st.sampled_from(["stamp", "hash"]))
        options = {name: value for name, value in options.items() if name != "gaps"}
        seeds = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=6))
        until = [3] * len(seeds) if "temporal" in options else None
        for threads in (1, 2):
            try:
                sampler = NeighborSampler(broken, fanouts, replace=replace, deduplicate_by=by, **options)
                sample = sampler.sample(seeds, threads=threads, edge_ids=True, time=until)
                assert sample.nodes.numel() == 0 or 0 <= int(sample.nodes.min()) <= int(sample.nodes.max()) < graph.num_nodes
                tally["sampled"] += 1
            except ValueError:
                tally["refused"] += 1

    one()
    assert min(tally.values()) > 100, tally


def test_damaged_graphs_never_crash():
    done = run_python(__file__)
    assert done.returncode == 0, done.stderr[-2_000:]


def test_an_indptr_whose_difference_overflows_is_a_value_error():
    code = """
import torch, headrace as hr
graph = hr.Graph(torch.tensor([1, -2**63]), torch.zeros(5, dtype=torch.int64))
try: hr.sample.NeighborSampler(graph, [3]).sample([0])
except ValueError: pass
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("by", ["stamp", "hash"])
def test_local_ids_outlast_two_to_the_30_nodes(by):
    """Local ids of old batches are told apart by a running number, which starts again when it has passed 2^30."""
    graph = hr.Graph.from_edges([0, 1, 2], [1, 2, 0], 4)
    sampler = NeighborSampler(graph, [1, 1], deduplicate_by=by)
    many = torch.full((1 << 24,), 3)  # an isolated node, again and again
    for batch in range(70):
        assert int(sampler.sample(many, 0, batch).nodes[-1]) == 3
        assert_equals_reference(sampler, [2, 0, 2], batch=batch)


if __name__ == "__main__":
    sample_from_damaged_graphs()
