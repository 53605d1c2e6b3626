"""Linear Deterministic Greedy: the plain one-by-one rule when chunks are single nodes; bounded, deterministic, and a good cut."""

import pytest
import torch

import headrace as hr
from headrace.cluster.parts import ldg as module
from headrace.cluster.parts.ldg import ldg
from headrace.store import hash_owners
from part_cases import cases


def plain_ldg(graph, parts, *, passes, start=None):
    """Stanton and Kliot's rule, a node at a time, streamed again."""
    nodes = graph.num_nodes
    capacity = max(-(-nodes // parts), int(1.05 * nodes / parts))
    owner = [None] * nodes if start is None else start.tolist()
    for _ in range(passes):
        sizes = [0] * parts
        for node in range(nodes):
            near = [owner[other] for other in graph.neighbors(node).tolist()]
            scores = [near.count(p) * (capacity - sizes[p]) if sizes[p] < capacity else -1 for p in range(parts)]
            stays = owner[node]
            owner[node] = max(range(parts), key=lambda p: (scores[p], p == stays and sizes[p] < capacity, -sizes[p], -p))
            sizes[owner[node]] += 1
    return owner


def edge_cut(graph, owner):
    source, target = graph.edge_index()
    return float((owner[source] != owner[target]).double().mean())


def limit(nodes, parts):
    return max(-(-nodes // parts), int(1.05 * nodes / parts))


@pytest.fixture(scope="module")
def communities():
    return hr.generate.community(nodes=5000, edges=100_000, classes=10, features=2, seed=1).graph


@pytest.mark.parametrize("name", ["plain", "a hub", "no edges", "as many nodes as parts"])
@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("passes", [1, 2, 5])
def test_chunks_of_one_node_are_the_plain_rule(name, parts, passes, monkeypatch):
    monkeypatch.setattr(module, "_EDGES", 3)
    graph = cases()[name].graph
    assert ldg(graph, parts, passes=passes).tolist() == plain_ldg(graph, parts, passes=passes)
    start = torch.arange(graph.num_nodes) % parts
    assert ldg(graph, parts, passes=passes, start=start).tolist() == plain_ldg(graph, parts, passes=passes, start=start)


@pytest.mark.parametrize("parts", [1, 2, 7, 64, 255, 256, 300])
@pytest.mark.parametrize("chunk", [1, 50, 10_000])
def test_no_part_exceeds_its_capacity(communities, parts, chunk, monkeypatch):
    monkeypatch.setattr(module, "_CHUNKS", -(-5000 // chunk))
    owner = ldg(communities, parts, passes=2 if chunk > 1 else 1)
    sizes = torch.bincount(owner.long(), minlength=parts)
    assert len(sizes) == parts
    assert int(sizes.sum()) == 5000
    assert int(sizes.max()) <= limit(5000, parts)


@pytest.mark.parametrize("nodes", [1, 2, 9, 10, 11])
def test_small_graphs_are_divided_too(nodes):
    graph = hr.Graph.from_edges([0] * nodes, range(nodes), nodes)
    for parts in range(1, nodes + 1):
        sizes = torch.bincount(ldg(graph, parts).long(), minlength=parts)
        assert int(sizes.max()) <= limit(nodes, parts)


@pytest.mark.parametrize("parts", [2, 4, 16])
def test_it_cuts_far_fewer_edges_than_a_hash(communities, parts):
    hashed = hash_owners(5000, parts).locate(torch.arange(5000))[0]
    owner = ldg(communities, parts)
    assert edge_cut(communities, owner) < 0.6 * edge_cut(communities, hashed)
    assert edge_cut(communities, owner) <= edge_cut(communities, ldg(communities, parts, passes=1))


def test_nodes_without_neighbors_stay_where_they_are():
    start = torch.tensor([0, 0, 1, 1, 1, 0])
    assert ldg(hr.Graph.from_edges([], [], 6), 2, start=start).equal(start.to(torch.uint8))


def test_the_same_graph_gives_the_same_parts(communities):
    wide = hr.Graph(communities.indptr, communities.indices.long())
    first = ldg(communities, 4)
    assert ldg(communities, 4).equal(first)
    assert ldg(wide, 4).equal(first)


def test_an_empty_graph_has_no_parts_to_fill():
    assert ldg(hr.Graph.from_edges([], [], 0), 3).tolist() == []
    with pytest.raises(ValueError, match="parts must be at least 1, not 0"):
        ldg(hr.Graph.from_edges([0], [1]), 0)
