"""Pairs (FeatureStore, GraphStore): batches equal those of the data they hold."""

import pytest
import torch

from headrace.loader import LinkNeighborLoader, NeighborLoader
from headrace.store import ArrayStore

pytest.importorskip("torch_geometric", reason="needs torch-geometric")
from torch_geometric.data import Data, HeteroData
from torch_geometric.testing import MyFeatureStore, MyGraphStore

EDGES = {("a", "to", "b"): (20, 30), ("b", "to", "a"): (30, 20)}


@pytest.fixture(scope="module")
def typed():
    data, features, graph = HeteroData(), MyFeatureStore(), MyGraphStore()
    draw = torch.Generator().manual_seed(0)
    for kind, count in (("a", 20), ("b", 30)):
        data[kind].x, data[kind].time = torch.randn(count, 4, generator=draw), torch.arange(count)
        for name in ("x", "time"):
            features.put_tensor(data[kind][name], group_name=kind, attr_name=name, index=None)
    for edge_type, size in EDGES.items():
        src, dst = (torch.randint(0, n, (200,), generator=draw) for n in size)
        data[edge_type].edge_index = torch.stack([src, dst])
        graph.put_edge_index((src, dst), edge_type=edge_type, layout="coo", size=size)
    return data, (features, graph)


@pytest.mark.parametrize("options", [{}, {"time_attr": "time"}, {"subgraph_type": "induced"}], ids=["plain", "time", "induced"])
def test_typed_pairs_give_the_batches_of_the_data(typed, options):
    data, pair = typed
    expected = NeighborLoader(data, [3, 2], "a", batch_size=8, seed=1, **options)
    batches = NeighborLoader(pair, [3, 2], "a", batch_size=8, seed=1, **options)
    for batch, other in zip(batches, expected, strict=True):
        for kind in data.node_types:
            assert torch.equal(batch[kind].n_id, other[kind].n_id)
            assert torch.equal(batch[kind].x, other[kind].x)
        for edge_type in data.edge_types:
            assert torch.equal(batch[edge_type].edge_index, other[edge_type].edge_index)
            assert torch.equal(batch[edge_type].e_id, other[edge_type].e_id)
        assert batch["a"].batch_size == other["a"].batch_size


def test_links_of_pairs_are_those_of_the_data(typed):
    data, pair = typed
    options = {"edge_label_index": ("a", "to", "b"), "neg_sampling": "binary", "batch_size": 50, "seed": 2}
    for batch, other in zip(LinkNeighborLoader(pair, [3], **options), LinkNeighborLoader(data, [3], **options), strict=True):
        assert torch.equal(batch["a", "b"].edge_label_index, other["a", "b"].edge_label_index)
        assert torch.equal(batch["b"].x, other["b"].x)


def test_pairs_without_types_and_a_class_of_ones_own():
    class Own(Data):
        pass

    features, graph, edge_index = MyFeatureStore(), MyGraphStore(), torch.randint(0, 40, (2, 300))
    features.put_tensor(torch.arange(40), group_name=None, attr_name="x", index=None)
    graph.put_edge_index((edge_index[0], edge_index[1]), edge_type=None, layout="coo", size=(40, 40))
    data = Data(x=torch.arange(40), edge_index=edge_index)
    loader = NeighborLoader((features, graph), [3, 2], torch.arange(10), batch_size=5, seed=3, custom_cls=Own)
    for batch, other in zip(loader, NeighborLoader(data, [3, 2], torch.arange(10), batch_size=5, seed=3), strict=True):
        assert type(batch) is Own
        assert torch.equal(batch.x, other.x)
        assert torch.equal(batch.edge_index, other.edge_index)
        assert batch.num_nodes == other.num_nodes
    with pytest.raises(ValueError, match="rows of a pair come from its FeatureStore"):
        NeighborLoader((features, graph), [3], torch.arange(10), rows=ArrayStore(torch.zeros(40, 2)))
