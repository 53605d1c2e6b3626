"""`graph.rows`: a range of rows as a view, what the kernels make of one, and what a graph keeps of itself."""

import threading

import pytest
import torch

import headrace as hr
from headrace.kernels import aggregate, aggregate_reference
from headrace.nn.structure import targets_first

NODES = 50
RANGES = [(0, 50), (0, 20), (7, 8), (13, 35), (20, 50), (49, 50), (0, 0), (25, 25), (50, 50)]


def graph_of(edges=400, seed=0, weighted=False):
    generator = torch.Generator().manual_seed(seed)
    source, target = torch.randint(0, NODES - 3, (2, edges), generator=generator)  # the last three nodes are isolated
    return hr.Graph.from_edges(source, target, NODES, weight=torch.rand(edges, generator=generator) if weighted else None)


# ---- the view


@pytest.mark.parametrize(("begin", "end"), RANGES)
def test_a_range_is_a_view_of_its_rows(begin, end):
    graph = graph_of()
    rows = graph.rows(begin, end)
    assert (rows.first, rows.num_dst, rows.num_src) == (begin, end - begin, NODES)
    assert rows.indptr.data_ptr() == graph.indptr[begin:].data_ptr()
    assert rows.indices is graph.indices
    for i in range(end - begin):
        assert torch.equal(rows.indices[rows.indptr[i] : rows.indptr[i + 1]], graph.neighbors(begin + i))


def test_a_graph_is_the_range_of_all_its_rows():
    graph = graph_of()
    rows = graph.rows(0, NODES)
    for name in ("first", "num_src", "num_dst"):
        assert getattr(graph, name) == getattr(rows, name)
    assert torch.equal(graph.indptr, rows.indptr)


@pytest.mark.parametrize(("begin", "end"), [(-1, 3), (0, 51), (5, 4), (51, 51), (-3, -1)])
def test_a_range_that_is_not_there_is_named(begin, end):
    with pytest.raises(IndexError, match=f"rows {begin} to {end} are not in a graph of 50 nodes"):
        graph_of().rows(begin, end)


def test_rows_of_an_empty_graph():
    graph = hr.Graph.from_edges([], [], 0)
    rows = graph.rows(0, 0)
    assert (rows.num_src, rows.num_dst) == (0, 0)
    assert aggregate(torch.zeros(0, 3), rows.indptr, rows.indices).shape == (0, 3)


# ---- aggregation


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_aggregation_over_a_range_is_the_slice_of_the_whole(reduce, weighted, dtype, threads):
    graph = graph_of(weighted=weighted)
    x = torch.randn(NODES, 33).to(dtype)
    weight = None if graph.weight is None else graph.weight.to(torch.float64 if dtype == torch.float64 else torch.float32)
    whole = aggregate(x, graph.indptr, graph.indices, reduce=reduce, weight=weight)
    truth = aggregate_reference(x, graph.indptr, graph.indices, reduce=reduce, weight=weight)
    torch.testing.assert_close(whole, truth)
    for begin, end in RANGES:
        rows = graph.rows(begin, end)
        part = aggregate(x, rows.indptr, rows.indices, reduce=reduce, weight=weight, threads=threads)
        assert torch.equal(part, whole[begin:end])


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_a_large_range_is_shared_by_threads(reduce):
    """Large enough to be cut into tasks."""
    graph = hr.generate.community(3_000, 60_000, features=0, seed=1).graph
    x = torch.randn(3_000, 40)
    whole = aggregate(x, graph.indptr, graph.indices, reduce=reduce, threads=1)
    for begin, end in ((0, 1_000), (1_500, 2_700), (2_999, 3_000), (100, 3_000)):
        rows = graph.rows(begin, end)
        for threads in (1, 2, 5):
            assert torch.equal(aggregate(x, rows.indptr, rows.indices, reduce=reduce, threads=threads), whole[begin:end])


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_aggregation_over_a_range_reads_rows_by_id(reduce):
    graph, x = graph_of(), torch.randn(90, 5)
    ids = torch.randperm(90)[:NODES]
    rows = graph.rows(10, 30)
    out = aggregate(x, rows.indptr, rows.indices, reduce=reduce, ids=ids)
    assert torch.equal(out, aggregate(x[ids], graph.indptr, graph.indices, reduce=reduce)[10:30])


def gradients(x, weight, indptr, indices, reduce, rows):
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    out = aggregate(x, indptr, indices, reduce=reduce, weight=weight)[rows]
    return torch.autograd.grad(out, (x, weight), torch.linspace(-1, 1, out.numel()).view_as(out))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize(("begin", "end"), [(0, 20), (13, 35), (20, 50)])
