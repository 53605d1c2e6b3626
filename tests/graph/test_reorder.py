import sys
import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.graph.topology.properties import window_reuse


def rabbit_reference(graph):
    """The sequential algorithm with dictionaries: every edge of a tree is looked at again at each visit."""
    nodes = graph.num_nodes
    neighbors = [[] for _ in range(nodes)]
    for u, v in graph.edge_index().T.tolist():
        if u != v:
            neighbors[u].append(v)
            neighbors[v].append(u)
    strength = [float(len(row)) for row in neighbors]
    total = sum(strength)
    parent, children = list(range(nodes)), [[] for _ in range(nodes)]

    def root(v):
        return v if parent[v] == v else root(parent[v])

    def tree(v):
        return [v] + [w for child in children[v] for w in tree(child)]

    for v in sorted(range(nodes), key=lambda v: strength[v]):
        weight = {}
        for u in (root(u) for w in tree(v) for u in neighbors[w]):
            if u != v:
                weight[u] = weight.get(u, 0) + 1
        gains = [(weight[u] - strength[v] * strength[u] / total, -u) for u in weight]
        gain, best = max(gains, default=(0.0, 0))
        if gain > 0:
            parent[v] = -best
            children[-best].append(v)
            strength[-best] += strength[v]
    trees = [w for v in range(nodes) if parent[v] == v and strength[v] for w in tree(v)]
    return trees + [v for v in range(nodes) if not strength[v]], [root(v) for v in range(nodes)]


def planted(*, communities, size, degree, within, seed=0):
    """A block model with communities in ranges, and the same with shuffled ids."""
    draw = torch.Generator().manual_seed(seed)
    nodes = communities * size
    source = torch.arange(nodes).repeat_interleave(degree)
    inside = source // size * size + torch.randint(size, (len(source),), generator=draw)
    anywhere = torch.randint(nodes, (len(source),), generator=draw)
    target = torch.where(torch.rand(len(source), generator=draw) < within, inside, anywhere)
    graph = hr.Graph.from_edges(source, target, nodes, undirected=True, deduplicate=True, self_loops="drop")
    shuffle = torch.randperm(nodes, generator=draw)
    return graph, graph.reordered(shuffle), shuffle


def modularity(graph, community):
    source, target = graph.edge_index()
    degree = torch.bincount(community, weights=graph.degrees().double())
    return float((community[source] == community[target]).double().mean() - (degree / graph.num_edges).square().sum())


AWKWARD = {
    "empty": hr.Graph.from_edges([], [], 0),
    "no edges": hr.Graph.from_edges([], [], 5),
    "one loop": hr.Graph.from_edges([0], [0], 1),
    "isolated last": hr.Graph.from_edges([3, 1], [1, 0], 5),
    "loops and repeats": hr.Graph.from_edges([0, 0, 0, 1, 2, 2, 3], [0, 1, 1, 2, 2, 2, 0], 4),
    "directed": hr.Graph.from_edges([4, 1, 2, 0, 2], [1, 2, 3, 3, 0], 5),
    "hub": hr.Graph.from_edges(torch.arange(1, 100_001), torch.zeros(100_000, dtype=torch.int64)),
}
WITHOUT_EXTRA = ["rabbit", "first_neighbor", "degree"]


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("order", [*WITHOUT_EXTRA, "rcm"])
def test_every_order_is_a_permutation(name, order):
    if order == "rcm":
        pytest.importorskip("scipy")
    found = hr.reorder.ORDERS[order](AWKWARD[name])
    assert found.dtype == torch.int64
    assert found.sort().values.equal(torch.arange(AWKWARD[name].num_nodes))


@given(
    st.integers(1, 30).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=150))
    ),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_rabbit_is_the_sequential_algorithm(case, undirected, wide):
    nodes, edges = case
    graph = hr.Graph.from_edges([u for u, _ in edges], [v for _, v in edges], nodes, undirected=undirected)
    if wide:
        graph = hr.Graph(graph.indptr, graph.indices.long())
    assert hr.reorder.rabbit(graph).tolist() == rabbit_reference(graph)[0]


def test_rabbit_is_the_sequential_algorithm_on_a_graph_with_hubs():
    graph = hr.generate.community(nodes=1500, edges=20_000, features=0, directed=True).graph
    order, community = rabbit_reference(graph)
    for threads in (1, 2):
        assert hr.reorder.rabbit(graph, threads=threads).tolist() == order
    assert modularity(graph, torch.tensor(community)) > 0.2


def test_repeated_edges_in_both_directions_count_as_often_as_they_stand():
    graph = hr.Graph.from_edges([0, 0, 0, 1, 1, 2], [1, 1, 2, 2, 3, 3], undirected=True)
    assert hr.reorder.rabbit(graph).tolist() == rabbit_reference(graph)[0]


