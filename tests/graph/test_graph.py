"""`Graph.from_edges` against a plain numpy construction, and what a graph promises about itself."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace import _native

seeded = settings(derandomize=True, deadline=None, max_examples=60)


def reference_csr(src, dst, nodes, *, undirected=False, deduplicate=False, self_loops="keep"):
    """(indptr, indices, position) by stable sorting of the written-out edge list; -1 stands for an added loop."""
    src, dst = np.asarray(src, np.int64), np.asarray(dst, np.int64)
    k, loop = np.arange(len(src)), src == dst
    forward = ~loop if self_loops == "drop" else np.ones(len(src), bool)
    backward = ~loop & undirected
    wanted = np.stack([forward, backward], 1).ravel()
    rows = np.stack([dst, src], 1).ravel()[wanted]
    columns = np.stack([src, dst], 1).ravel()[wanted]
    position = np.stack([k, k], 1).ravel()[wanted]
    if self_loops == "add":
        lonely = np.setdiff1d(np.arange(nodes), src[loop])
        rows, columns = np.concatenate([rows, lonely]), np.concatenate([columns, lonely])
        position = np.concatenate([position, np.full(len(lonely), -1)])
    order = np.lexsort((columns, rows)) if deduplicate else np.argsort(rows, kind="stable")
    rows, columns, position = rows[order], columns[order], position[order]
    if deduplicate and len(rows):
        first = np.r_[True, (np.diff(rows) != 0) | (np.diff(columns) != 0)]
        rows, columns, position = rows[first], columns[first], position[first]
    return np.searchsorted(rows, np.arange(nodes + 1)), columns, position


def assert_equals_reference(graph, src, dst, nodes, weight=None, **options):
    indptr, indices, position = reference_csr(src, dst, nodes, **options)
    np.testing.assert_array_equal(graph.indptr, indptr)
    np.testing.assert_array_equal(graph.indices, indices)
    if graph.edge_id is not None:
        np.testing.assert_array_equal(graph.edge_id, position)
    if weight is not None:
        expected = np.where(position < 0, 1, np.asarray(weight)[np.maximum(position, 0)]) if len(weight) else np.ones(len(position))
        np.testing.assert_array_equal(graph.weight, expected)


def assert_same_graph(a, b):
    for name in ("indptr", "indices", "weight", "edge_id", "permutation"):
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None), name
        if x is not None:
            assert x.dtype == y.dtype, name
            assert torch.equal(x, y), name


@st.composite
def edge_lists(draw, most_nodes=12, most_edges=40):
    nodes = draw(st.integers(1, most_nodes))
    node = st.integers(0, nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=most_edges))
    src, dst = (np.array([e[i] for e in edges], np.int64) for i in (0, 1))
    return src, dst, nodes + draw(st.integers(0, 3))  # the last nodes may be isolated


options = st.fixed_dictionaries(
    {
        "undirected": st.booleans(),
        "deduplicate": st.booleans(),
        "self_loops": st.sampled_from(["keep", "add", "drop"]),
    }
)


@settings(seeded, max_examples=300)
@given(edge_lists(), options, st.sampled_from([1, 2, 7]), st.sampled_from([np.int32, np.int64]), st.booleans())
def test_graph_equals_the_sorted_edge_list(edges, options, threads, dtype, weighted):
    src, dst, nodes = edges
    weight = np.random.default_rng(0).random(len(src)) if weighted else None
    graph = hr.Graph.from_edges(
        src.astype(dtype), dst.astype(dtype), nodes, weight=weight, edge_id=True, threads=threads, **options
    )
    assert graph.num_nodes == nodes
    assert graph.indptr.dtype == torch.int64
    assert graph.indices.dtype == torch.int32
    assert_equals_reference(graph, src, dst, nodes, weight, **options)
    graph.validate()


@settings(seeded, max_examples=100)
@given(edge_lists(), options)
def test_edges_are_the_same_whether_or_not_ids_and_weights_are_kept(edges, options):
    src, dst, nodes = edges
    bare = hr.Graph.from_edges(src, dst, nodes, **options)
    full = hr.Graph.from_edges(src, dst, nodes, weight=np.ones(len(src), np.float32), edge_id=True, **options)
    assert bare.weight is None
    assert bare.edge_id is None
    assert torch.equal(bare.indptr, full.indptr)
    assert torch.equal(bare.indices, full.indices)


@seeded
@given(edge_lists())
def test_adjacency_equals_scipy(edges):
    src, dst, nodes = edges
    weight = np.random.default_rng(1).random(len(src))
    graph = hr.Graph.from_edges(src, dst, nodes, weight=weight)
    ours = sp.csr_matrix((graph.weight.numpy(), graph.indices.numpy(), graph.indptr.numpy()), shape=(nodes, nodes))
    np.testing.assert_allclose(ours.toarray(), sp.coo_matrix((weight, (dst, src)), shape=(nodes, nodes)).toarray(), rtol=1e-14)


@pytest.mark.parametrize(
    "convert",
    [
        list,
        tuple,
        lambda a: np.array(a, np.int32),
        lambda a: np.array(a, np.int64),
        lambda a: np.array(a, np.uint8),
        lambda a: np.array(a, np.uint32),
        lambda a: np.array(a, np.uint64),
        lambda a: torch.tensor(a, dtype=torch.int32),
        lambda a: torch.tensor(a, dtype=torch.int64),
        lambda a: torch.tensor(a, dtype=torch.int16),
        lambda a: np.array([a, a]).T[:, 0],  # strided
        lambda a: torch.tensor([a, a]).T[:, 0],
    ],
)
def test_every_kind_of_integer_sequence_gives_the_same_graph(convert):
    src, dst = [3, 0, 3, 1, 2, 3], [1, 1, 1, 0, 4, 1]
    expected = hr.Graph.from_edges(torch.tensor(src), torch.tensor(dst))
    assert_same_graph(hr.Graph.from_edges(convert(src), convert(dst)), expected)
    assert expected.neighbors(1).tolist() == [3, 0, 3, 3]


def test_source_and_target_may_have_different_integer_types():
    graph = hr.Graph.from_edges(np.array([0, 1], np.int32), np.array([1, 0], np.int64))
    assert graph.edge_index().tolist() == [[1, 0], [0, 1]]


def test_a_graph_need_not_own_its_input_and_never_writes_to_it():
    src, dst = np.array([1, 0, 1]), np.array([0, 1, 0])
    src.setflags(write=False)
    dst.setflags(write=False)
    graph = hr.Graph.from_edges(src, dst, deduplicate=True, undirected=True)
    assert graph.num_edges == 2
    assert src.tolist() == [1, 0, 1]


@pytest.mark.parametrize("nodes", [None, 0, 5])
def test_empty_graph(nodes):
    graph = hr.Graph.from_edges([], [], nodes)
    assert graph.num_nodes == (nodes or 0)
    assert graph.num_edges == 0
    assert graph.indptr.tolist() == [0] * (graph.num_nodes + 1)
    assert graph.degrees().tolist() == [0] * graph.num_nodes
    assert graph.edge_index().shape == (2, 0)
    assert graph.reverse().num_edges == 0
    graph.validate()


def test_self_loops_of_an_edgeless_graph_have_weight_one_and_id_minus_one():
    graph = hr.Graph.from_edges([], [], 3, self_loops="add", weight=np.zeros(0, np.float32), edge_id=True)
    assert graph.indices.tolist() == [0, 1, 2]
    assert graph.weight.tolist() == [1, 1, 1]
    assert graph.edge_id.tolist() == [-1, -1, -1]


def test_isolated_last_node_has_an_empty_row():
    graph = hr.Graph.from_edges([0, 1], [1, 0], 4)
    assert graph.indptr.tolist() == [0, 1, 2, 2, 2]
    assert graph.neighbors(3).tolist() == []


def test_multi_edges_keep_their_order():
    graph = hr.Graph.from_edges([5, 2, 5, 0, 2, 5], [1, 1, 1, 1, 1, 1], weight=[0.0, 1, 2, 3, 4, 5], edge_id=True)
    assert graph.neighbors(1).tolist() == [5, 2, 5, 0, 2, 5]
    assert graph.weight.tolist() == [0, 1, 2, 3, 4, 5]
    assert graph.edge_id.tolist() == [0, 1, 2, 3, 4, 5]


def test_self_loops_are_not_doubled_in_an_undirected_graph():
    graph = hr.Graph.from_edges([0, 1, 0], [0, 0, 2], 3, undirected=True)
    assert graph.neighbors(0).tolist() == [0, 1, 2]
    assert graph.num_edges == 5


def test_self_loops_are_added_only_where_there_is_none():
    graph = hr.Graph.from_edges([0, 0, 1], [0, 0, 2], 3, self_loops="add", weight=[5.0, 6, 7])
    assert graph.neighbors(0).tolist() == [0, 0]
    assert graph.neighbors(1).tolist() == [1]
    assert graph.neighbors(2).tolist() == [1, 2]
    assert graph.weight.tolist() == [5, 6, 1, 7, 1]


def test_deduplicate_keeps_the_first_with_its_weight_and_id_and_sorts_rows():
    graph = hr.Graph.from_edges(
        [4, 2, 4, 2, 0], [1, 1, 1, 1, 1], weight=[1.0, 2, 3, 4, 5], edge_id=torch.tensor([10, 20, 30, 40, 50]), deduplicate=True
    )
    assert graph.neighbors(1).tolist() == [0, 2, 4]
    assert graph.weight.tolist() == [5, 2, 1]
    assert graph.edge_id.tolist() == [50, 20, 10]


def test_both_directions_of_an_undirected_edge_have_the_first_weight():
    graph = hr.Graph.from_edges([0, 1], [1, 0], weight=[5.0, 7.0], undirected=True, deduplicate=True)
    assert graph.indices.tolist() == [1, 0]
    assert graph.weight.tolist() == [5, 5]


def test_edge_ids_of_the_user_are_kept():
    graph = hr.Graph.from_edges([2, 0], [1, 1], 3, edge_id=np.array([2**40, 7]), self_loops="add")
    assert graph.edge_id.tolist() == [-1, 2**40, 7, -1, -1]
    assert hr.Graph.from_edges([2, 0], [1, 1], edge_id=False).edge_id is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_weights_keep_their_type(dtype):
    graph = hr.Graph.from_edges([1, 0], [0, 1], weight=torch.tensor([3, 4], dtype=dtype), self_loops="add")
    assert graph.weight.dtype == dtype
    assert graph.weight.tolist() == [3, 1, 4, 1]


def test_weights_may_have_columns():
    graph = hr.Graph.from_edges([1, 0], [0, 1], weight=torch.tensor([[1.0, 2], [3, 4]]), self_loops="add")
    assert graph.weight.tolist() == [[1, 2], [1, 1], [3, 4], [1, 1]]


def large_edges():
    random = np.random.default_rng(5)
    src, dst = random.integers(0, 5_000, (2, 300_000))
    return src, dst, 5_000


def hub_edges():
    random = np.random.default_rng(6)
    src = np.concatenate([random.integers(0, 3_000, 100_000), random.integers(0, 3_000, 50_000)])
    dst = np.concatenate([np.full(100_000, 1_234), random.integers(0, 3_000, 50_000)])
    order = random.permutation(len(src))
    return src[order], dst[order], 3_000


def sparse_edges():
    """Many more nodes than edges: rows are dealt into wide buckets."""
    random = np.random.default_rng(7)
    src, dst = random.integers(0, 1_000_000, (2, 40_000))
    return src, dst, 1_000_003


@pytest.mark.parametrize("edges", [large_edges, hub_edges, sparse_edges])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"undirected": True},
        {"deduplicate": True},
        {"undirected": True, "deduplicate": True, "self_loops": "add"},
        {"self_loops": "drop"},
    ],
    ids=lambda o: "-".join(o) or "plain",
)
def test_large_graphs_are_the_same_for_any_number_of_threads(edges, options):
    src, dst, nodes = edges()
    weight = np.random.default_rng(8).random(len(src)).astype(np.float32)
    graphs = [hr.Graph.from_edges(src, dst, nodes, weight=weight, edge_id=True, threads=t, **options) for t in (1, 2, 7)]
    assert_equals_reference(graphs[0], src, dst, nodes, weight, **options)
    for graph in graphs[1:]:
        assert_same_graph(graph, graphs[0])
        assert_same_graph(graph.reverse(threads=2), graphs[0].reverse(threads=1))


@settings(seeded, max_examples=80)
@given(edge_lists(), options, st.booleans())
def test_wide_indices_equal_narrow_ones(edges, options, positions):
    src, dst, nodes = edges
    made = [
        _native.build_csr(src, dst, nodes, wide_index=wide, positions=positions, threads=2, **options) for wide in (False, True)
    ]
    assert [a.dtype for a in (made[0][1], made[1][1])] == [np.int32, np.int64]
    for narrow, wide in zip(*made, strict=True):
        assert (narrow is None) == (wide is None)
        if narrow is not None:
            np.testing.assert_array_equal(narrow, wide)


def test_wide_indices_equal_narrow_ones_on_the_parallel_path():
    src, dst, nodes = large_edges()
    choices = {"undirected": True, "deduplicate": True, "self_loops": "add", "positions": True, "threads": 2}
    for narrow, wide in zip(*(_native.build_csr(src, dst, nodes, wide_index=w, **choices) for w in (False, True)), strict=True):
        np.testing.assert_array_equal(narrow, wide)


def assert_is_reverse(graph, reverse):
    src, dst = graph.edge_index().numpy()
    indptr, indices, position = reference_csr(dst, src, graph.num_nodes)
    np.testing.assert_array_equal(reverse.indptr, indptr)
    np.testing.assert_array_equal(reverse.indices, indices)
    np.testing.assert_array_equal(reverse.permutation, position)
    if graph.weight is not None:
        assert torch.equal(reverse.weight, graph.weight[reverse.permutation])
    if graph.edge_id is not None:
        assert torch.equal(reverse.edge_id, graph.edge_id[reverse.permutation])


@settings(seeded, max_examples=100)
@given(edge_lists(), st.sampled_from([1, 2, 7]), st.booleans())
def test_reverse_is_the_transpose(edges, threads, extras):
    src, dst, nodes = edges
    weight = np.random.default_rng(2).random(len(src)) if extras else None
    graph = hr.Graph.from_edges(src, dst, nodes, weight=weight, edge_id=extras)
    assert_is_reverse(graph, graph.reverse(threads=threads))


@pytest.mark.parametrize("edges", [large_edges, hub_edges, sparse_edges])
def test_reverse_of_a_large_graph(edges):
    src, dst, nodes = edges()
    graph = hr.Graph.from_edges(src, dst, nodes, edge_id=True)
    assert_is_reverse(graph, graph.reverse(threads=2))


def test_reverse_of_int64_indices():
    graph = hr.Graph(torch.tensor([0, 2, 2, 3]), torch.tensor([2, 1, 0]))
    assert graph.reverse().indices.dtype == torch.int64
    assert_is_reverse(graph, graph.reverse())


def test_reverse_is_made_once():
    graph = hr.Graph.from_edges([0, 1], [1, 2])
    assert graph.reverse() is graph.reverse()


def test_edge_index_lists_edges_in_row_order():
    graph = hr.Graph.from_edges([3, 1, 0], [2, 0, 2], 4)
    assert graph.edge_index().tolist() == [[1, 3, 0], [0, 2, 2]]
    assert graph.edge_index().dtype == torch.int64


def test_neighbors_of_a_node_that_is_not_there():
    graph = hr.Graph.from_edges([0], [1])
    for node in (-1, 2):
        with pytest.raises(IndexError, match=rf"node {node} .* 2 nodes"):
            graph.neighbors(node)


def test_nbytes_counts_every_array():
    graph = hr.Graph.from_edges([0, 1], [1, 0], weight=torch.ones(2), edge_id=True)
    assert graph.nbytes == 3 * 8 + 2 * 4 + 2 * 4 + 2 * 4


def test_repr_says_what_there_is():
    graph = hr.Graph.from_edges([0], [1], weight=[1.0])
    assert repr(graph) == "Graph(num_nodes=2, num_edges=1, weight)"


@pytest.mark.parametrize(
    ("indptr", "indices", "complaint"),
    [
        ([0, 2, 1, 3], [0, 1, 2], "indptr must not decrease"),
        ([1, 2, 3], [0, 1, 0], "indptr must begin with 0"),
        ([0, 1, 2], [0, 1, 0], "indptr must end with the number of indices"),
        ([0, 1, 4], [0, 1, 0], "indptr must end with the number of indices"),
        ([0, 1, 2], [0, 2], "index out of range"),
        ([0, 1, 2], [-1, 0], "index out of range"),
        ([0, -5, 2], [1, 0], "indptr must not decrease"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_validate_names_what_is_wrong(indptr, indices, complaint, dtype):
    graph = hr.Graph(torch.tensor(indptr), torch.tensor(indices, dtype=dtype))
    with pytest.raises(ValueError, match=f"not a valid graph of {len(indptr) - 1} nodes: {complaint}"):
        graph.validate()
    with pytest.raises(ValueError, match=complaint):
        graph.reverse()


def test_validate_finds_one_bad_row_or_index_among_many():
    indptr, indices = torch.arange(300_001), torch.arange(300_000, dtype=torch.int32)
    hr.Graph(indptr, indices).validate(threads=2)
    for at in (0, 150_000, 299_999):
        wrong = indices.clone()
        wrong[at] = 300_000
        with pytest.raises(ValueError, match="index out of range"):
            hr.Graph(indptr, wrong).validate(threads=2)
    for at in (1, 150_000, 299_999):
        wrong = indptr.clone()
        wrong[at] += 2
        with pytest.raises(ValueError, match="indptr must not decrease"):
            hr.Graph(wrong, indices).validate(threads=2)


def test_constructor_checks_lengths():
    with pytest.raises(ValueError, match="indptr must hold at least one element"):
        hr.Graph(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int32))
    for name in ("weight", "edge_id", "permutation"):
        with pytest.raises(ValueError, match=f"{name} has 3 entries for 2 edges"):
            hr.Graph(torch.tensor([0, 2]), torch.tensor([0, 0]), **{name: torch.arange(3)})


@pytest.mark.parametrize(
    ("src", "dst", "nodes", "complaint"),
    [
        ([0, -3], [1, 1], None, r"src\[1\] is -3: node ids must not be negative"),
        ([0, 1], [-7, 1], None, r"dst\[0\] is -7: node ids must not be negative"),
        ([0, 1, 9], [1, 1, 1], 9, r"src\[2\] is 9: node ids must be below num_nodes=9"),
        ([0, 1, 2], [1, 10**12, 1], 9, rf"dst\[1\] is {10**12}: node ids must be below num_nodes=9"),
        ([0], [0], 0, r"src\[0\] is 0: node ids must be below num_nodes=0"),
        ([0, 1], [1], None, "src has 2 edges, dst has 1"),
        ([], [1], None, "src has 0 edges, dst has 1"),
        ([0.0, 1.0], [1, 0], None, "src must hold integers, not torch.float"),
        ([0, 1], np.array([1.0, 0.0]), None, "dst must hold integers, not torch.float64"),
        ([True, False], [1, 0], None, "src must hold integers, not torch.bool"),
        ([1, 0], np.array([True, False]), None, "dst must hold integers, not torch.bool"),
        (np.array([1j]), [0], None, "src must hold integers, not torch.complex128"),
        ([[0, 1]], [1, 0], None, r"src must have one dimension, not shape \(1, 2\)"),
        ([0, 1], [[1], [0]], None, r"dst must have one dimension, not shape \(2, 1\)"),
        (3, [0], None, r"src must have one dimension, not shape \(\)"),
        ([0], [0], -1, r"num_nodes must be .* not -1"),
    ],
)
def test_bad_edges_are_named(src, dst, nodes, complaint):
    with pytest.raises(ValueError, match=complaint):
        hr.Graph.from_edges(src, dst, nodes)


@pytest.mark.parametrize(
    ("keywords", "complaint"),
    [
        ({"weight": [1.0]}, "weight has 1 entries for 2 edges"),
        ({"edge_id": [1, 2, 3]}, "edge_id has 3 entries for 2 edges"),
        ({"edge_id": [1.0, 2.0]}, "edge_id must hold integers"),
        ({"self_loops": "remove"}, "self_loops must be 'keep', 'add' or 'drop', not 'remove'"),
        ({"threads": 0}, "threads must be at least 1, not 0"),
        ({"threads": -2}, "threads must be at least 1, not -2"),
    ],
)
def test_bad_options_are_named(keywords, complaint):
    with pytest.raises(ValueError, match=complaint):
        hr.Graph.from_edges([0, 1], [1, 0], **keywords)


def test_bad_ids_are_found_on_the_parallel_path():
    src, dst, nodes = large_edges()
    for at, value in ((0, -1), (170_000, nodes), (299_999, 2**40)):
        wrong = src.copy()
        wrong[at] = value
        with pytest.raises(ValueError, match=rf"src\[{at}\] is {value}:"):
            hr.Graph.from_edges(wrong, dst, nodes, threads=2)


def test_the_negative_id_is_named_and_not_the_largest_one():
    with pytest.raises(ValueError, match=r"src\[1\] is -5"):
        hr.Graph.from_edges(np.array([2**31 - 1, -5], np.int32), np.array([0, 0], np.int32))


def test_empty_numpy_arrays_make_an_empty_graph():
    assert hr.Graph.from_edges(np.array([]), np.array([]), 2).num_nodes == 2


def test_an_id_too_large_for_any_graph_is_a_value_error():
    with pytest.raises((ValueError, MemoryError)):
        hr.Graph.from_edges([2**63 - 1], [0])
