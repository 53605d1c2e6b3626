"""PyG in, PyG out: fields against PyG's own loader classes, samples against brute force (and pyg-lib where it is installed)."""

import zlib

import numpy as np
import pytest
import torch

torch_geometric = pytest.importorskip("torch_geometric", reason="needs torch-geometric")
import torch_geometric.typing as pyg_typing  # noqa: E402
from pyg_cases import assert_same_fields, assert_transforms_are_called, by_adjacency  # noqa: E402
from torch_geometric.data import Data  # noqa: E402
from torch_geometric.loader import LinkNeighborLoader, NodeLoader  # noqa: E402
from torch_geometric.loader import NeighborLoader as PygLoader  # noqa: E402

import headrace as hr  # noqa: E402
from headrace.loader import NeighborLoader  # noqa: E402
from headrace.sample.pyg import PygSampler  # noqa: E402

NODE_FIELDS = ["x", "y", "mask", "extra", "n_id"]
EDGE_FIELDS = ["edge_index", "edge_attr", "edge_time", "e_id"]
BATCH_FIELDS = ["input_id", "batch_size", "num_sampled_nodes", "num_sampled_edges", "note"]


@pytest.fixture(scope="module")
def data() -> Data:
    generator = torch.Generator().manual_seed(0)
    nodes, edges = 500, 4000
    return Data(
        x=torch.randn(nodes, 7, generator=generator),
        edge_index=torch.randint(0, nodes, (2, edges), generator=generator),
        edge_attr=torch.randn(edges, 3, generator=generator),
        edge_time=torch.arange(edges),
        y=torch.randint(0, 5, (nodes,), generator=generator),
        mask=torch.rand(nodes, generator=generator) < 0.3,
        extra=np.arange(nodes * 2).reshape(nodes, 2),
        note="kept as it is",
    )


@pytest.mark.parametrize("given", ["indices", "mask", "all"])
@pytest.mark.parametrize("replace", [False, True])
def test_fields_are_those_of_pygs_loader_for_the_same_sample(data, given, replace):
    nodes = {"indices": torch.tensor([4, 17, 250, 3, 99]), "mask": data.mask, "all": None}[given]
    theirs = NodeLoader(data, PygSampler(data, [4, 3], seed=5, replace=replace), input_nodes=nodes, batch_size=32)
    ours = NeighborLoader(data, [4, 3], input_nodes=nodes, batch_size=32, seed=5, replace=replace)
    assert len(ours) == len(theirs)
    count = len(ours.seeds.nodes)
    for index, batch in enumerate(theirs):
        positions = torch.arange(index * 32, min((index + 1) * 32, count))
        number = zlib.crc32(ours.seeds.nodes[positions].numpy().data)  # the number the adapter gives this batch
        assert_same_fields(ours(positions, batch=number), batch)
        assert all(field in batch for field in NODE_FIELDS + EDGE_FIELDS + BATCH_FIELDS)


def test_data_without_features_labels_or_attributes(data):
    bare = Data(edge_index=data.edge_index, num_nodes=500)
    theirs = NodeLoader(bare, PygSampler(bare, [3]), input_nodes=torch.arange(8), batch_size=8)
    number = zlib.crc32(torch.arange(8).numpy().data)
    assert_same_fields(NeighborLoader(bare, [3], torch.arange(8), batch_size=8)(range(8), batch=number), next(iter(theirs)))


def test_batches_are_the_subgraph_they_say(data):
    for batch in NeighborLoader(data, [4, 3], input_nodes=data.mask, batch_size=16, shuffle=True):
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert torch.equal(batch.n_id[: batch.batch_size], batch.input_id)
        assert sum(batch.num_sampled_nodes) == len(batch.n_id)
        assert sum(batch.num_sampled_edges) == len(batch.e_id)
        assert len(set(batch.e_id.tolist())) == len(batch.e_id)


def test_all_neighbors_are_the_neighborhood_by_brute_force(data):
    batch = next(iter(NeighborLoader(data, [-1, -1], input_nodes=torch.tensor([1, 2, 3]), batch_size=3)))
    found, frontier, edges = {1, 2, 3}, {1, 2, 3}, set()
    for _ in range(2):
        drawn = [e for e in range(data.num_edges) if int(data.edge_index[1, e]) in frontier]
        edges |= set(drawn)
        new = {int(data.edge_index[0, e]) for e in drawn} - found
        found, frontier = found | new, new
    assert set(batch.n_id.tolist()) == found
    assert set(batch.e_id.tolist()) == edges


def test_transforms_see_what_pyg_shows_them(data):
    def loader(**transforms):
        return NeighborLoader(data, [3], input_nodes=torch.arange(10), batch_size=5, **transforms)

    assert_transforms_are_called(loader, lambda batch: batch, output="SamplerOutput")


