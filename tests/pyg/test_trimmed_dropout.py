import copy

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from headrace.pyg import accelerate
from headrace.pyg.dropout import Dropout


def model(rate: float = 0.5) -> nn.Module:
    torch.manual_seed(0)
    return pyg.GraphSAGE(4, 8, num_layers=2, out_channels=3, dropout=rate)


def made_ours(rate: float = 0.5) -> nn.Module:
    net = nn.Sequential(nn.Dropout(rate))
    accelerate(net, trim=True)
    return net[0]


def test_dropout_of_a_trimmed_model_is_ours_until_it_is_restored() -> None:
    net = model()
    done = accelerate(net, trim=True)
    assert type(net.dropout) is Dropout
    assert "dropout  Dropout   changed: draws its own numbers" in repr(done)
    assert len(done.changed) == 2  # it is no message-passing layer
    done.restore()
    assert type(net.dropout) is nn.Dropout


def test_dropout_that_drops_nothing_stays() -> None:
    net = model(rate=0.0)
    accelerate(net, trim=True)
    assert type(net.dropout) is nn.Dropout


def test_without_trim_dropout_draws_what_it_drew_before() -> None:
    theirs = model()
    ours = copy.deepcopy(theirs)
    accelerate(ours)
    x, edge_index = torch.randn(40, 4), torch.randint(0, 40, (2, 200))
    outs = []
    for net in (theirs, ours):
        torch.manual_seed(7)
        outs.append(net(x, edge_index))
    torch.testing.assert_close(*outs)


def test_a_share_is_dropped_and_the_others_are_scaled() -> None:
    layer = made_ours(0.3)
    torch.manual_seed(1)
    out = layer(torch.ones(1000, 64))
    assert float((out == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    torch.testing.assert_close(out[out != 0], torch.full_like(out[out != 0], 1 / 0.7), rtol=1e-4, atol=0)


def test_the_seed_of_torch_decides_and_each_call_draws_anew() -> None:
    layer, x = made_ours(), torch.ones(50, 16)
    torch.manual_seed(1)
    first, second = layer(x), layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, second)


def test_gradients_pass_where_nothing_was_dropped_and_can_be_differentiated() -> None:
    layer = made_ours()
    x = torch.randn(50, 16, requires_grad=True)
    torch.manual_seed(1)
    out = layer(x)
    mask = out.detach() / x.detach()
    (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    torch.testing.assert_close(grad, 2 * mask.square() * x)
    (again,) = torch.autograd.grad(grad.sum(), x)
    torch.testing.assert_close(again, 2 * mask.square())


@pytest.mark.parametrize("x", [torch.ones(5, 4, dtype=torch.float16), torch.ones(2, 3, 4), torch.ones(0, 4)])
def test_other_inputs_are_dropped_too(x: torch.Tensor) -> None:
    out = made_ours()(x)
    assert (out.shape, out.dtype) == (x.shape, x.dtype)
    assert set(out.unique().tolist()) <= {0.0, 2.0}


def test_evaluation_drops_nothing() -> None:
    x = torch.ones(5, 4)
    assert made_ours().eval()(x) is x
