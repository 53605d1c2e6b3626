"""`GNN`: a stack of layers on sampled batches and on a whole graph, with and without a copy of the features."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import headrace as hr
from headrace.loader import NeighborLoader, WholeBatch
from headrace.nn import GNN, GATConv, GCNConv, GINConv, SAGEConv
from headrace.nn.gnn import KINDS

pytestmark = pytest.mark.usefixtures("one_thread")
FEATURES, HIDDEN, CLASSES = 12, 16, 4
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def data():
    made = hr.generate.community(300, 3_000, classes=CLASSES, features=FEATURES, seed=1)
    edges = torch.cat([made.graph.edge_index(), torch.arange(20).expand(2, -1), torch.arange(10).expand(2, -1)], 1)  # loops
    return hr.Dataset(hr.Graph.from_edges(*edges, 300), made.x, made.y, made.splits)


def model_of(kind, **options):
    torch.manual_seed(0)
    return GNN(FEATURES, HIDDEN, CLASSES, **{"layers": 2, "conv": kind, "heads": 4} | options)


def batch_of(data, fanouts=(4, 3), **options):
    return next(iter(NeighborLoader(data, list(fanouts), torch.arange(40, 70), batch_size=30, staleness=0, **options)))


def trained(model, batch):
    """The result and all gradients of one step, with one torch seed."""
    torch.manual_seed(7)
    model.zero_grad()
    out = model(batch)
    out.square().mean().backward()
    return [out.detach(), *[parameter.grad.clone() for parameter in model.parameters()]]


def assert_close(ours, truth, tolerance=1e-5):
    for a, b in zip(ours, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# ---- results


@every_kind
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_batch_gives_a_row_per_seed(data, kind, layers):
    model = model_of(kind, layers=layers)
    found = trained(model, batch_of(data, [4] * layers))
    assert found[0].shape == (30, CLASSES)
    assert all(value.isfinite().all() for value in found)
    assert all(value.abs().sum() > 0 for value in found if value.dim() == 2)


@every_kind
def test_a_whole_graph_gives_a_row_per_node(data, kind):
    model = model_of(kind)
    found = trained(model, WholeBatch(data, 2))
    assert found[0].shape == (300, CLASSES)
    assert all(value.isfinite().all() for value in found)


@every_kind
@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
@pytest.mark.parametrize("residual", [False, True])
def test_all_neighbors_give_the_rows_of_the_whole_graph(data, kind, norm, residual):
    model = model_of(kind, norm=norm, residual=residual)
    trained(model, batch_of(data))  # gives a batch norm its statistics
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(batch_of(data, (-1, -1))), model(WholeBatch(data, 2))[40:70], rtol=1e-4, atol=1e-5)


@every_kind
def test_layers_one_by_one_on_rows_give_the_whole(data, kind):
    """As inference runs them, a range of rows at a time."""
    model = model_of(kind, residual=True, norm="layer").eval()
    with torch.no_grad():
        x = data.x
        for layer in model.layers:
            x = torch.cat([layer(x, data.graph.rows(begin, end)) for begin, end in ((0, 110), (110, 111), (111, 300))])
        torch.testing.assert_close(x, model(WholeBatch(data, 2)), rtol=1e-4, atol=1e-5)


def test_a_layer_is_conv_norm_own_row_and_activation(data):
    model = model_of("sage", norm="layer", residual=True).eval()
    batch = batch_of(data)
    first, second = model.layers
    outer, inner = reversed(batch.blocks)
    with torch.no_grad():
        x = batch.x
        x = F.relu(first.norm(first.conv(x, outer)) + first.skip(x[: outer.num_dst]))
        assert torch.equal(model(batch), second.conv(x, inner))
    assert second.norm is None
    assert second.skip is None


def test_a_residual_of_equal_widths_is_the_row_itself():
    model = GNN(HIDDEN, HIDDEN, CLASSES, layers=3, residual=True)
    assert isinstance(model.layers[0].skip, nn.Identity)
    assert isinstance(model.layers[1].skip, nn.Identity)
    model = GNN(FEATURES, HIDDEN, CLASSES, layers=3, residual=True)
    assert model.layers[0].skip.weight.shape == (HIDDEN, FEATURES)


@pytest.mark.parametrize(
    ("kind", "conv", "width"), [("sage", SAGEConv, 16), ("gcn", GCNConv, 16), ("gin", GINConv, 16), ("gat", GATConv, 4)]
)
def test_a_kind_is_its_layers(kind, conv, width):
    model = model_of(kind, layers=3)
    assert [type(layer.conv) for layer in model.layers] == [conv] * 3
    if conv is GATConv:
        assert [layer.conv.heads for layer in model.layers] == [4, 4, 1]
        assert [layer.conv.v2 for layer in model_of("gatv2").layers] == [True] * 2
    if conv is not GINConv:
        assert [layer.conv.out_channels for layer in model.layers] == [width, width, CLASSES]


@every_kind
def test_training_learns(data, kind):
    model = model_of(kind, dropout=0.1)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    loader = NeighborLoader(data, [5, 5], torch.arange(300), batch_size=100, shuffle=True, staleness=0)
    losses = []
    for _ in range(8):
        for batch in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch), batch.y.long())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])


@every_kind
def test_autocast_trains(data, kind):
    model = model_of(kind)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = trained(model, batch_of(data))
    assert all(value.isfinite().all() for value in found)
    model.eval()
    with torch.no_grad():
        truth = model(batch_of(data))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(batch_of(data))
    assert F.cosine_similarity(out.float().flatten(), truth.flatten(), dim=0) > 0.99


@every_kind
def test_a_state_dict_goes_into_another_model(data, kind):
    first, second = model_of(kind, norm="batch", residual=True), model_of(kind, norm="batch", residual=True)
    trained(first, batch_of(data))
    second.load_state_dict(first.state_dict(), strict=True)
    batch = batch_of(data)
    assert torch.equal(first.eval()(batch), second.eval()(batch))


# ---- features read in place


def gathered(batch):
    """The batch with its features copied: it offers no table any more."""
    assert batch.table is not None
    assert batch.x is not None
    assert batch.table is None
    return batch


@every_kind
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("options", [{}, {"residual": True, "norm": "layer"}, {"input_dropout": 0.0}, {"input_dropout": 0.3}])
def test_features_in_place_equal_gathered_ones(data, kind, training, options):
    model = model_of(kind, **options).train(training)
    in_place = trained(model, batch_of(data))
    assert_close(in_place, trained(model, gathered(batch_of(data))))


def test_features_are_read_in_place_where_that_can_be(data):
    """By layers that sum, without dropout of the input."""
    read = {kind: (model_of(kind).train().reads_table, model_of(kind).eval().reads_table) for kind in KINDS}
    assert read == {
        "sage": (True, True),
        "gin": (True, True),
        "gcn": (False, True),
        "gat": (False, False),
        "gatv2": (False, False),
    }
    assert model_of("gcn", input_dropout=0.0).reads_table
    batch = batch_of(data)
    model_of("sage")(batch)
    assert "x" not in batch.__dict__
    model_of("gat")(batch)
    assert "x" in batch.__dict__


# ---- dropout


@pytest.mark.parametrize(("kind", "rate"), [("sage", 0.0), ("gin", 0.0), ("gcn", 0.3), ("gat", 0.3), ("gatv2", 0.3)])
def test_input_dropout_is_that_of_the_paper_unless_given(kind, rate):
    model = model_of(kind, dropout=0.3, layers=3)
    assert [layer.before for layer in model.layers] == [rate, 0, 0]
    assert [layer.after for layer in model.layers] == [0.3, 0.3, 0]
    assert model_of(kind, dropout=0.3, input_dropout=0.0).layers[0].before == 0
    assert model_of(kind, dropout=0.3, input_dropout=0.6).layers[0].before == 0.6


@every_kind
def test_dropout_is_of_training_alone_and_follows_torchs_seed(data, kind):
    batch = batch_of(data)
    model = model_of(kind)
    first, again = trained(model, batch), trained(model, batch)
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b)
    torch.manual_seed(8)
    assert not torch.equal(model(batch), first[0])
    model.eval()
    assert torch.equal(model(batch), model(batch))
    silent = model_of(kind, dropout=0.0)
    silent.load_state_dict(model.state_dict())
    assert torch.allclose(silent.eval()(batch), model(batch), atol=1e-6)


def test_attention_drops_its_coefficients_too(data):
    assert [layer.conv.dropout for layer in model_of("gat", dropout=0.3).layers] == [0.3, 0.3]


def test_the_input_is_dropped_at_its_rate(data):
    model = model_of("sage", input_dropout=0.5, dropout=0.0)
    seen = []
    model.layers[0].conv.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    batch = batch_of(data)
    model(batch)
    share = ((seen[0] == 0) & (batch.x != 0)).float().mean()
    assert 0.4 < share < 0.6
    model.eval()(batch)
    assert torch.equal(seen[1], batch.x)


@pytest.mark.parametrize("kind", ["sage", "gat"])
def test_the_activation_is_relu_or_elu_or_as_asked(data, kind):
    batch = WholeBatch(data, 2)
    for name, function in ((None, F.elu if kind == "gat" else F.relu), ("relu", F.relu), ("elu", F.elu), ("none", lambda x: x)):
        model = model_of(kind, activation=name).eval()
        first, second = model.layers
        wanted = second.conv(function(first.conv(data.x, data.graph)), data.graph)
        torch.testing.assert_close(model(batch), wanted)


# ---- GCN and the degrees of the whole graph


def test_gcn_on_a_batch_is_given_the_degrees_of_the_whole_graph(data):
    model, batch = model_of("gcn").eval(), batch_of(data)
    x = batch.x
    for layer, block in zip(model.layers, reversed(batch.blocks), strict=True):
        assert block.degree is None
        x = layer(x, dataclasses.replace(block, degree=batch.degree[: block.num_src]))
    assert torch.equal(model(batch), x)


def test_gcn_on_sampled_blocks_of_a_weighted_graph_is_refused(data):
    graph = data.graph
    weighted = hr.Dataset(hr.Graph(graph.indptr, graph.indices, weight=torch.rand(graph.num_edges) + 0.1), data.x, data.y)
    with pytest.raises(ValueError, match="sampled blocks carry no edge weights"):
        model_of("gcn")(batch_of(weighted, (-1, -1)))
    model_of("gcn")(WholeBatch(weighted, 2))  # which has them


def test_gcn_on_a_batch_that_does_not_know_its_graph_is_refused(data):
    batch = batch_of(data)
    batch.graph = None
    with pytest.raises(ValueError, match="this batch does not know its graph"):
        model_of("gcn")(batch)
    model_of("sage")(batch)  # which asks for no degrees


# ---- the norm inside GIN's network


def test_gin_has_a_batch_norm_inside_unless_told_otherwise(data):
    plain, named = trained(model_of("gin"), batch_of(data)), trained(model_of("gin", inner_norm="batch"), batch_of(data))
    assert all(torch.equal(a, b) for a, b in zip(plain, named, strict=True))
    inside = [[type(step) for step in layer.conv.nn] for layer in model_of("gin").layers]
    assert inside == [[nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]] * 2


@pytest.mark.parametrize("inner_norm", ["layer", "none"])
def test_without_batch_norms_a_row_of_gin_depends_on_its_neighbors_alone(data, inner_norm):
    model, x = model_of("gin", inner_norm=inner_norm, dropout=0.0), data.x  # in training mode, where a batch norm mixes rows
    assert not any(isinstance(module, nn.BatchNorm1d) for module in model.modules())
    for layer in model.layers:
        whole = layer(x, data.graph)
        x = torch.cat([layer(x, data.graph.rows(begin, end)) for begin, end in ((0, 110), (110, 111), (111, 300))])
        torch.testing.assert_close(x, whole, rtol=1e-4, atol=1e-5)


def test_norms_inside_gin_change_what_it_computes(data):
    rows = [trained(model_of("gin", inner_norm=norm), batch_of(data))[0] for norm in ("batch", "layer", "none")]
    assert not any(torch.allclose(a, b) for a, b in ((rows[0], rows[1]), (rows[1], rows[2]), (rows[0], rows[2])))


# ---- what is refused


@pytest.mark.parametrize("hops", [1, 3])
def test_another_number_of_hops_is_refused(data, hops):
    with pytest.raises(ValueError, match=f"the model has 2 layers, the batch has {hops} hops: give one fanout per layer"):
        model_of("sage")(batch_of(data, [3] * hops))
    with pytest.raises(ValueError, match=f"the model has 2 layers, the batch has {hops} hops"):
        model_of("sage")(WholeBatch(data, hops))


@every_kind
def test_a_batch_without_features_is_refused(data, kind):
    bare = hr.Dataset(data.graph)
    for batch in (batch_of(bare), WholeBatch(bare, 2)):
        with pytest.raises(ValueError, match="the batch has no features: give the dataset an x"):
            model_of(kind)(batch)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, "layers must be at least 1, not 0"),
        ({"conv": "gnn"}, "conv must be one of sage, gcn, gin, gat, gatv2, not 'gnn'"),
        ({"norm": "group"}, "norm must be 'none', 'batch' or 'layer', not 'group'"),
        ({"dropout": 1.0}, "dropout must be from 0 to below 1, not 1.0"),
        ({"dropout": -0.1}, "dropout must be from 0 to below 1, not -0.1"),
        ({"input_dropout": 1.5}, "input_dropout must be from 0 to below 1, not 1.5"),
        ({"conv": "gat", "heads": 3}, "hidden must be a multiple of heads, but 16 is not one of 3"),
        ({"conv": "gatv2", "heads": 0}, "hidden must be a multiple of heads, but 16 is not one of 0"),
        ({"conv": "gin", "inner_norm": "group"}, "inner_norm must be 'none', 'batch' or 'layer', not 'group'"),
        ({"conv": "sage", "inner_norm": "layer"}, "inner_norm is the norm inside the network of gin, and sage has none"),
        ({"activation": "gelu"}, "activation must be 'relu', 'elu' or 'none', not 'gelu'"),
    ],
)
def test_a_wrong_argument_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        GNN(FEATURES, HIDDEN, CLASSES, **options)


@pytest.mark.parametrize("kind", ["sage", "gcn", "gin"])
def test_heads_are_of_attention_alone(kind):
    torch.manual_seed(3)
    plain = GNN(FEATURES, HIDDEN, CLASSES, conv=kind)
    torch.manual_seed(3)
    headed = GNN(FEATURES, HIDDEN, CLASSES, conv=kind, heads=3)  # of which 16 is no multiple: attention would refuse it
    assert plain.state_dict().keys() == headed.state_dict().keys()
    for name, value in plain.state_dict().items():
        assert torch.equal(headed.state_dict()[name], value), name
