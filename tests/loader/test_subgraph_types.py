"""Subgraph types of PyG: the edges of a batch against those that PyG, or a search through all edges, finds."""

import pytest
import torch

from headrace.loader import LinkNeighborLoader, NeighborLoader

pytest.importorskip("torch_geometric", reason="needs torch-geometric")
from test_hetero_loader import make_data
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, is_undirected


@pytest.fixture(scope="module")
def data():
    torch.manual_seed(5)
    edge_index = torch.randint(0, 60, (2, 400))
    return Data(x=torch.randn(60, 3), edge_index=edge_index, weight=torch.arange(400.0), num_nodes=60)


def between(edge_index, sources, targets):
    """Ids of the edges whose ends are among the nodes."""
    return (torch.isin(edge_index[0], sources) & torch.isin(edge_index[1], targets)).nonzero().flatten()


def test_induced_has_all_edges_between_the_nodes(data):
    directional = NeighborLoader(data, [3, 2], batch_size=7, seed=4)
    for batch, plain in zip(NeighborLoader(data, [3, 2], batch_size=7, seed=4, subgraph_type="induced"), directional, strict=True):
        assert torch.equal(batch.n_id, plain.n_id)
        assert batch.e_id.sort()[0].tolist() == between(data.edge_index, batch.n_id, batch.n_id).tolist()
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.weight, data.weight[batch.e_id])
        assert bool((batch.edge_index[1].diff() >= 0).all())
        assert "num_sampled_edges" not in batch
    old = next(iter(NeighborLoader(data, [3, 2], batch_size=7, seed=4, directed=False)))
    assert torch.equal(old.e_id, next(iter(NeighborLoader(data, [3, 2], batch_size=7, seed=4, subgraph_type="induced"))).e_id)


def test_bidirectional_has_the_reverse_of_every_edge(data):
    directional = NeighborLoader(data, [3, 2], batch_size=7, seed=4)
    for batch, plain in zip(
        NeighborLoader(data, [3, 2], batch_size=7, seed=4, subgraph_type="bidirectional"), directional, strict=True
    ):
        assert torch.equal(batch.n_id, plain.n_id)
        assert is_undirected(batch.edge_index)
        both = torch.cat([plain.edge_index, plain.edge_index.flip(0)], dim=1)
        assert torch.equal(batch.edge_index, coalesce(both, sort_by_row=False))


def test_links_have_them_too(data):
    edges = data.edge_index[:, :20]
    batch = next(iter(LinkNeighborLoader(data, [2], edges, batch_size=20, subgraph_type="induced")))
    assert batch.e_id.sort()[0].tolist() == between(data.edge_index, batch.n_id, batch.n_id).tolist()
    batch = next(iter(LinkNeighborLoader(data, [2], edges, batch_size=20, subgraph_type="bidirectional")))
    assert is_undirected(batch.edge_index)


def test_types_have_them_too():
    data = make_data()
    batch = next(iter(NeighborLoader(data, [3, 2], "paper", batch_size=9, subgraph_type="induced")))
    for edge_type in data.edge_types:
        store, (source, _, target) = batch[edge_type], edge_type
        if "edge_index" not in data[edge_type]:
            continue
        expected = between(data[edge_type].edge_index, batch[source].n_id, batch[target].n_id)
        assert store.e_id.sort()[0].tolist() == expected.tolist()
        ends = torch.stack([batch[source].n_id[store.edge_index[0]], batch[target].n_id[store.edge_index[1]]])
        assert torch.equal(ends, data[edge_type].edge_index[:, store.e_id])
    batch = next(iter(NeighborLoader(data, [3, 2], "paper", batch_size=9, subgraph_type="bidirectional")))
    cites = batch["paper", "cites", "paper"]
    assert is_undirected(cites.edge_index)
    assert "e_id" not in cites


def test_data_without_edges_gives_the_seeds():
    batch = next(iter(NeighborLoader(Data(x=torch.arange(9.0)), [], [4, 2], batch_size=2)))
    assert batch.x.tolist() == [4, 2]
    assert (batch.num_sampled_nodes, batch.num_sampled_edges) == ([2], [])
    batch = next(iter(NeighborLoader(Data(num_nodes=9), [3, 3], [4, 2], batch_size=2)))
    assert (batch.num_sampled_nodes, batch.num_sampled_edges) == ([2, 0, 0], [0, 0])
    with pytest.raises(ValueError, match="nothing to sample from"):
        NeighborLoader(Data(), [3])
