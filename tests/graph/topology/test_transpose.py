"""Transposes by sorting: the bits of the native ones; and whether a graph is its own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.graph.topology.transpose import transposed


def edges_of(graph):
    return graph.edge_index().T.tolist()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=30), st.booleans())
def test_a_sorted_transpose_is_the_native_one(nodes, pairs, wide):
    pairs = [(u % nodes, v % nodes) for u, v in pairs]
    graph = hr.Graph.from_edges([u for u, _ in pairs], [v for _, v in pairs], nodes)
    if wide:
        graph = hr.Graph(graph.indptr, graph.indices.long())
    native, found = graph.reverse(), transposed(graph.indptr, graph.indices)
    for a, b in zip(found, (native.indptr, native.indices, native.permutation), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    both = sorted(edges_of(graph)), sorted([v, u] for u, v in edges_of(graph))
    assert graph.is_symmetric() == (both[0] == both[1])


@pytest.mark.parametrize("nodes", [1, 5])
def test_a_graph_without_edges_is_its_own_transpose(nodes):
    graph = hr.Graph.from_edges([], [], nodes)
    assert graph.is_symmetric()
    assert transposed(graph.indptr, graph.indices)[0].tolist() == [0] * (nodes + 1)


def test_repeated_edges_must_be_repeated_both_ways():
    once = hr.Graph.from_edges([0, 1, 2], [1, 0, 2], 4)
    assert once.is_symmetric()
    twice = hr.Graph.from_edges([0, 0, 1], [1, 1, 0], 2)
    assert not twice.is_symmetric()
    assert hr.Graph.from_edges([0, 0, 1, 1], [1, 1, 0, 0], 2).is_symmetric()
    circle = hr.Graph.from_edges([0, 1, 2], [1, 2, 0], 3)  # of equal degrees, in and out
    assert not circle.is_symmetric()
