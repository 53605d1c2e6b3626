"""How aggregations are launched: the router is a pure function, its table a file, and what rows are prepared with is exact."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.graph.topology.properties import window_reuse
from headrace.kernels import Launch, launch_for, prepare, tune
from headrace.kernels._aggregate.launch import H200, bucket_of
from headrace.kernels._aggregate.prepared import heavy_groups, reuse_in_windows, windows
from headrace.kernels._aggregate.tune import candidates
from headrace.kernels._aggregate.tuned import read_table, tuned, write_table


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_every_width_and_degree_has_a_launch(dtype):
    for width in (0, 1, 2, 16, 17, 47, 64, 100, 128, 129, 602, 10_000):
        for degree in (0.0, 0.5, 3, 10, 50, 1e5):
            launch = launch_for(mean_degree=degree, width=width, dtype=dtype)
            assert launch.variant == "row"
            assert launch == launch_for(mean_degree=degree, width=width, dtype=dtype)


def test_the_router_cuts_heavy_rows_and_shares_neighbors_where_it_pays():
    figures = {"mean_degree": 30, "width": 64, "dtype": torch.bfloat16}
    assert launch_for(**figures, max_degree=100).variant == "row"
    assert launch_for(**figures, max_degree=100_000, degree_cv=20).variant == "split"
    assert launch_for(**figures, max_degree=10_000, degree_cv=2, rows=10_000).variant == "split"
    assert launch_for(**figures, max_degree=10_000, degree_cv=2, rows=10_000_000).variant == "row"  # one hub among much else
    assert launch_for(**figures, max_degree=2138, degree_cv=2, rows=10_000).variant == "row"  # less than a second launch takes
    assert launch_for(**figures, max_degree=100, rho_w=12).variant == "window"
    assert launch_for(**figures, max_degree=100, rho_w=1.1).variant == "row"
    assert launch_for(**{**figures, "dtype": torch.float64}, rho_w=12).variant == "row"


def test_a_launch_survives_being_packed():
    for launch in (Launch(), Launch("window", window=32, columns=64), Launch(programs=528), *H200.values()):
        assert Launch.unpacked(launch.packed()) == launch
    assert Launch.unpacked("row,512,128,8,2,16,1,3") == Launch()  # as files have it that were written before there was a bound


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"variant": "rows"}, "variant must be one of 'row', 'split', 'window', not 'rows'"),
        ({"entries": 12}, "entries must be a power of two, not 12"),
        ({"columns": 0}, "columns must be a power of two, not 0"),
        ({"variant": "window", "window": 8}, "window must be 16 or 32 rows, not 8"),
        ({"stages": 0}, "stages must be at least 1"),
        ({"programs": -1}, "programs must be at least 1, or 0 for one for every block, not -1"),
    ],
)
def test_wrong_launches_are_named(wrong, said):
    with pytest.raises(ValueError, match=said):
        Launch(**wrong)


def test_a_table_is_kept_in_a_file(tmp_path):
    path = tmp_path / "deep" / "table.json"
    assert tuned(torch.device("cpu"), path) == H200
    bucket = bucket_of(mean_degree=50, width=64, dtype=torch.float32)
    other = Launch(columns=16, entries=2)
    write_table(path, {bucket: other}, "a GPU")
    table = read_table(path)
    assert table[bucket] == other
    assert {**table, bucket: H200[bucket]} == H200
    assert launch_for(mean_degree=50, width=64, dtype=torch.float32, table=table) == other
    path.write_text("{}")
    with pytest.raises(ValueError, match="holds no table of launches"):
        read_table(path)


def test_only_a_gpu_is_tuned():
    with pytest.raises(ValueError, match="only kernels of a GPU are tuned, not of cpu"):
        tune("cpu")


def test_candidates_differ_and_begin_with_what_is_known():
    for bucket, launch in H200.items():
        tried = list(candidates(bucket))
        assert tried[0] == launch
        assert len(set(tried)) == len(tried) > 1


def test_the_router_needs_no_triton():
    code = "import sys, headrace.kernels._aggregate.launch; assert 'triton' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


degrees_of_rows = st.lists(st.integers(0, 40), max_size=50)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(degrees=degrees_of_rows, group=st.sampled_from([1, 2, 8, 16]))
def test_groups_cut_heavy_rows_into_pieces_in_order(degrees, group):
    indptr = torch.tensor([3, *degrees]).cumsum(0)
    heavy, firsts, begins, ends = heavy_groups(indptr, group)
    assert heavy.tolist() == [row for row, degree in enumerate(degrees) if degree > group]
    for number, row in enumerate(heavy.tolist()):
        pieces = slice(int(firsts[number]), int(firsts[number + 1]))
        entries = [e for b, t in zip(begins[pieces].tolist(), ends[pieces].tolist(), strict=True) for e in range(b, t)]
        assert entries == list(range(int(indptr[row]), int(indptr[row + 1])))
        assert int((ends - begins)[pieces].max()) <= group
    assert int(firsts[-1]) == len(begins) == len(ends)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(degrees=degrees_of_rows, window=st.sampled_from([16, 32]), columns=st.integers(1, 20), seed=st.integers(0, 99))
def test_windows_hold_every_edge_as_often_as_it_comes(degrees, window, columns, seed):
    indptr = torch.tensor([2, *degrees]).cumsum(0)  # entries 0 and 1 belong to no row
    indices = torch.randint(0, columns, (int(indptr[-1]) + 1,), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    begins, neighbors, bits = windows(indptr, indices, window)
    expected = torch.zeros(len(degrees), columns)
    for row, degree in enumerate(degrees):
        expected[row].index_add_(0, indices[int(indptr[row]) :][:degree].long(), torch.ones(degree))
    found = torch.zeros(-(-len(degrees) // window) * window, columns)
    for number in range(len(begins) - 1):
        for at in range(int(begins[number]), int(begins[number + 1])):
            for inner in range(window):
                found[number * window + inner, int(neighbors[at])] += int(bits[at]) >> inner & 1
    assert torch.equal(found[: len(degrees)], expected)
    assert not found[len(degrees) :].any()
    assert int(begins[-1]) == len(neighbors) == len(bits)


def test_windows_of_a_plain_graph_name_a_neighbor_once():
    graph = hr.Graph.from_edges(torch.arange(40) % 7, torch.arange(40), 40, undirected=True, deduplicate=True)
    begins, neighbors, _ = windows(graph.indptr, graph.indices, 16)
    for b, e in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True):
        assert len(neighbors[b:e].unique()) == e - b


def test_reuse_is_entries_over_distinct_neighbors_of_windows():
    graph = hr.generate.community(480, 9_000, features=0).graph  # 30 windows: all are looked at
    _, neighbors, _ = windows(graph.indptr, graph.indices, 16)
    assert reuse_in_windows(graph.indptr, graph.indices, 16) == pytest.approx(graph.num_edges / len(neighbors))
    assert reuse_in_windows(graph.indptr, graph.indices, 16) == pytest.approx(window_reuse(graph, 16))
    assert reuse_in_windows(torch.zeros(9, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), 16) == 1
    assert reuse_in_windows(torch.zeros(99, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), 16) == 1


def test_a_symmetric_graph_is_prepared_once():
    graph = hr.generate.community(200, 2_000, features=0).graph
    same = prepare(graph, reverse=graph)
    assert same.reverse is not None
    assert same.reverse.tensors is same.tensors
    other = prepare(graph, Launch("split", group=8), reverse=graph.reverse())
    assert other.reverse is not None
    assert other.reverse.launch == other.launch
    assert len(other.reverse.tensors) == 4


def test_a_bound_goes_to_both_directions_and_to_the_launch_that_is_chosen():
    graph = hr.generate.community(200, 2_000, features=0).graph
    for reverse in (graph, graph.reverse()):
        bounded = prepare(graph, reverse=reverse, programs=7)
        assert bounded.reverse is not None
        assert (bounded.launch.programs, bounded.reverse.launch.programs) == (7, 7)
    assert prepare(graph).launch.programs == 0
