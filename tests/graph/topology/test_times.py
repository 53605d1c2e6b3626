"""Times of edges: carried by every operation on a graph, sorted row by row."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr


def test_times_follow_their_edges():
    graph = hr.Graph.from_edges([2, 0, 1], [0, 0, 2], time=[7, 5, 6])
    assert graph.time.tolist() == [7, 5, 6]
    assert graph.time.dtype == torch.int64
    assert repr(graph) == "Graph(num_nodes=3, num_edges=3, time)"
    assert graph.nbytes == hr.Graph.from_edges([2, 0, 1], [0, 0, 2]).nbytes + 24
    back = graph.reverse()
    assert torch.equal(back.time, graph.time[back.permutation])
    both = hr.Graph.from_edges([2], [0], time=[7], undirected=True)
    assert both.time.tolist() == [7, 7]


def test_added_loops_are_older_than_all():
    whole = hr.Graph.from_edges([0], [1], time=[7], self_loops="add")
    assert sorted(whole.time.tolist()) == [-(2**63), -(2**63), 7]
    real = hr.Graph.from_edges([0], [1], time=[7.5], self_loops="add")
    assert sorted(real.time.tolist()) == [-float("inf"), -float("inf"), 7.5]


@pytest.mark.parametrize(
    ("given_type", "kept"),
    [(np.int32, torch.int64), (np.int64, torch.int64), (np.float32, torch.float64), (np.float64, torch.float64)],
)
def test_narrow_times_are_widened(given_type, kept):
    assert hr.Graph.from_edges([0, 1], [1, 0], time=np.array([1, 2], given_type)).time.dtype == kept


def test_times_are_saved_and_opened(tmp_path):
    graph = hr.Graph.from_edges([2, 0, 1], [0, 0, 2], time=[0.5, 0.25, 4], weight=[1.0, 2.0, 3.0])
    hr.Dataset(graph).save(tmp_path / "data")
    opened = hr.open(tmp_path / "data").graph
    assert torch.equal(opened.time, graph.time)
    assert torch.equal(opened.weight, graph.weight)
    assert opened.edge_id is None


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    edges=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(-3, 3)), max_size=40),
    real=st.booleans(),
    ids=st.booleans(),
)
def test_rows_are_sorted_stably(edges, real, ids):
    src, dst, time = (list(column) for column in zip(*edges, strict=True)) if edges else ([], [], [])
    time = np.array(time, np.float64 if real else np.int64)
    graph = hr.Graph.from_edges(src, dst, 6, time=time, weight=np.arange(len(src)), edge_id=ids)
    ordered = graph.sorted_by_time()
    assert ordered.is_sorted_by_time()
    assert torch.equal(ordered.indptr, graph.indptr)
    for v in range(6):
        row = range(int(graph.indptr[v]), int(graph.indptr[v + 1]))
        order = sorted(row, key=lambda e: graph.time[e])
        for name in ("indices", "time", "weight"):
            assert getattr(ordered, name)[row.start : row.stop].tolist() == getattr(graph, name)[order].tolist()
        if ids:
            assert ordered.edge_id[row.start : row.stop].tolist() == graph.edge_id[order].tolist()
        elif ordered is not graph:
            assert ordered.edge_id[row.start : row.stop].tolist() == order


def test_a_graph_in_order_is_not_copied():
    graph = hr.Graph.from_edges([0, 1, 2], [2, 2, 0], time=[1, 1, 0])
    assert graph.sorted_by_time() is graph
    other = hr.Graph.from_edges([0, 1, 2], [2, 2, 0], time=[2, 1, 0])
    assert not other.is_sorted_by_time()
    assert other.sorted_by_time() is other.sorted_by_time()


def test_graphs_without_edges_are_in_order():
    graph = hr.Graph(torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), time=torch.zeros(0))
    assert graph.sorted_by_time() is graph


@pytest.mark.parametrize(
    ("time", "complaint"),
    [
        ([1], "time has 1 entries for 2 edges"),
        ([[1, 2], [3, 4]], r"time must have one dimension, not shape \(2, 2\)"),
        ([True, False], "time must hold integers or real numbers, not torch.bool"),
    ],
)
def test_bad_times_are_named(time, complaint):
    with pytest.raises(ValueError, match=complaint):
        hr.Graph.from_edges([0, 1], [1, 2], time=time)


def test_what_cannot_be_sorted_says_so():
    with pytest.raises(ValueError, match="has no times to sort by"):
        hr.Graph.from_edges([0], [1]).sorted_by_time()
    with pytest.raises(ValueError, match=r"time\[1\] is not a number"):
        hr.Graph.from_edges([0, 1], [1, 1], time=[1.0, float("nan")]).sorted_by_time()
