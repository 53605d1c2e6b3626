"""`HeteroSampler` against a plain Python sampler written from its contract: equal to the last bit, in the same order."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_contract import SAMPLE, drawn_uniformly, stream_key

import headrace as hr
from headrace.graph import Relation
from headrace.sample import HeteroSampler

WRITES, WRITTEN = ("author", "writes", "paper"), ("paper", "written by", "author")
CITES, AT = ("paper", "cites", "paper"), ("author", "at", "place")
TYPES = [WRITES, CITES, WRITTEN, AT]


def make_graph(counts, edges, *, seed=0, wide=False):
    generator = torch.Generator().manual_seed(seed)
    pairs = {}
    for edge_type in TYPES:
        sizes = counts[edge_type[0]], counts[edge_type[2]]
        number = edges if min(sizes) else 0
        pairs[edge_type] = [torch.randint(0, max(n, 1), (number,), generator=generator) for n in sizes]
    graph = hr.HeteroGraph.from_edges(pairs, num_nodes=counts)
    if not wide:
        return graph
    relations = {t: Relation(r.indptr, r.indices.long(), r.num_src, r.edge_id) for t, r in graph.relations.items()}
    return hr.HeteroGraph(counts, relations)


@pytest.fixture(scope="module")
def graph():
    return make_graph({"author": 60, "place": 9, "paper": 120}, 500)


def reference(sampler, seeds, epoch, batch):
    graph, key = sampler.graph, stream_key(sampler.seed, epoch, batch, SAMPLE)
    nodes = {kind: [int(i) for i in seeds.get(kind, ())] for kind in graph.node_types}
    local = {kind: {} for kind in nodes}
    for kind, ids in nodes.items():
        for i, node in enumerate(ids):
            local[kind].setdefault(node, i)
    row, col, edge = ({t: [] for t in graph.edge_types} for _ in range(3))
    node_counts = {kind: [len(ids)] for kind, ids in nodes.items()}
    edge_counts = {t: [] for t in graph.edge_types}
    begin = dict.fromkeys(nodes, 0)
    for hop in range(len(next(iter(sampler.fanouts.values())))):
        end = {kind: len(ids) for kind, ids in nodes.items()}
        for number, (edge_type, relation) in enumerate(graph.relations.items()):
            source, _, target = edge_type
            before = len(row[edge_type])
            for at in range(begin[target], end[target]):
                node = nodes[target][at]
                first, degree = int(relation.indptr[node]), int(relation.indptr[node + 1] - relation.indptr[node])
                word = hop | (number + 1) << 8
                for r in drawn_uniformly(key, word, node, degree, sampler.fanouts[edge_type][hop], sampler.replace):
                    neighbor = int(relation.indices[first + r])
                    if neighbor not in local[source]:
                        local[source][neighbor] = len(nodes[source])
                        nodes[source].append(neighbor)
                    row[edge_type].append(local[source][neighbor])
                    col[edge_type].append(at)
                    edge[edge_type].append(int(relation.edge_id[first + r]))
            edge_counts[edge_type].append(len(row[edge_type]) - before)
        for kind, ids in nodes.items():
            node_counts[kind].append(len(ids) - end[kind])
        begin = end
    return nodes, row, col, edge, node_counts, edge_counts


def assert_equals_reference(sampler, seeds, *, epoch=0, batch=0, threads=1):
    sample = sampler.sample(seeds, epoch, batch, edge_ids=True, threads=threads)
    nodes, row, col, edge, node_counts, edge_counts = reference(sampler, seeds, epoch, batch)
    assert {k: list(c) for k, c in sample.num_sampled_nodes.items()} == node_counts
    assert {k: list(c) for k, c in sample.num_sampled_edges.items()} == edge_counts
    assert {k: ids.tolist() for k, ids in sample.nodes.items()} == nodes
    for edge_type in sampler.graph.edge_types:
        assert sample.edge_index(edge_type).tolist() == [row[edge_type], col[edge_type]], edge_type
        assert sample.edge_id[edge_type].tolist() == edge[edge_type], edge_type
    return sample


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("by", ["stamp", "hash"])
def test_a_sample_is_the_one_of_the_contract(replace, wide, by):
    graph = make_graph({"author": 60, "place": 9, "paper": 120}, 500, wide=wide)
    fanouts = {WRITES: [3, 20, 2], CITES: [2, -1, 0], WRITTEN: [4, 1, 3], AT: [-1, -1, 2]}
    sampler = HeteroSampler(graph, fanouts, replace=replace, seed=2**63 + 5, deduplicate_by=by)
    for batch in range(3):  # a workspace that has been used before
        assert_equals_reference(sampler, {"paper": [3, 7, 7, 100], "place": torch.tensor([1], dtype=torch.int32)}, batch=batch)
    assert sampler.workspace_bytes > 0


@settings(max_examples=25, deadline=None)
@given(
    counts=st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(1, 9)),
    edges=st.integers(0, 40),
    fanouts=st.lists(st.integers(-1, 5), min_size=1, max_size=3),
    seeds=st.lists(st.integers(0, 8), max_size=5),
    epoch=st.integers(0, 2**32 - 1),
    replace=st.booleans(),
)
def test_any_small_graph(counts, edges, fanouts, seeds, epoch, replace):
    graph = make_graph(dict(zip(("author", "place", "paper"), counts, strict=True)), edges, seed=edges)
    sampler = HeteroSampler(graph, fanouts, replace=replace, seed=1)
    assert_equals_reference(sampler, {"paper": [s % counts[2] for s in seeds]}, epoch=epoch)


def test_a_hub_is_drawn_from_as_the_contract_says():
    degree = 70_000  # two words a slot
    graph = hr.HeteroGraph.from_edges({WRITES: (torch.arange(degree), torch.zeros(degree, dtype=torch.int64))})
    for replace in (False, True):
        assert_equals_reference(HeteroSampler(graph, [30], replace=replace), {"paper": [0]})


def test_threads_change_nothing():
    graph = make_graph({"author": 3000, "place": 50, "paper": 5000}, 60_000)
    sampler = HeteroSampler(graph, [10, 5], seed=4)
    seeds = {"paper": torch.arange(2000), "place": torch.arange(50)}
    alone = sampler.sample(seeds, 1, 2, edge_ids=True, threads=1)
    assert sum(c[0] for c in alone.num_sampled_edges.values()) > 20_000  # enough for several threads
    with ThreadPoolExecutor(3) as threads:
        others = list(threads.map(lambda n: sampler.sample(seeds, 1, 2, edge_ids=True, threads=n), (2, 3, 5)))
    for other in others:
        assert other.num_sampled_nodes == alone.num_sampled_nodes
        for name in ("nodes", "indptr", "indices", "edge_id"):
            for kind, values in getattr(alone, name).items():
                assert torch.equal(getattr(other, name)[kind], values), (name, kind)


def test_all_neighbors_are_the_neighborhood_by_brute_force(graph):
    sample = HeteroSampler(graph, [-1, -1]).sample({"author": [5, 6]}, edge_ids=True)
    found = {"author": {5, 6}, "paper": set(), "place": set()}
    frontier, edges = {k: set(v) for k, v in found.items()}, {t: set() for t in graph.edge_types}
    for _ in range(2):
        new = {kind: set() for kind in found}
        for (source, name, target), relation in graph.relations.items():
            for v in frontier[target]:
                rows = slice(int(relation.indptr[v]), int(relation.indptr[v + 1]))
                edges[source, name, target] |= set(relation.edge_id[rows].tolist())
                new[source] |= set(relation.indices[rows].tolist())
        frontier = {kind: new[kind] - found[kind] for kind in found}
        found = {kind: found[kind] | new[kind] for kind in found}
    assert {k: set(ids.tolist()) for k, ids in sample.nodes.items()} == found
    assert {t: set(ids.tolist()) for t, ids in sample.edge_id.items()} == edges
    assert all(len(set(ids.tolist())) == ids.numel() for ids in sample.nodes.values())


def test_epochs_batches_seeds_and_edge_types_draw_differently(graph):
    def drawn(seed=0, epoch=0, batch=0, kind="paper"):
        return HeteroSampler(graph, [2, 2], seed=seed).sample({kind: range(20)}, epoch, batch).nodes["author"].tolist()

    assert drawn() == drawn()
    assert len({tuple(d) for d in (drawn(), drawn(seed=1), drawn(epoch=1), drawn(batch=1))}) == 4


def test_blocks_are_what_the_layers_need(graph):
    sample = HeteroSampler(graph, [3, 2, 2]).sample({"paper": range(10)})
    for hop, blocks in enumerate(sample.blocks):
        assert list(blocks) == graph.edge_types
        for (source, name, target), block in blocks.items():
            assert block.num_dst == sum(sample.num_sampled_nodes[target][: hop + 1])
            assert block.num_src == sum(sample.num_sampled_nodes[source][: hop + 2])
            assert block.indptr[-1] == block.num_edges == sum(sample.num_sampled_edges[source, name, target][: hop + 1])
            assert block.num_edges == 0 or int(block.indices.max()) < block.num_src


def test_no_seeds_give_an_empty_sample(graph):
    sample = assert_equals_reference(HeteroSampler(graph, [3, 2]), {})
    assert all(ids.numel() == 0 for ids in sample.nodes.values())
    assert sample.num_hops == 2
    assert HeteroSampler(graph, [3, 2]).sample({"paper": [1]}).edge_id is None


@pytest.mark.parametrize(
    ("seeds", "error", "message"),
    [
        ({"venue": [0]}, ValueError, "venue"),
        ({"paper": [0, 120]}, IndexError, r"seeds\['paper'\]\[1\] is 120"),
        ({"paper": [-1]}, IndexError, "is -1"),
        ({"paper": [0.5]}, ValueError, "integers"),
        ({"paper": [[1]]}, ValueError, "one dimension"),
    ],
)
def test_seeds_that_do_not_fit_are_refused(graph, seeds, error, message):
    with pytest.raises(error, match=message):
        HeteroSampler(graph, [2]).sample(seeds)


@pytest.mark.parametrize(
    ("fanouts", "message"),
    [
        ([], "one number per hop"),
        ([-2], "at least 0 or -1"),
        ({WRITES: [1]}, "no entry for the edge types"),
        ({WRITES: [1], CITES: [1], WRITTEN: [1, 2], AT: [1]}, "one number of hops"),
        ({("a", "b", "c"): [1]}, "the graph has only"),
    ],
)
def test_fanouts_that_do_not_fit_are_refused(graph, fanouts, message):
    with pytest.raises(ValueError, match=message):
        HeteroSampler(graph, fanouts)


def test_fanouts_may_name_edge_types_as_pyg_writes_them(graph):
    named = HeteroSampler(graph, {"__".join(t): [2, 1] for t in TYPES}, seed=3)
    assert named.fanouts == HeteroSampler(graph, [2, 1]).fanouts


def test_a_damaged_graph_is_noticed_before_it_is_followed():
    counts = {"author": 2, "paper": 2}
    beyond = Relation(torch.tensor([0, 1, 2]), torch.tensor([0, 9]), 2)
    with pytest.raises(ValueError, match="out of range"):
        HeteroSampler(hr.HeteroGraph(counts, {WRITES: beyond}), [2]).sample({"paper": [0, 1]})
    broken = Relation(torch.tensor([0, 5, 2]), torch.tensor([0, 1]), 2)
    with pytest.raises(ValueError, match="corrupt"):
        HeteroSampler(hr.HeteroGraph(counts, {WRITES: broken}), [2]).sample({"paper": [0]})
