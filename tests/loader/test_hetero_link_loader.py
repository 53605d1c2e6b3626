"""Links of heterogeneous graphs: PyG's fields to the bit for the same draws, and batches of a `HeteroGraph`."""

import pytest
import torch

import headrace as hr
from headrace.loader import HeteroLinkBatch, LinkNeighborLoader
from headrace.sample import NegativeSampler

pytest.importorskip("torch_geometric", reason="needs torch-geometric")
from pyg_cases import link_loader
from test_hetero_loader import CITES, WRITES, assert_same, make_data

POSITIONS = torch.tensor([3, 17, 40, 41, 99])


@pytest.fixture(scope="module")
def data():
    return make_data()


def draws(data, edge_type, how):
    sizes = {"num_src": data[edge_type[0]].num_nodes, "num_dst": data[edge_type[2]].num_nodes}
    return NegativeSampler(how, **sizes, seed=5).sample(data[edge_type].edge_index[0, POSITIONS], 0, 11)


@pytest.mark.parametrize("edge_type", [WRITES, CITES], ids=["two types", "one type"])
@pytest.mark.parametrize("mode", [None, "binary", "triplet"])
@pytest.mark.parametrize("amount", [1, 2])
def test_fields_are_those_of_pygs_loader_for_the_same_draws(data, edge_type, mode, amount):
    how = None if mode is None else {"mode": mode, "amount": amount}
    for chosen in (edge_type, (edge_type, data[edge_type].edge_index[:, :100])):
        ours = LinkNeighborLoader(data, [4, 3], chosen, neg_sampling=how, seed=5)(POSITIONS, batch=11)
        drawn = None if how is None else draws(data, edge_type, how)
        assert_same(ours, link_loader(data, 11, how=how, negatives=drawn, edge_label_index=chosen)(POSITIONS))


def test_labels_are_handed_out(data):
    options = {"edge_label_index": WRITES, "edge_label": torch.arange(900) % 3}
    ours = LinkNeighborLoader(data, [4, 3], neg_sampling="binary", seed=5, **options)(POSITIONS, batch=11)
    how = {"mode": "binary", "amount": 1}
    assert_same(ours, link_loader(data, 11, how=how, negatives=draws(data, WRITES, how), **options)(POSITIONS))


def test_a_hetero_graph_gives_the_same_links(data):
    graph = hr.HeteroGraph.from_pyg(data)
    options = {"neg_sampling": {"mode": "triplet", "amount": 2, "filter": True, "rounds": 50}, "batch_size": 50, "seed": 1}
    loader = LinkNeighborLoader(graph, [3], (WRITES, data[WRITES].edge_index), **options)
    true = set(map(tuple, data[WRITES].edge_index.t().tolist()))
    for batch, theirs in zip(loader, LinkNeighborLoader(data, [3], WRITES, **options), strict=True):
        assert isinstance(batch, HeteroLinkBatch)
        assert batch.input_type == WRITES
        assert torch.equal(batch.dst_neg_index, theirs["paper"].dst_neg_index)
        assert torch.equal(batch.n_id["paper"], theirs["paper"].n_id)
        authors, papers = batch.seeds["author"][batch.src_index], batch.seeds["paper"][batch.dst_neg_index]
        pairs = zip(authors.repeat_interleave(2).tolist(), papers.flatten().tolist(), strict=True)
        assert not any(pair in true for pair in pairs)
    assert loader.edges_left == 0
    found = torch.cat([b.edge_label_index for b in LinkNeighborLoader(graph, [1], WRITES, batch_size=300)], dim=1)
    assert found.shape == (2, 900)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (None, "edge types"),
        (torch.zeros(2, 3, dtype=torch.int64), "edge types"),
        (("author", "reads", "paper"), "reads"),
        (("author", "place"), "place"),
        ((WRITES, torch.tensor([[80], [0]])), "sources from 80 to 80, but the graph has nodes 0 to 79"),
        ((WRITES, torch.tensor([[0], [200]])), "targets from 200"),
    ],
)
def test_edges_that_do_not_fit_are_refused(data, edges, message):
    with pytest.raises(ValueError, match=message):
        LinkNeighborLoader(data, [2], edges)


def test_two_node_types_name_the_only_edge_type_between_them(data):
    assert LinkNeighborLoader(data, [2], ("author", "paper")).edge_type == WRITES
