"""The order of map and sum: what is chosen, what is told, and that a symmetric graph is its own transpose."""

import pytest
import torch
from torch import nn

import headrace as hr
from headrace.nn import GCNConv, GINConv, SAGEConv, keeping_pays, step_cost, transform_first
from headrace.nn.convs import gcn, gin, sage
from headrace.nn.order import entries_of

NODES, IN = 50, 12
MAKE = {
    "sage": lambda out, **how: SAGEConv(IN, out, **how),
    "gcn": lambda out, **how: GCNConv(IN, out, **how),
    "gcn improved": lambda out, **how: GCNConv(IN, out, improved=True, **how),
    "gcn without loops": lambda out, **how: GCNConv(IN, out, add_self_loops=False, **how),
    "gin": lambda out, **how: GINConv(nn.Sequential(nn.Linear(IN, out), nn.ReLU(), nn.Linear(out, 3)), train_eps=True, **how),
}
every = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())


def graph_of(symmetric, weighted=False):
    draw = torch.Generator().manual_seed(0)
    source, target = torch.randint(0, NODES - 2, (2, 300), generator=draw)  # loops, multi-edges, isolated last nodes
    weight = torch.rand(300, generator=draw) if weighted else None
    return hr.Graph.from_edges(source, target, NODES, undirected=symmetric, weight=weight)


def results(layer, x, graph):
    x = x.clone().requires_grad_()
    layer.zero_grad()
    out = layer(x, graph)
    out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype))
    return [out.detach(), x.grad, *[parameter.grad for parameter in layer.parameters()]]


@every
@pytest.mark.parametrize("out", [5, 30])
def test_a_layer_does_what_it_is_told(make, out, widths):
    graph, x = graph_of(symmetric=False), torch.randn(NODES, IN)
    torch.manual_seed(3)
    first = make(out, order="transform")
    found = [results(first, x, graph)]
    for order in ("aggregate", "auto"):
        layer = make(out, order=order)
        layer.load_state_dict(first.state_dict())
        found.append(results(layer, x, graph))
    assert widths == [out, IN, min(out, IN)]
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_another_order_is_refused():
    for make in MAKE.values():
        with pytest.raises(ValueError, match="order must be one of auto, aggregate, transform, not 'sum'"):
            make(4, order="sum")


def test_a_first_layer_sums_up_to_twice_the_width(widths):
    """Its input wants no gradient: a sum that comes first runs only forward."""
    graph = graph_of(symmetric=False)
    for wide, narrow, expected in ((20, 11, 20), (20, 9, 9), (20, 20, 20)):
        layer, x = GCNConv(wide, narrow), torch.randn(NODES, wide)
        layer(x, graph)
        assert widths.pop() == expected
        with torch.no_grad():
            layer(x, graph)
        assert widths.pop() == min(wide, narrow)
        layer(x.requires_grad_(), graph)
        assert widths.pop() == min(wide, narrow)


def test_costs_are_those_of_sums_and_products():
    graph = graph_of(symmetric=False)
    assert entries_of(graph) == 300
    assert entries_of(graph.rows(3, 9)) == int(graph.indptr[9] - graph.indptr[3])
    assert step_cost(graph, 10, 4, "aggregate", "none") == NODES * 40 + 20 * 300 * 10
    assert step_cost(graph, 10, 4, "aggregate", "weights") == 2 * NODES * 40 + 20 * 300 * 10
    assert step_cost(graph, 10, 4, "transform", "weights") == 2 * NODES * 40 + 2 * 20 * 300 * 4
    assert step_cost(graph, 10, 4, "transform", "all") == 3 * NODES * 40 + 2 * 20 * 300 * 4
    assert transform_first(graph, 10, 40, order="transform")
    assert not transform_first(graph, 40, 10, order="aggregate")


def test_sums_are_worth_keeping_after_so_many_uses():
    graph = graph_of(symmetric=False)
    assert not keeping_pays(graph, 100, 100, uses=1)  # it is the same
    assert keeping_pays(graph, 100, 100, uses=2)
    assert not keeping_pays(graph, 100, 10, uses=5)  # two sums over 10 columns, five times
    assert keeping_pays(graph, 100, 10, uses=6)
    assert keeping_pays(graph, 100, 10, uses=2, order="aggregate")
    assert not keeping_pays(graph, 100, 10, uses=10**6, adds_own=True)  # rows of six entries: to add one's own costs as much
    assert keeping_pays(graph, 100, 60, uses=20, adds_own=True)


# ---- symmetric graphs


@every
@pytest.mark.parametrize("out", [5, 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_symmetric_graph_is_its_own_transpose(make, out, dtype, monkeypatch):
    graph, x = graph_of(symmetric=True), torch.randn(NODES, IN, dtype=dtype)
    layer = make(out).to(dtype)
    found = results(layer, x, graph)
    assert "reverse" not in graph._derived
    truth = graph_of(symmetric=True)
    monkeypatch.setattr(hr.Graph, "is_symmetric", lambda self: False)
    expected = results(layer, x, truth)
    assert "reverse" in truth._derived
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_only_symmetric_graphs_without_weights_are():
    x = torch.randn(NODES, IN)
    for graph in (graph_of(symmetric=False), graph_of(symmetric=True, weighted=True)):
        results(GCNConv(IN, 5), x, graph)
        assert "reverse" in graph._derived
    maximum = graph_of(symmetric=True)
    results(SAGEConv(IN, 5, aggr="max"), x, maximum)
    assert "reverse" in maximum._derived


@pytest.mark.parametrize("loop", [0.0, 1.0, 2.0])
def test_folded_norms_are_those_of_weights_of_one(loop):
    graph, x = graph_of(symmetric=False), torch.randn(NODES, IN, dtype=torch.float64)
    ones = graph.with_weight(torch.ones(graph.num_edges, dtype=torch.float64))
    layer = GCNConv(IN, 5, improved=loop == 2, add_self_loops=loop > 0).double()
    if loop == 2:  # a loop that is there keeps its weight, which without weights is that of those that are added
        target = torch.repeat_interleave(torch.arange(NODES), graph.degrees())
        ones = ones.with_weight(torch.where(graph.indices == target, 2.0, 1.0).double())
    for a, b in zip(results(layer, x, graph), results(layer, x, ones), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    norms = [kept for name, kept in graph._derived.items() if name.startswith("gcn norm")]
    assert norms
    assert all(norm.weight is None and norm.scale.shape == (NODES,) for norm in norms)  # nothing per edge


@pytest.mark.parametrize("kind", ["sage", "gcn", "gin"])
def test_under_autocast_activations_are_summed_in_its_type(kind, monkeypatch):
    """They stay in the type of the products, so that sums move half the bytes."""
    module = {"sage": sage, "gcn": gcn, "gin": gin}[kind]
    seen, plain = [], module.aggregate
    monkeypatch.setattr(module, "aggregate", lambda x, *a, **k: (seen.append(x.dtype), plain(x, *a, **k))[1])
    data = hr.Dataset(graph_of(symmetric=True), x=torch.randn(NODES, 40))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hr.nn.GNN(40, 8, 5, layers=3, conv=kind)(hr.loader.WholeBatch(data, 3))
    assert seen == [torch.bfloat16] * 3