def test_the_gradient_over_a_range_is_that_of_the_slice(reduce, begin, end):
    graph, x = graph_of(weighted=True), torch.randn(NODES, 9)
    rows = graph.rows(begin, end)
    ours = gradients(x, graph.weight, rows.indptr, rows.indices, reduce, slice(None))
    truth = gradients(x, graph.weight, graph.indptr, graph.indices, reduce, slice(begin, end))
    for a, b in zip(ours, truth, strict=True):
        torch.testing.assert_close(a, b)


def test_weights_outside_a_range_have_no_gradient(monkeypatch):
    graph, x = graph_of(weighted=True), torch.randn(NODES, 9)
    rows, weight = graph.rows(13, 35), graph.weight.clone().requires_grad_()
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: empty(*size, **options).fill_(7))  # what memory may hold
    aggregate(x, rows.indptr, rows.indices, weight=weight).sum().backward()
    begin, end = int(rows.indptr[0]), int(rows.indptr[-1])
    assert weight.grad[begin:end].abs().sum() > 0
    assert weight.grad[:begin].abs().sum() == 0
    assert weight.grad[end:].abs().sum() == 0


@pytest.mark.parametrize("indptr", [[-1, 3], [2, 401], [5, 3, 9]])
def test_an_indptr_outside_of_the_entries_is_refused(indptr):
    graph = graph_of()
    with pytest.raises(ValueError, match=r"indptr"):
        aggregate(torch.zeros(NODES, 3), torch.tensor(indptr), graph.indices)


def test_targets_come_first_for_kernels_that_add_loops():
    graph, x = graph_of(), torch.arange(NODES).view(-1, 1)
    for begin, end in RANGES:
        rows = graph.rows(begin, end)
        moved, indptr, indices = targets_first(x, rows)
        assert moved[: end - begin].flatten().tolist() == list(range(begin, end))
        assert int(indptr[0]) == 0
        assert int(indptr[-1]) == len(indices)
        for i in range(end - begin):
            named = moved[indices[indptr[i] : indptr[i + 1]].long()].flatten()
            assert torch.equal(named, graph.neighbors(begin + i).long())


# ---- what a graph keeps


def test_what_is_derived_is_made_once():
    graph, made = graph_of(), []
    for _ in range(3):
        assert graph.derived("a", lambda: made.append("a") or len(made)) == 1
        assert graph.derived("b", lambda: made.append("b") or len(made)) == 2
    assert made == ["a", "b"]
    assert graph_of().derived("a", lambda: "its own") == "its own"


def test_none_is_derived_once_too():
    graph, made = graph_of(), []
    for _ in range(2):
        assert graph.derived("nothing", lambda: made.append(1)) is None
    assert made == [1]


def test_what_fails_is_not_kept():
    graph = graph_of()
    with pytest.raises(ZeroDivisionError):
        graph.derived("a", lambda: 1 // 0)
    assert graph.derived("a", lambda: 5) == 5


def test_threads_that_derive_agree():
    graph = graph_of(5_000)
    found = []
    threads = [threading.Thread(target=lambda: found.append(graph.reverse())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for reverse in found:
        assert torch.equal(reverse.indices, found[0].indices)


def test_a_reverse_is_made_once_and_its_bytes_are_not_the_graphs():
    graph = graph_of()
    before = graph.nbytes
    assert graph.reverse() is graph.reverse()
    assert graph.nbytes == before


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_degrees_without_loops_count_no_loop(dtype):
    source = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 2], dtype=dtype)
    target = torch.tensor([0, 1, 1, 1, 1, 3, 3, 3, 0], dtype=dtype)  # none, one, two and three loops; node 4 is isolated
    graph = hr.Graph.from_edges(source, target, 5)
    assert graph.degrees().tolist() == [2, 4, 0, 3, 0]
    assert graph.degrees(loops=False).tolist() == [1, 1, 0, 1, 0]
    assert graph.degrees(loops=False) is graph.degrees(loops=False)


def test_degrees_without_loops_where_there_are_none():
    graph = hr.Graph.from_edges([0, 1, 1], [1, 0, 0], 3)
    assert graph.degrees(loops=False).tolist() == graph.degrees().tolist() == [2, 1, 0]
    assert hr.Graph.from_edges([], [], 0).degrees(loops=False).tolist() == []
    assert hr.Graph.from_edges([], [], 2).degrees(loops=False).tolist() == [0, 0]


def test_degrees_without_loops_of_a_random_graph():
    graph = graph_of(2_000)
    source, target = graph.edge_index()
    wanted = torch.bincount(target[source != target], minlength=NODES)
    assert torch.equal(graph.degrees(loops=False), wanted)
    assert not torch.equal(wanted, graph.degrees())
