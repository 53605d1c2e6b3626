import dataclasses
import gc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import headrace as hr
from headrace.graph.ingest import IngestOptions, ingest
from headrace.kernels import aggregate


@pytest.fixture
def data():
    data = hr.generate.community(nodes=600, edges=12_000, classes=4, features=7, seed=3)
    data.extra |= {"age": torch.arange(600), "train_masks": torch.rand(3, 600) < 0.5}
    return data


def same_under(moved, data):
    """Everything of `moved` is what `data` has, at the nodes that `original_ids` names."""
    old = moved.original_ids
    assert old.sort().values.equal(torch.arange(data.num_nodes))
    assert moved.x.equal(data.x[old])
    assert moved.y.equal(data.y[old])
    for name, nodes in data.splits.items():
        assert old[moved.splits[name]].equal(nodes)
    assert moved.extra["age"].equal(data.extra["age"][old])
    assert moved.extra["train_masks"].equal(data.extra["train_masks"][:, old])
    # rows keep the order of their edges, so sums have the same bits
    sums, before = (aggregate(d.x, d.graph.indptr, d.graph.indices) for d in (moved, data))
    assert sums.equal(before[old])


@pytest.mark.parametrize("order", ["rabbit", "first_neighbor", "degree"])
def test_a_reordered_dataset_is_the_same_data(data, order):
    moved = data.reorder(order)
    same_under(moved, data)
    assert moved.info["order"] == order
    assert not moved.original_ids.equal(torch.arange(600))
    assert data.order is None
    assert data.original_ids.equal(torch.arange(600))


def test_orders_add_up_and_are_saved(data, tmp_path):
    twice = data.reorder("rabbit").reorder(torch.arange(600).flip(0))
    same_under(twice, data)
    twice.save(tmp_path / "twice")
    again = hr.open(tmp_path / "twice", verify=True)
    same_under(again, data)
    assert again.info["order"] == "given"
    same_under(again.reorder("degree"), data)


def test_batches_of_a_reordered_dataset_have_the_same_seeds(data):
    moved = data.reorder("rabbit")
    batches = []
    for each in (data, moved):
        loader = hr.loader.NeighborLoader(each, num_neighbors=[-1], input_nodes=each.splits["train"], batch_size=32, shuffle=True)
        batches.append([batch.y[: batch.batch_size] for batch in loader])
    assert all(a.equal(b) for a, b in zip(*batches, strict=True))


@pytest.mark.parametrize("text", [False, True])
def test_the_ids_of_an_import_follow_their_nodes(tmp_path, text):
    names = [f"n{i:03}" if text else str(7 * i) for i in range(60)]
    lines = [f"{names[i]},{names[(i * j + 1) % 60]}" for i in range(60) for j in (1, 5, 11)]
    (tmp_path / "edges.csv").write_text("\n".join(lines) + "\n")
    ingest(IngestOptions(edges=(tmp_path / "edges.csv",), output=tmp_path / "data"))
    data = hr.open(tmp_path / "data")
    assert data.id_map is not None
    before = pq.read_table(data.id_map).column("id").to_pylist()
    moved = data.reorder("rabbit")
    path = moved.id_map
    table = pq.read_table(path)
    assert table.column("node").to_pylist() == list(range(len(before)))
    assert table.column("id").to_pylist() == [before[i] for i in moved.original_ids.tolist()]
    if not text:
        assert moved.extra["id"].tolist() == table.column("id").to_pylist()
    moved.save(tmp_path / "moved")
    assert pq.read_table(hr.open(tmp_path / "moved", verify=True).id_map) == table
    # the temporary file lives as long as somebody may read it
    name, copy = str(path), dataclasses.replace(moved)
    del moved, path
    gc.collect()
    assert pq.read_table(copy.id_map) == table
    del copy
    gc.collect()
    with pytest.raises(FileNotFoundError):
        open(name).close()


def test_an_id_map_of_other_length_is_refused(data, tmp_path):
    pq.write_table(pa.table({"node": [0, 1], "id": [5, 6]}), tmp_path / "ids.parquet")
    data.id_map = tmp_path / "ids.parquet"
    with pytest.raises(ValueError, match="the id map has 2 rows for 600 nodes"):
        data.reorder("degree")


def test_extra_arrays_of_ids_are_renamed_and_others_kept_when_told(data):
    triples = torch.stack([torch.randint(600, (40,)), torch.randint(9, (40,)), torch.randint(600, (40,))], dim=1)
    pairs = torch.tensor([[0, 599], [-1, 3]], dtype=torch.int32)
    data.extra |= {"triples": triples, "pairs": pairs, "times": torch.rand(11)}
    with pytest.raises(
        ValueError, match=r"extra array 'triples' of shape \[40, 3\] has no row per node \(600\): say that it holds"
    ):
        data.reorder("degree")
    moved = data.reorder("degree", ids={"triples": (0, 2), "pairs": None}, keep=["times"])
    same_under(moved, data)
    old = moved.original_ids
    assert moved.extra["triples"][:, 1].equal(triples[:, 1])
    assert old[moved.extra["triples"][:, 0]].equal(triples[:, 0])
    assert old[moved.extra["triples"][:, 2]].equal(triples[:, 2])
    assert moved.extra["pairs"].dtype == torch.int32
    assert int(moved.extra["pairs"][1, 0]) == -1
    assert old[moved.extra["pairs"][0].long()].tolist() == [0, 599]
    assert moved.extra["times"].equal(data.extra["times"])
    assert data.extra["pairs"].equal(pairs)
    with pytest.raises(ValueError, match="there is no extra array 'pears'"):
        data.reorder("degree", ids=["pears"])
    with pytest.raises(ValueError, match=r"extra array 'times' holds torch\.float32: node ids are int32 or int64"):
        data.reorder("degree", ids=["triples", "pairs", "times"])
    with pytest.raises(ValueError, match="extra array 'pairs' holds 600, and there are 600 nodes"):
        data.extra["pairs"][0, 0] = 600
        data.reorder("degree", ids=["triples", "pairs"], keep=["times"])


def test_auto_says_why_and_leaves_small_graphs_alone(data):
    same = data.reorder("auto", epochs=1)
    assert same.graph is data.graph
    assert same.order is None
    assert same.info["order_reason"].startswith("as it is:")
    assert "order_reason" not in data.info
    data.x = None
    with pytest.raises(ValueError, match="give dim"):
        data.reorder("auto")
    assert data.reorder("auto", dim=16).order is None


def test_what_is_no_order_is_refused(data):
    with pytest.raises(
        ValueError, match="there is no order 'rabit': choose one of rabbit, first_neighbor, degree, rcm, metis or auto"
    ):
        data.reorder("rabit")
    with pytest.raises(ValueError, match="order has 3 entries for 600 nodes"):
        data.reorder(torch.tensor([2, 1, 0]))


def test_a_dataset_without_rows_is_reordered_too():
    data = hr.Dataset(hr.Graph.from_edges([2, 0], [0, 1], 3), splits={"train": torch.tensor([2, 0], dtype=torch.int32)})
    moved = data.reorder([2, 0, 1])
    assert moved.graph.neighbors(1).tolist() == [0]
    assert moved.splits["train"].tolist() == [0, 1]
    assert moved.splits["train"].dtype == torch.int32
    empty = hr.Dataset(hr.Graph.from_edges([], [], 0)).reorder("rabbit")
    assert empty.num_nodes == 0