def test_trim_to_layer_takes_the_hops_as_pyg_orders_them(data):
    from torch_geometric.utils import trim_to_layer

    batch = next(iter(NeighborLoader(data, [4, 3], input_nodes=torch.arange(10), batch_size=10)))
    x, edge_index = batch.x, batch.edge_index
    for layer in range(2):
        x, edge_index, _ = trim_to_layer(layer, batch.num_sampled_nodes, batch.num_sampled_edges, x, edge_index)
        assert int(edge_index.max()) < len(x)
    assert int(edge_index[1].max()) < 10


def test_a_dataset_batch_turns_into_the_same_data():
    dataset = hr.generate.community(nodes=400, edges=4000, classes=3, features=6)
    pyg = Data(x=dataset.x, y=dataset.y, edge_index=dataset.graph.edge_index())
    options = {"input_nodes": torch.arange(50), "batch_size": 20, "seed": 2}
    for ours, theirs in zip(
        NeighborLoader(dataset, [4, 3], edge_ids=True, **options), NeighborLoader(pyg, [4, 3], **options), strict=True
    ):
        converted = ours.to_pyg()
        for field in ("x", "y", "edge_index", "n_id", "e_id", "input_id"):
            assert torch.equal(converted[field], theirs[field]), field
        for field in ("batch_size", "num_sampled_nodes", "num_sampled_edges", "num_nodes"):
            assert getattr(converted, field) == getattr(theirs, field), field


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_adj_t_works_as_well(data):
    adjacency, order = by_adjacency(data.edge_index, torch.arange(4000.0), 500)
    with_adjacency = Data(x=data.x, adj_t=adjacency)
    batch = next(iter(NeighborLoader(with_adjacency, [-1], input_nodes=torch.arange(20), batch_size=20)))
    assert torch.equal(batch.x, data.x[batch.n_id])
    wanted = data.edge_index[:, order][:, batch.e_id]
    assert torch.equal(torch.stack([batch.n_id[batch.adj_t.col_indices()], wanted[1]]), wanted)
    assert torch.equal(batch.adj_t.values(), batch.e_id.float())


def test_the_adapter_serves_pygs_link_loader(data):
    loader = LinkNeighborLoader(
        data,
        num_neighbors=[3],
        edge_label_index=data.edge_index[:, :64],
        batch_size=16,
        neg_sampling_ratio=1.0,
        neighbor_sampler=PygSampler(data, [3]),
    )
    for batch in loader:
        assert batch.edge_label.numel() == 32
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


def test_the_adapter_draws_by_seed_epoch_and_seeds(data):
    def nodes(seed, epoch):
        sampler = PygSampler(data, [2, 2], seed=seed)
        sampler.epoch = epoch
        return [b.n_id.tolist() for b in NodeLoader(data, sampler, input_nodes=torch.arange(64), batch_size=16)]

    assert nodes(1, 0) == nodes(1, 0)
    assert nodes(1, 0) != nodes(2, 0)
    assert nodes(1, 0) != nodes(1, 1)


@pytest.mark.skipif(
    not (pyg_typing.WITH_PYG_LIB or pyg_typing.WITH_TORCH_SPARSE), reason="PyG's own sampler needs pyg-lib or torch-sparse"
)
class TestAgainstPygsSampler:
    def test_all_neighbors_give_identical_sets(self, data):
        options = {"input_nodes": data.mask, "batch_size": 32}
        for ours, theirs in zip(NeighborLoader(data, [-1, -1], **options), PygLoader(data, [-1, -1], **options), strict=True):
            assert set(ours.keys()) == set(theirs.keys())
            assert torch.equal(ours.n_id[: ours.batch_size], theirs.n_id[: theirs.batch_size])
            assert set(ours.n_id.tolist()) == set(theirs.n_id.tolist())
            assert set(ours.e_id.tolist()) == set(theirs.e_id.tolist())
            assert ours.num_sampled_nodes == theirs.num_sampled_nodes
            assert ours.num_sampled_edges == theirs.num_sampled_edges
            assert torch.equal(ours.input_id, theirs.input_id)
            assert ours.batch_size == theirs.batch_size

    def test_sampled_sizes_are_alike(self, data):
        options = {"input_nodes": None, "batch_size": 100}
        ours = [b.num_sampled_edges for b in NeighborLoader(data, [4, 2], **options)]
        theirs = [b.num_sampled_edges for b in PygLoader(data, [4, 2], **options)]
        assert [e[0] for e in ours] == [e[0] for e in theirs]


def test_memory_is_kept_while_batches_of_pyg_are_read_and_not_longer() -> None:
    from headrace.store import heap

    data = Data(x=torch.randn(50, 4), edge_index=torch.randint(0, 50, (2, 200)))
    before = heap._holders
    for _ in NeighborLoader(data, [2], batch_size=10):
        assert heap._holders == before + 1
    assert heap._holders == before
    batches = iter(NeighborLoader(data, [2], batch_size=10))
    next(batches)
    assert heap._holders == before + 1
    del batches  # not read to its end
    assert heap._holders == before
