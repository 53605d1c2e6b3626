"""The first layer's sums of the features, made once: the same numbers, where they are used, and where not."""

import pytest
import torch
from torch import nn

import headrace as hr
from headrace.loader import WholeBatch
from headrace.nn import FirstSum, first_sum

KINDS = ("sage", "gcn", "gin")


@pytest.fixture(scope="module")
def data():
    return hr.generate.community(nodes=600, edges=9_000, classes=4, features=24, seed=2)


def model_of(kind, hidden=16, **how):
    torch.manual_seed(1)
    return hr.nn.GNN(24, hidden, 4, layers=2, conv=kind, dropout=0.0, **how)


def trained(model, batch, steps=5, autocast=False):
    """Losses, and the gradients of the last step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = nn.functional.cross_entropy(model(batch).float(), batch.y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [torch.stack(losses), *[parameter.grad for parameter in model.parameters()]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hidden", [16, 40])
@pytest.mark.parametrize("residual", [False, True])
def test_training_with_kept_sums_is_training(data, kind, hidden, residual, widths):
    found = trained(model_of(kind, hidden, residual=residual), WholeBatch(data, 2, uses=100, keep_sum="always"))
    assert widths.count(24) == 1
    assert len(widths) == 1 + 5  # and the second layer's, at every step
    expected = trained(model_of(kind, hidden, residual=residual), WholeBatch(data, 2, keep_sum="never"))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_in_one_order_the_bits_are_the_same(data, kind):
    """Sums that are made once are those that would be made at every step."""
    batches = WholeBatch(data, 2, keep_sum="always"), WholeBatch(data, 2, keep_sum="never")
    with torch.no_grad():
        rows = []
        for batch in batches:
            model = model_of(kind, 40)
            for layer in model.layers:
                layer.conv.order = "aggregate"
            rows.append(model(batch))
    if kind == "sage":  # whose two products are one where the sum is not kept
        torch.testing.assert_close(*rows, rtol=1e-5, atol=1e-5)
    else:
        assert torch.equal(*rows)


@pytest.mark.parametrize("kind", KINDS)
def test_under_autocast_they_are_kept_as_products_take_them(data, kind):
    batch = WholeBatch(data, 2, uses=100, keep_sum="always")
    found = trained(model_of(kind), batch, autocast=True)
    (kept,) = batch.first_sum._kept.values()
    assert kept.dtype == (torch.float32 if kind == "gin" else torch.bfloat16)
    expected = trained(model_of(kind), WholeBatch(data, 2), autocast=True)
    torch.testing.assert_close(found[0], expected[0], rtol=0.02, atol=0.02)
    model = model_of(kind)
    with torch.no_grad():
        model(batch)  # without autocast: another type, and so another sum
    assert len(batch.first_sum._kept) == (1 if kind == "gin" else 2)


def test_it_says_what_it_did_and_what_it_takes(data):
    batch = WholeBatch(data, 2, uses=300)
    assert (batch.first_sum.nbytes, batch.first_sum.reason) == (0, "no layer has asked yet")
    model_of("sage")(batch)
    assert batch.first_sum.nbytes == 600 * 24 * 4
    assert batch.first_sum.reason == "kept: 300 uses of a sum over 24 columns that never changes"


def test_where_it_is_not_kept_it_says_why(data):
    def reason(model, batch):
        model(batch)
        assert batch.first_sum.nbytes == 0
        return batch.first_sum.reason

    many = {"uses": 300}
    assert reason(model_of("sage"), WholeBatch(data, 2, **many, keep_sum="never")) == "not kept: switched off"
    once = reason(model_of("sage"), WholeBatch(data, 2))
    assert once == "not kept: summing at each of 1 uses costs less than once over 24 columns"
    assert "dropout of the input" in reason(model_of("gcn", input_dropout=0.1), WholeBatch(data, 2, **many))
    assert "is learnt" in reason(hr.nn.GNN(24, 16, 4, layers=2, conv="gat"), WholeBatch(data, 2, **many))
    told = model_of("gcn")
    told.layers[0].conv.order = "transform"
    assert "told to map before" in reason(told, WholeBatch(data, 2, **many))
    learnt = hr.Dataset(data.graph, x=data.x.clone().requires_grad_(), y=data.y)
    assert "features are learnt" in reason(model_of("gcn"), WholeBatch(learnt, 2, **many))
    with torch.inference_mode():
        frozen = hr.Dataset(data.graph, x=data.x.clone(), y=data.y)
        assert "inference tensor" in reason(model_of("gcn"), WholeBatch(frozen, 2, **many))


def test_with_input_dropout_training_is_as_it_was(data):
    found = []
    for keep in ("always", "never"):
        torch.manual_seed(5)
        found.append(trained(model_of("gcn", input_dropout=0.3), WholeBatch(data, 2, keep_sum=keep, uses=50)))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_layers_that_sum_alike_share_and_others_do_not(data):
    batch = WholeBatch(data, 2, keep_sum="always")
    for _ in range(2):
        for kind in KINDS:
            model_of(kind)(batch)
    assert len(batch.first_sum._kept) == 3
    assert batch.first_sum.nbytes == 3 * 600 * 24 * 4


def test_features_that_change_are_summed_anew(data):
    x = data.x.clone()
    changing = hr.Dataset(data.graph, x=x, y=data.y)
    batch, model = WholeBatch(changing, 2, keep_sum="always"), model_of("gcn").eval()
    with torch.no_grad():
        model(batch)
        x[3] += 1
        found = model(batch)
        torch.testing.assert_close(found, model(WholeBatch(changing, 2)), rtol=1e-4, atol=1e-5)
    assert batch.first_sum.nbytes == x.nbytes


def test_every_reduction_of_sage_is_constant(data):
    batch = WholeBatch(data, 1, keep_sum="always")
    for aggr in ("mean", "sum", "max"):
        conv = hr.nn.SAGEConv(24, 8, aggr=aggr)
        summed = batch.first_sum.of(hr.nn.Layer(conv, 24, 8), data.x, data.graph)
        torch.testing.assert_close(conv(data.x, data.graph, summed=summed), conv(data.x, data.graph), rtol=1e-4, atol=1e-5)
    assert len(batch.first_sum._kept) == 3
    assert batch.first_sum.of(hr.nn.Layer(hr.nn.SAGEConv(24, 8, project=True), 24, 8), data.x, data.graph) is None


def test_what_it_cannot_be_is_refused():
    with pytest.raises(ValueError, match="keep must be one of auto, always, never, not 'yes'"):
        FirstSum(3, keep="yes")
    with pytest.raises(ValueError, match="uses must be at least 1, not 0"):
        FirstSum(0)


def test_without_room_there_is_none(data, monkeypatch):
    def full(*given):
        raise torch.cuda.OutOfMemoryError("full")

    plain = model_of("sage")(WholeBatch(data, 2))
    batch = WholeBatch(data, 2, keep_sum="always")
    monkeypatch.setattr(hr.nn.SAGEConv, "fixed_sum", lambda self: first_sum.FixedSum(("full",), full, 24, 16))
    found = model_of("sage")(batch)
    assert batch.first_sum.reason == "not kept: there is no room for it on cpu"
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)
