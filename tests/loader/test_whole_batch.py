import pytest
import torch

import headrace as hr
from headrace.loader import Batch, NeighborLoader, WholeBatch
from headrace.sample import NeighborSampler
from headrace.store import ArrayStore


@pytest.fixture(scope="module")
def data() -> hr.Dataset:
    plain = hr.generate.community(nodes=400, edges=6000, classes=5, features=20, seed=3, splits=(0.4, 0.1, 0.5))
    edges = plain.graph.edge_index()
    loops = torch.arange(0, 400, 3)
    graph = hr.Graph.from_edges(torch.cat([edges[0], loops]), torch.cat([edges[1], loops]), 400)
    return hr.Dataset(graph, x=plain.x, y=plain.y, splits=plain.splits)


def degrees_without_loops(data: hr.Dataset) -> torch.Tensor:
    source, target = data.graph.edge_index()
    return torch.bincount(target[source != target], minlength=data.num_nodes)


# A whole graph as one batch


def test_every_node_is_a_seed_and_every_block_the_graph(data):
    batch = WholeBatch(data, 3)
    assert batch.batch_size == 400
    assert batch.blocks == (data.graph,) * 3
    assert batch.n_id.tolist() == list(range(400))
    assert batch.x is data.x
    assert batch.y is data.y
    assert batch.table is None
    assert torch.equal(batch.degree, degrees_without_loops(data))
    assert batch.to("cpu") is batch


@pytest.mark.parametrize("kind", ["sage", "gcn", "gin"])
def test_a_model_gives_the_same_rows_as_from_all_neighbors_of_all_nodes(data, kind):
    torch.manual_seed(1)
    model = hr.nn.GNN(20, 16, 5, layers=2, conv=kind).eval()
    with torch.no_grad():
        whole = model(WholeBatch(data, 2))
        (sampled,) = (model(batch) for batch in NeighborLoader(data, [-1, -1], batch_size=400))
    assert whole.shape == (400, 5)
    torch.testing.assert_close(sampled, whole, atol=1e-5, rtol=1e-5)


def test_a_whole_batch_becomes_pyg_data(data):
    found = WholeBatch(data, 2).to_pyg()
    assert torch.equal(found.x, data.x)
    assert torch.equal(found.y, data.y)
    assert torch.equal(found.edge_index, data.graph.edge_index())
    assert (found.num_nodes, found.batch_size) == (400, 400)
    bare = WholeBatch(hr.Dataset(data.graph), 2).to_pyg()
    assert bare.x is None
    assert bare.num_nodes == 400


def test_a_model_of_other_depth_says_so(data):
    with pytest.raises(ValueError, match="the model has 3 layers, the batch has 2 hops: give one fanout per layer"):
        hr.nn.GNN(20, 16, 5, layers=3)(WholeBatch(data, 2))
    with pytest.raises(ValueError, match="the batch has no features"):
        hr.nn.GNN(20, 16, 5, layers=2)(WholeBatch(hr.Dataset(data.graph), 2))


# Rows in place, and degrees


def test_the_table_is_the_array_that_rows_are_gathered_from(data):
    batch = next(iter(NeighborLoader(data, [4, 4], "train", batch_size=30)))
    table = batch.table
    assert table.data_ptr() == data.x.data_ptr()
    expected = table[batch.n_id.long()]
    assert torch.equal(batch.x, expected)
    assert batch.table is None  # rows that are there are used


def test_rows_that_were_gathered_ahead_leave_no_table(data):
    batch = next(iter(NeighborLoader(data, [4, 4], "train", batch_size=30, ahead="rows")))
    assert batch.table is None
    assert torch.equal(batch.x, data.x[batch.n_id.long()])


def test_only_rows_of_numbers_are_a_table(data):
    sample = NeighborSampler(data.graph, [3]).sample(torch.arange(5))
    for rows in (torch.zeros(400, dtype=torch.int64), torch.zeros(400, 2, dtype=torch.int64), torch.zeros(400)):
        assert Batch(sample, torch.arange(5), ArrayStore(rows)).table is None
    assert Batch(sample, torch.arange(5)).table is None
    assert Batch(sample, torch.arange(5), ArrayStore(torch.zeros(400, 2, dtype=torch.bfloat16))).table is not None


def test_a_model_reads_rows_in_place_and_gets_the_same(data):
    model = hr.nn.GNN(20, 16, 5, layers=2).eval()
    assert model.reads_table
    for batch in NeighborLoader(data, [4, 4], "val", batch_size=16):
        with torch.no_grad():
            in_place = model(batch)
            assert "x" not in batch.__dict__  # nothing was gathered
            batch.x  # noqa: B018 - gathers
            torch.testing.assert_close(model(batch), in_place)


def test_degrees_are_those_of_the_whole_graph_without_loops(data):
    wanted = degrees_without_loops(data)
    for batch in NeighborLoader(data, [2, 2], "train", batch_size=50):
        assert torch.equal(batch.degree, wanted[batch.n_id.long()])


def test_a_batch_that_does_not_know_its_graph_has_no_degrees(data):
    sample = NeighborSampler(data.graph, [3]).sample(torch.arange(5))
    with pytest.raises(ValueError, match="does not know its graph"):
        _ = Batch(sample, torch.arange(5)).degree


# Going on within an epoch


def fingerprint(batch: Batch) -> tuple:
    return batch.index, batch.n_id.tolist(), batch.sample.indices.tolist(), batch.input_id.tolist()


@pytest.mark.parametrize("staleness", [0, 3])
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_goes_on_at_any_batch_as_if_it_had_never_stopped(data, staleness, shuffle):
    def loader():
        return NeighborLoader(data, [4, 3], "train", batch_size=24, shuffle=shuffle, seed=5, staleness=staleness, threads=2)

    plain = loader()
    epochs = [[fingerprint(batch) for batch in plain] for _ in range(3)]
    assert len(epochs[0]) == 7
    for epoch in (0, 2):
        for first in range(8):
            again = loader()
            again.resume(epoch, first)
            assert [fingerprint(batch) for batch in again] == epochs[epoch][first:]
            if epoch == 0:  # and the next is whole
                assert again.epoch == 1
                assert [fingerprint(batch) for batch in again] == epochs[1]


def test_only_a_place_within_an_epoch_can_be_resumed(data):
    loader = NeighborLoader(data, [4], "train", batch_size=24)
    for epoch, batch in ((-1, 0), (0, -1), (0, 8)):
        with pytest.raises(ValueError, match="epoch must not be negative and batch be from 0 to 7"):
            loader.resume(epoch, batch)
    loader.resume(1, 7)
    assert list(loader) == []
