"""One draw a node, shared by all layers (DENSE, MariusGNN): `NeighborSampler` and its blocks against plain networks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.nn import GNN
from headrace.sample import NeighborSampler


def random_graph(nodes, edges, seed):
    ends = torch.randint(0, nodes, (2, edges), generator=torch.Generator().manual_seed(seed))
    return hr.Graph.from_edges(*ends, nodes, undirected=True)


def drawn_of(sample):
    """The neighbors that were drawn for each node that has been expanded."""
    nodes, begin, places = sample.nodes.tolist(), sample.indptr.tolist(), sample.indices.tolist()
    return {nodes[i]: [nodes[at] for at in places[begin[i] : begin[i + 1]]] for i in range(len(begin) - 1)}


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    nodes=st.integers(1, 60),
    edges=st.integers(0, 200),
    fanouts=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    seeds=st.integers(0, 12),
    kind=st.sampled_from([torch.int32, torch.int64]),
)
def test_each_node_is_drawn_for_once_and_blocks_are_prefixes(nodes, edges, fanouts, seeds, kind):
    graph = random_graph(nodes, edges, seeds)
    targets = torch.randperm(nodes, generator=torch.Generator().manual_seed(seeds))[:seeds].to(kind)
    sample = NeighborSampler(graph, fanouts, seed=3).sample(targets, epoch=1, batch=2)
    counts, rows = sample.num_sampled_nodes, sample.indptr.numel() - 1
    assert sample.nodes.unique().numel() == sample.nodes.numel() == sum(counts)
    assert rows == sum(counts[: len(fanouts)])  # all but the last hop's nodes are expanded, each once
    assert sample.nodes[: len(targets)].tolist() == targets.tolist()
    drawn, known = drawn_of(sample), targets.tolist()
    for hop, fanout in enumerate(fanouts):
        begin = sum(counts[:hop])
        found = []
        for node in sample.nodes[begin : begin + counts[hop]].tolist():
            neighbors = graph.neighbors(node).tolist()
            assert len(drawn[node]) == min(fanout, len(neighbors))
            assert not set(drawn[node]) - set(neighbors)
            found += drawn[node]
        known = list(dict.fromkeys(known + found))
        assert sample.nodes[: len(known)].tolist() == known  # new ones in the order of their first appearance
    for block in sample.blocks:
        assert block.indptr.data_ptr() == sample.indptr.data_ptr()
        assert block.num_edges == 0 or block.indices.data_ptr() == sample.indices.data_ptr()
        assert block.num_edges == 0 or int(block.indices.max()) < block.num_src


class Given:
    """What a model is given."""

    table = None

    def __init__(self, sample, x, graph):
        self.blocks, self.x, self.n_id = sample.blocks, x, sample.nodes
        self.degree = graph.degrees(loops=False)[sample.nodes.long()]


@pytest.mark.parametrize("conv", ["sage", "gcn", "gin", "gat"])
@pytest.mark.parametrize("width", [1, 47])
def test_layers_over_blocks_equal_layers_over_one_draw_a_node(conv, width):
    """All layers of the plain network see the same neighbors: every layer runs over one graph of the drawn edges."""
    torch.manual_seed(0)
    graph = random_graph(40, 60, 1)
    sample = NeighborSampler(graph, [3, 2], seed=5).sample(torch.tensor([7, 0, 39, 12]))
    model = GNN(width, 8, 5, layers=2, conv=conv, dropout=0.0, heads=2).double().eval()
    x = torch.randn(len(sample.nodes), width, dtype=torch.float64, requires_grad=True)
    found = model(Given(sample, x, graph))
    edges = sample.edge_index()
    plain = hr.Graph.from_edges(edges[0], edges[1], len(sample.nodes))
    if conv == "gcn":  # where degrees are known a drawn neighbor stands for several: not what a graph of its own would say
        again = [hr.sample.Block(plain.indptr, plain.indices, len(sample.nodes)) for _ in range(2)]
        rows = x
        for layer, block in zip(model.layers, again, strict=True):
            block = hr.sample.Block(block.indptr, block.indices, block.num_src, graph.degrees(loops=False)[sample.nodes.long()])
            rows = layer(rows, block)
    else:
        rows = x
        for layer in model.layers:
            rows = layer(rows, plain)
    wanted = rows[: sample.num_seeds]
    torch.testing.assert_close(found, wanted)
    weight = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad((out * weight).sum(), [x, *model.parameters()]) for out in (found, wanted))
    torch.testing.assert_close(ours, theirs)


def test_a_mean_over_draws_by_hand():
    graph = random_graph(30, 80, 2)
    sample = NeighborSampler(graph, [4, 4], seed=1).sample(torch.tensor([3, 4]))
    drawn, x = drawn_of(sample), torch.randn(30, 6, dtype=torch.float64)
    model = GNN(6, 6, 6, layers=2, conv="sage", dropout=0.0).double()

    def row(node, depth):
        if depth == 0:
            return x[node]
        conv = model.layers[depth - 1].conv
        around = [row(n, depth - 1) for n in drawn[node]]
        mean = torch.stack(around).mean(0) if around else torch.zeros(6, dtype=torch.float64)
        out = conv.lin_l(mean) + conv.lin_r(row(node, depth - 1))
        return out.relu() if depth == 1 else out

    found = model(Given(sample, x[sample.nodes.long()], graph))
    torch.testing.assert_close(found, torch.stack([row(3, 2), row(4, 2)]))


def test_draws_do_not_depend_on_threads_and_isolated_nodes_have_none():
    graph = hr.Graph.from_edges([0, 1, 2, 3] * 50, [1, 2, 3, 0] * 50, 6, undirected=True)
    samples = [NeighborSampler(graph, [5, 5], threads=k).sample(torch.tensor([5, 1, 4]), epoch=2, batch=9) for k in (1, 4)]
    for name in ("nodes", "indptr", "indices"):
        assert torch.equal(*(getattr(sample, name) for sample in samples))
    assert samples[0].indptr.tolist()[:2] == [0, 0]
    nothing = NeighborSampler(graph, [5, 5]).sample(torch.tensor([], dtype=torch.int64))
    assert nothing.num_sampled_nodes == (0, 0, 0)
    model = GNN(3, 4, 2, layers=2, dropout=0.0)
    assert model(Given(nothing, torch.zeros(0, 3), graph)).shape == (0, 2)
