import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.graph.topology.properties import properties, window_reuse

AWKWARD = {
    "empty": hr.Graph.from_edges([], [], 0),
    "no edges": hr.Graph.from_edges([], [], 5),
    "one loop": hr.Graph.from_edges([0], [0], 1),
    "isolated last": hr.Graph.from_edges([0, 1], [1, 0], 4),
    "repeated": hr.Graph.from_edges([0, 0, 1, 2], [1, 1, 0, 2], 3),
    "directed": hr.Graph.from_edges([0, 1, 2, 0], [1, 2, 3, 3], 4),
}


def reference(graph, window):
    sources, targets = graph.edge_index().tolist()
    degrees = graph.degrees().tolist()
    mean = len(sources) / max(len(degrees), 1)
    pairs = sorted(zip(sources, targets, strict=True))
    touched = set(sources) | set(targets)
    unique = sum(len({u for u, v in pairs if first <= v < first + window}) for first in range(0, graph.num_nodes, window))
    return {
        "nodes": graph.num_nodes,
        "edges": len(sources),
        "mean_degree": mean,
        "max_degree": max(degrees, default=0),
        "degree_cv": math.sqrt(sum((d - mean) ** 2 for d in degrees) / len(degrees)) / mean if mean else 0.0,
        "empty_rows": degrees.count(0),
        "isolated": len(set(range(graph.num_nodes)) - touched),
        "hubs": sum(d > 16 * mean for d in degrees),
        "edge_span": sum(abs(u - v) for u, v in pairs) / max(len(pairs), 1),
        "window": window,
        "window_reuse": len(pairs) / unique if unique else 1.0,
        "symmetric": pairs == sorted((v, u) for u, v in pairs),
        "row_bytes": None,
    }


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_graphs_are_measured_as_by_hand(name):
    graph = AWKWARD[name]
    assert properties(graph, window=2).as_dict() == pytest.approx(reference(graph, 2))


@given(
    st.integers(1, 40).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=120))
    ),
    st.integers(1, 9),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_random_graphs_are_measured_as_by_hand(case, window, undirected):
    nodes, edges = case
    graph = hr.Graph.from_edges([u for u, _ in edges], [v for _, v in edges], nodes, undirected=undirected)
    for threads in (1, 2):
        again = hr.Graph(graph.indptr, graph.indices)
        assert properties(again, window=window, threads=threads).as_dict() == pytest.approx(reference(graph, window))


def test_one_edge_more_in_one_direction_is_not_symmetric():
    data = hr.generate.community(nodes=3000, edges=60000, classes=3, features=0)
    assert data.graph.is_symmetric()
    source, target = data.graph.edge_index()
    assert not hr.Graph.from_edges(source[:-1], target[:-1], 3000).is_symmetric()
    # every degree as before, and yet: two edges swap their targets in one direction only
    target = target.clone()
    target[0], target[-1] = target[-1].item(), target[0].item()
    swapped = hr.Graph.from_edges(source, target, 3000)
    assert swapped.degrees().equal(data.graph.degrees())
    assert not swapped.is_symmetric()


def test_a_hub_of_a_hundred_thousand_is_one_hub_and_wide_ids_change_nothing():
    leaves = 100_000
    star = hr.Graph.from_edges(torch.arange(1, leaves + 1), torch.zeros(leaves, dtype=torch.int64), undirected=True)
    found = properties(star, 47, dtype=torch.bfloat16)
    assert (found.hubs, found.max_degree, found.symmetric) == (1, leaves, True)
    assert found.row_bytes == (leaves + 1) * 47 * 2
    wide = hr.Graph(star.indptr, star.indices.long())
    assert properties(wide, 47, dtype=torch.bfloat16) == found


def test_same_figures_for_any_number_of_threads():
    graph = hr.generate.community(nodes=20_000, edges=400_000, features=0).graph
    one, two = (properties(hr.Graph(graph.indptr, graph.indices), threads=n) for n in (1, 2))
    assert one == two


def test_reuse_under_an_order_is_that_of_the_reordered_graph():
    graph = hr.generate.community(nodes=1000, edges=20_000, features=0).graph
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(1))
    assert window_reuse(graph, 16, order=order) == window_reuse(graph.reordered(order), 16)
    assert window_reuse(graph, 16, sample=7) == window_reuse(graph, 16, sample=7, threads=1)


def test_what_follows_from_the_graph_is_found_once():
    graph = hr.generate.community(nodes=100, edges=1000, features=0).graph
    assert graph.summary() is graph.summary()
    graph._derived["summary"] = graph.summary() | {"symmetric": False}
    assert not graph.is_symmetric()


def test_wrong_arguments_are_named():
    graph = AWKWARD["directed"]
    with pytest.raises(ValueError, match="dim must be at least 1, not 0"):
        properties(graph, 0)
    with pytest.raises(ValueError, match="rows must be at least 1, not 0"):
        window_reuse(graph, 0)
    with pytest.raises(ValueError, match="order has 2 entries for 4 nodes"):
        window_reuse(graph, order=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="order names a row that is not there"):
        window_reuse(graph, order=torch.tensor([0, 1, 2, 4]))
    with pytest.raises(ValueError, match="index out of range"):
        properties(hr.Graph(torch.tensor([0, 1]), torch.tensor([3], dtype=torch.int32)))
