from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.graph.reorder.cache import last_level_cache


def misses_reference(graph, order, capacity):
    cache, missed = OrderedDict(), 0
    for v in order:
        for u in graph.neighbors(v).tolist():
            missed += u not in cache
            cache[u] = None
            cache.move_to_end(u)
            if len(cache) > capacity:
                cache.popitem(last=False)
    return missed / max(graph.num_edges, 1)


def ring_of_cliques(*, cliques, size):
    first = torch.arange(cliques).repeat_interleave(size * size) * size
    source = first + torch.arange(size).repeat_interleave(size).repeat(cliques)
    target = first + torch.arange(size).repeat(cliques * size)
    link = torch.arange(cliques) * size
    source, target = torch.cat([source, link]), torch.cat([target, (link + size) % (cliques * size)])
    return hr.Graph.from_edges(source, target, undirected=True, deduplicate=True, self_loops="drop")


def shuffled(graph, seed=0):
    return graph.reordered(torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(seed)))


@given(st.integers(1, 12), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=60, deadline=None)
def test_misses_are_those_of_a_cache_that_drops_the_oldest(capacity, seed, wide):
    draw = torch.Generator().manual_seed(seed)
    source, target = torch.randint(15, (2, 90), generator=draw)
    graph = hr.Graph.from_edges(source, target, 16)
    if wide:
        graph = hr.Graph(graph.indptr, graph.indices.long())
    order = torch.randperm(16, generator=draw)
    size = {"cache_bytes": capacity * 4 + 3, "row_bytes": 4}
    assert hr.reorder.cache_misses(graph, **size) == misses_reference(graph, range(16), capacity)
    assert hr.reorder.cache_misses(graph, order, **size) == misses_reference(graph, order.tolist(), capacity)
    assert hr.reorder.cache_misses(graph, order, **size) == hr.reorder.cache_misses(graph.reordered(order), **size)


def test_a_sample_of_windows_tells_nearly_what_the_whole_tells():
    graph = hr.generate.community(nodes=20_000, edges=2_000_000, features=0).graph
    size = {"cache_bytes": 500 * 64, "row_bytes": 64}
    whole = hr.reorder.cache_misses(graph, windows=10**6, **size)
    sampled = hr.reorder.cache_misses(graph, windows=4, **size)
    assert sampled != whole
    assert sampled == pytest.approx(whole, rel=0.02)
    assert sampled == hr.reorder.cache_misses(graph, windows=4, threads=1, **size)


def test_windows_that_see_no_edges_do_not_count():
    reads = torch.arange(1_000_000) % 1000
    graph = hr.Graph.from_edges(reads, torch.zeros(1_000_000, dtype=torch.int64), 1000)
    size = {"row_bytes": 1, "windows": 4}
    assert hr.reorder.cache_misses(graph, cache_bytes=1000, **size) == 0  # all fits, and the cache is warm
    assert hr.reorder.cache_misses(graph, cache_bytes=999, **size) == 1  # what comes next was dropped just now


@pytest.mark.parametrize("nodes", [0, 3])
def test_without_edges_nothing_is_missed(nodes):
    graph = hr.Graph.from_edges([], [], nodes)
    assert hr.reorder.cache_misses(graph, cache_bytes=64, row_bytes=4) == 0
    assert hr.reorder.auto(graph, 8, epochs=5, cache_bytes=64, bytes_per_second=1e9).order is None


def test_auto_leaves_an_ordered_graph_as_it_is():
    graph = ring_of_cliques(cliques=50, size=20)
    choice = hr.reorder.auto(graph, 64, epochs=10**6, cache_bytes=100 * 256, bytes_per_second=1e9)
    assert (choice.name, choice.order) == (None, None)
    assert choice.reason.startswith("as it is:")
    assert choice.saved <= choice.cost


def test_auto_orders_a_shuffled_community_graph_if_there_are_epochs_enough():
    graph = shuffled(ring_of_cliques(cliques=50, size=20))
    setting = {"cache_bytes": 100 * 256, "bytes_per_second": 1e9}
    many = hr.reorder.auto(graph, 64, epochs=1000, **setting)
    assert many.name == "rabbit"
    assert many.order.sort().values.equal(torch.arange(1000))
    assert many.saved > many.cost > 0
    assert many.tried["rabbit"] < many.misses
    assert "in the order rabbit" in many.reason
    again = hr.reorder.auto(graph, 64, epochs=1000, **setting)
    assert again.as_dict() == many.as_dict()
    few = hr.reorder.auto(graph, 64, epochs=1, passes=1, cache_bytes=100 * 256, bytes_per_second=1e11)
    assert few.order is None
    assert few.saved <= few.cost


def test_auto_tries_and_says_no_where_there_are_no_communities():
    draw = torch.Generator().manual_seed(0)
    graph = hr.Graph.from_edges(*torch.randint(2000, (2, 20_000), generator=draw), 2000)
    choice = hr.reorder.auto(graph, 64, epochs=2, cache_bytes=50 * 256, bytes_per_second=2e9, orders=["rabbit"])
    assert set(choice.tried) == {"rabbit"}
    assert choice.order is None
    assert choice.reason.startswith("as it is:")


def test_rows_that_fit_into_the_cache_are_not_reordered():
    graph = shuffled(ring_of_cliques(cliques=10, size=10))
    choice = hr.reorder.auto(graph, 4, epochs=10**9, cache_bytes=1 << 20, bytes_per_second=1.0)
    assert (choice.order, choice.tried, choice.saved) == (None, {}, 0)


def test_the_machine_is_asked_where_nothing_is_given():
    assert last_level_cache() >= 1 << 18
    graph = ring_of_cliques(cliques=10, size=10)
    assert hr.reorder.auto(graph, 16, epochs=1).order is None


def test_wrong_arguments_are_named():
    graph = ring_of_cliques(cliques=2, size=3)
    with pytest.raises(ValueError, match="cache_bytes must be at least 1, not 0"):
        hr.reorder.cache_misses(graph, cache_bytes=0, row_bytes=4)
    with pytest.raises(ValueError, match="order has 2 entries for 6 nodes"):
        hr.reorder.cache_misses(graph, torch.tensor([0, 1]), cache_bytes=4, row_bytes=4)
    with pytest.raises(ValueError, match="epochs must be at least 1, not 0"):
        hr.reorder.auto(graph, 4, epochs=0)
    with pytest.raises(ValueError, match="auto cannot choose 'rabit', for there is no such order: choose among rabbit"):
        hr.reorder.auto(graph, 4, epochs=1, orders=["rabit"])
    with pytest.raises(ValueError, match="auto cannot choose 'metis', for its cost is not known"):
        hr.reorder.auto(graph, 4, epochs=1, orders=["metis"])
    with pytest.raises(ValueError, match="bytes_per_second must be positive, not 0"):
        hr.reorder.auto(graph, 4, epochs=1, bytes_per_second=0)
