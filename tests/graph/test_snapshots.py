"""Sequences of graphs: what is kept of each, and that every graph comes back as it was."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.graph.changing import sizes
from headrace.graph.known.named import named, named_snapshots
from headrace.graph.topology.differences import Topologies

EDGES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20)


def plain(edges, nodes):
    keys = sorted((dst, src) for src, dst in edges)
    indptr = [sum(dst < row for dst, _ in keys) for row in range(nodes + 1)]
    return indptr, [src for _, src in keys]


@settings(max_examples=60, deadline=None)
@given(st.lists(EDGES, min_size=1, max_size=40))
def test_every_topology_comes_back_as_it_was(sequence):
    kept = Topologies(6)
    numbers = [kept.add(*(np.array([edge[i] for edge in edges], np.int64) for i in (0, 1))) for edges in sequence]
    kept._built.clear()
    for number, edges in zip(numbers, sequence, strict=True):
        indptr, indices = kept[number]
        assert (indptr.tolist(), indices.tolist()) == plain(edges, 6)
    assert len(kept) == len({tuple(plain(edges, 6)[0] + plain(edges, 6)[1]) for edges in sequence})


def test_a_difference_is_kept_where_it_is_smaller_alone():
    draw, kept = np.random.default_rng(0), Topologies(300)
    first, other = draw.integers(0, 300, (2, 2, 5000))
    like = np.concatenate([other[:, 5:], [[1] * 5, [2] * 5]], axis=1)
    for edges, differences in ((first, 0), (other, 0), (like, 1)):
        kept.add(*edges)
        assert kept.differences == differences
    plain_nbytes = 3 * (8 * 301 + 4 * 5000)  # compressed rows of 300 nodes and 5000 edges
    assert plain_nbytes - kept.nbytes > 0.9 * plain_nbytes / 3
    kept._built.clear()
    for number, edges in enumerate((first, other, like)):
        assert tuple(part.tolist() for part in kept[number]) == plain(edges.T.tolist(), 300)


def test_equal_topology_is_kept_once_and_weights_where_they_change():
    snapshots = hr.Snapshots([([0, 1], [1, 0], [2.0, 3.0]), ([1, 0], [0, 1], [3.0, 2.0]), ([0, 1], [1, 0], [5.0, 3.0])], 2)
    assert snapshots.summary()["topologies"] == 1
    assert snapshots.graph(0) is snapshots.graph(1)
    assert snapshots.graph(2) is not snapshots.graph(0)
    assert snapshots.graph(2).weight.tolist() == [3.0, 5.0]  # by row: the edge into 0, then that into 1
    assert snapshots.summary()["weight_bytes"] == 16


def test_england_covid_takes_at_most_half_of_its_plain_bytes(data_root):
    data = hr.load("england_covid", data_root)
    snapshots = hr.Snapshots.of(data)
    about = snapshots.summary()
    assert about["topology_bytes"] <= about["plain_topology_bytes"] / 2
    edges, weight, ends = (data.extra[name] for name in ("edge_index", "edge_weight", "snapshot_ptr"))
    for t in range(61):
        own = slice(int(ends[t]), int(ends[t + 1]))
        order = np.lexsort(edges[:, own].numpy())
        expected = hr.Graph.from_edges(edges[0, own][order], edges[1, own][order], 129, weight=weight[own][order])
        graph = snapshots[t].graph
        assert all(torch.equal(getattr(graph, name), getattr(expected, name)) for name in ("indptr", "indices", "weight"))


def test_known_datasets_are_read(data_root):
    shapes = {"los_loop": (2016, 207, 1), "chickenpox_hungary": (521, 20, 1), "twitter_tennis_rg17": (120, 1000, 2)}
    for name, (steps, nodes, width) in shapes.items():
        snapshots = hr.Snapshots.of(hr.load(name, data_root))
        assert (len(snapshots), snapshots.num_nodes, snapshots.num_features) == (steps, nodes, width)
    assert hr.Snapshots.of(hr.load("los_loop", data_root)).summary()["topologies"] == 1
    bitcoin = hr.Snapshots.of(hr.load("bitcoin_otc", data_root), every=1.2e6)
    assert len(bitcoin) == 138
    assert sum(bitcoin.num_edges) == 35592
    with pytest.raises(ValueError, match="every="):
        hr.Snapshots.of(hr.load("bitcoin_otc", data_root))


def test_stream_by_time_by_count_sliding_and_cumulative():
    stream = hr.EventStream([0, 1, 2, 0, 1], [1, 2, 0, 2, 0], [0, 1, 5, 11, 12])
    by_time = hr.Snapshots.from_stream(stream, every=5)
    assert by_time.num_edges == [2, 1, 2]
    assert hr.Snapshots.from_stream(stream, every=5, span=2).num_edges == [2, 3, 3]
    assert hr.Snapshots.from_stream(stream, count=2, span=None).num_edges == [2, 4, 5]
    assert by_time.present(1).tolist() == [True, False, True]
    with pytest.raises(ValueError, match="either every="):
        hr.Snapshots.from_stream(stream)


def test_nodes_that_are_away_have_no_rows():
    ids = [torch.tensor([0, 2]), torch.tensor([0, 1, 2])]
    rows = [torch.tensor([[1.0], [2.0]]), torch.ones(3, 1)]
    snapshots = hr.Snapshots([([0], [2]), ([1], [2])], 3, x=rows, nodes=ids)
    assert snapshots[0].x.flatten().tolist() == [1.0, 0.0, 2.0]
    own = snapshots.own_graph(0)
    assert (own.indptr.tolist(), own.indices.tolist()) == ([0, 0, 1], [0])
    with pytest.raises(ValueError, match="edge at node 1"):
        hr.Snapshots([([1], [2])], 3, nodes=[torch.tensor([0, 2])])
    assert hr.Snapshots([([0], [1])], 3).never_present().tolist() == [2]


def test_lists_of_numpy_arrays_are_taken():
    """What datasets of PyG Temporal keep: float64, an array for each time."""
    x, y = [np.arange(6.0).reshape(3, 2) + t for t in range(4)], [np.arange(3.0) + t for t in range(4)]
    snapshots = hr.Snapshots([(np.array([0, 1]), np.array([1, 2]), np.ones(2))] * 4, 3, x=x, y=y, mask=[np.ones(3, bool)] * 4)
    assert (snapshots.x[1].dtype, snapshots.y.dtype, snapshots.mask.dtype) == (torch.float32, torch.float32, torch.bool)
    assert snapshots[2].x.tolist() == (x[2]).tolist()
    assert snapshots[3].y.tolist() == [3, 4, 5]
    apart = hr.Snapshots([([0], [2])] * 2, 3, x=[x[0][:2], x[0]], nodes=[np.array([0, 2]), [0, 1, 2]])
    assert apart[0].x.tolist() == [[0, 1], [0, 0], [2, 3]]


def test_what_is_wrong_is_named():
    with pytest.raises(ValueError, match="snapshot 1 names nodes from 0 to 9"):
        hr.Snapshots([([0], [1]), ([0, 9], [1, 1])], 3)
    with pytest.raises(ValueError, match="snapshot 0 has 1 features, snapshot 1 has 2"):
        hr.Snapshots([([0], [1])] * 2, 2, x=[torch.ones(2, 1), torch.ones(2, 2)])
    with pytest.raises(ValueError, match="weight 1 of snapshot 1 is nan: mend it, or leave its edge out"):
        hr.Snapshots([([0], [1], [1.0]), ([0, 1], [1, 0], [1.0, float("nan")])], 2)
    data = hr.Dataset(hr.Graph.from_edges([0], [1], 2), extra={"edge_index": torch.tensor([[0], [1]]), "signal": torch.ones(3, 2)})
    data.extra["signal"][1, 1] = float("nan")
    with pytest.raises(ValueError, match=r"NaN at snapshot 1, node 1 \(1 in all\)"):
        hr.Snapshots.of(data)
    masked = hr.Snapshots.of(data, missing="mask")
    assert masked.info["missing"] == 1
    assert not masked.mask[1, 1]
    assert masked.mask.sum() == 5
    with pytest.raises(ValueError, match="no snapshots"):
        hr.Snapshots.of(hr.generate.community(nodes=20, edges=40, classes=2))


def test_generated_sizes_have_the_stated_spread_and_correlation():
    z = np.log(np.concatenate([sizes(4000, seed=seed) for seed in range(8)])) + 0.5
    assert abs(z.var() - 1) < 0.15
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1] - 0.95) < 0.02
    made = named_snapshots("generate:snapshots?nodes=50&edges=200&steps=12&features=3")
    again = named_snapshots("generate:snapshots?nodes=50&edges=200&steps=12&features=3")
    assert len(set(made.num_edges)) > 6
    assert all(torch.equal(a.x, b.x) and torch.equal(a.graph.indices, b.graph.indices) for a, b in zip(made, again, strict=True))
    with pytest.raises(ValueError, match="train snapshot"):
        named("generate:snapshots?nodes=50&edges=200")