def test_planted_communities_are_found_again():
    ordered, shuffled, shuffle = planted(communities=40, size=100, degree=10, within=0.9)
    order = hr.reorder.rabbit(shuffled)
    found = window_reuse(shuffled.reordered(order))
    assert window_reuse(shuffled) < 1.15
    assert found > 0.9 * window_reuse(ordered) > 2
    place = hr.reorder.inverse(order)
    for number in range(40):  # each is a range: nine tenths of its hundred nodes within 110 places
        places = place[shuffle // 100 == number].sort().values
        assert any(int(((places >= first) & (places < first + 110)).sum()) >= 90 for first in places.tolist())
    assert modularity(shuffled, torch.tensor(rabbit_reference(shuffled)[1])) > 0.8


def test_rabbit_leaves_an_order_no_worse_than_first_neighbor_does():
    _, shuffled, _ = planted(communities=20, size=50, degree=8, within=0.8, seed=3)
    reuse = {name: window_reuse(shuffled, order=hr.reorder.ORDERS[name](shuffled)) for name in WITHOUT_EXTRA}
    assert reuse["rabbit"] > reuse["first_neighbor"] > window_reuse(shuffled)


def test_progress_is_told_and_may_stop_the_work():
    graph = AWKWARD["hub"]
    told = []
    hr.reorder.rabbit(graph, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (100_001, 100_001)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hr.reorder.rabbit(graph, progress=stop)


def test_degree_puts_what_is_read_most_first():
    graph = hr.Graph.from_edges([3, 3, 3, 1, 1, 0], [0, 1, 2, 0, 2, 3], 5)
    assert hr.reorder.degree(graph).tolist() == [3, 1, 0, 2, 4]


def test_rcm_narrows_the_band_of_a_shuffled_path():
    pytest.importorskip("scipy")
    path = hr.Graph.from_edges(range(99), range(1, 100), undirected=True)
    shuffled = path.reordered(torch.randperm(100, generator=torch.Generator().manual_seed(0)))
    source, target = shuffled.reordered(hr.reorder.rcm(shuffled)).edge_index()
    assert int((source - target).abs().max()) == 1


def test_metis_gets_an_undirected_graph_and_its_parts_become_ranges(monkeypatch):
    given = {}

    def part_graph(parts, xadj, adjncy):
        given.update(parts=parts, graph=hr.Graph(torch.as_tensor(xadj), torch.as_tensor(adjncy)))
        return 1, [1, 0, 1, 0]

    monkeypatch.setitem(sys.modules, "pymetis", types.SimpleNamespace(part_graph=part_graph))
    graph = hr.Graph.from_edges([0, 1, 1, 3], [2, 3, 3, 3], 4)
    assert hr.reorder.metis(graph, parts=2).tolist() == [1, 3, 0, 2]
    assert given["parts"] == 2
    assert given["graph"].is_symmetric()
    assert given["graph"].num_edges == 4
    assert hr.reorder.metis(AWKWARD["no edges"]).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("order", "package", "module"), [("rcm", "scipy", "scipy.sparse"), ("metis", "pymetis", "pymetis")])
def test_a_missing_package_is_named(monkeypatch, order, package, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"the order '{order}' needs {package}: pip install {package}"):
        hr.reorder.ORDERS[order](AWKWARD["directed"])


@pytest.mark.parametrize("weight", [torch.float32, torch.float64, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("wide", [False, True])
def test_a_reordered_graph_has_the_same_edges_with_what_belongs_to_them(weight, wide):
    draw = torch.Generator().manual_seed(5)
    source, target = torch.randint(50, (2, 400), generator=draw)
    values = torch.randint(100, (400,), generator=draw).to(weight)
    graph = hr.Graph.from_edges(source, target, 52, weight=values, time=torch.arange(400), edge_id=True)
    if wide:
        graph = hr.Graph(graph.indptr, graph.indices.long(), weight=graph.weight, time=graph.time, edge_id=graph.edge_id)
    order = torch.randperm(52, generator=draw)
    for threads in (1, 2):
        moved = graph.reordered(order, threads=threads)
        assert moved.indices.dtype == graph.indices.dtype
        assert moved.weight.dtype == weight
        for new, old in enumerate(order.tolist()):
            assert order[moved.neighbors(new).long()].tolist() == graph.neighbors(old).tolist()
            here, there = (slice(int(g.indptr[v]), int(g.indptr[v + 1])) for g, v in ((moved, new), (graph, old)))
            for name in ("weight", "time", "edge_id"):
                assert getattr(moved, name)[here].equal(getattr(graph, name)[there])


@pytest.mark.parametrize("name", AWKWARD)
def test_reordering_back_gives_the_graph_again(name):
    graph = AWKWARD[name]
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(2))
    back = graph.reordered(order).reordered(hr.reorder.inverse(order))
    assert back.indptr.equal(graph.indptr)
    assert back.indices.equal(graph.indices)


def test_edge_rows_of_two_dimensions_move_too():
    graph = hr.Graph.from_edges([0, 1, 2], [1, 2, 0])
    wide = graph.with_weight(torch.arange(6.0).view(3, 2))
    assert wide.reordered([2, 0, 1]).weight.tolist() == [[4, 5], [0, 1], [2, 3]]


def test_what_is_no_permutation_is_refused():
    graph = AWKWARD["directed"]
    with pytest.raises(ValueError, match="order has 2 entries for 5 nodes"):
        graph.reordered([0, 1])
    with pytest.raises(ValueError, match=r"order\[1\] is 5, and there are 5 nodes"):
        graph.reordered([0, 5, 1, 2, 3])
    with pytest.raises(ValueError, match=r"order\[4\] is -1, and there are 5 nodes"):
        graph.reordered([0, 3, 1, 2, -1])
    with pytest.raises(ValueError, match="order names node 2 more than once"):
        graph.reordered([0, 2, 1, 2, 3])
    with pytest.raises(ValueError, match="order must hold integers"):
        graph.reordered(torch.rand(5))
