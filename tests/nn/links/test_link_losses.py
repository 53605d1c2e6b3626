"""Losses of edges against plain formulas, and penalties."""

import math

import pytest
import torch

from headrace.nn.links import link_losses as losses

POSITIVE = torch.tensor([[0.5, -1.0]], requires_grad=True)
NEGATIVE = torch.tensor([[[0.1, 2.0, -3.0], [0.0, 1.0, 1.0]]], requires_grad=True)


def each(function):
    """The mean over positives of a formula of one positive and the list of its negatives."""
    pairs = zip(POSITIVE[0].tolist(), NEGATIVE[0].tolist(), strict=True)
    return sum(function(p, n) for p, n in pairs) / 2


def soft(x):
    return math.log1p(math.exp(x))


def test_softmax_is_cross_entropy():
    expected = each(lambda p, n: -math.log(math.exp(p) / (math.exp(p) + sum(map(math.exp, n)))))
    assert losses.softmax_loss(POSITIVE, NEGATIVE).item() == pytest.approx(expected, rel=1e-6)


def test_logistic():
    expected = each(lambda p, n: soft(-p) + sum(map(soft, n)) / 3)
    assert losses.logistic_loss(POSITIVE, NEGATIVE).item() == pytest.approx(expected, rel=1e-6)


def test_margin():
    expected = each(lambda p, n: sum(max(0.7 + x - p, 0) for x in n) / 3)
    assert losses.loss_named("margin", margin=0.7)(POSITIVE, NEGATIVE).item() == pytest.approx(expected, rel=1e-6)


def test_self_adversarial_weighs_by_likelihood_without_gradient():
    def formula(p, n):
        weights = [math.exp(0.5 * x) for x in n]
        return (soft(-p - 2) + sum(w / sum(weights) * soft(x + 2) for w, x in zip(weights, n, strict=True))) / 2

    found = losses.loss_named("self_adversarial", margin=2.0, temperature=0.5)(POSITIVE, NEGATIVE)
    assert found.item() == pytest.approx(each(formula), rel=1e-6)
    (grad,) = torch.autograd.grad(found, NEGATIVE)
    weight = (0.5 * NEGATIVE.detach()).softmax(-1)
    torch.testing.assert_close(grad, weight * torch.sigmoid(NEGATIVE.detach() + 2) / 4)


def test_one_vs_all_is_softmax_over_the_others():
    scores = torch.randn(4, 6)
    target = torch.tensor([0, 5, 2, 2])
    others = torch.stack([torch.cat([row[:t], row[t + 1 :]]) for row, t in zip(scores, target.tolist(), strict=True)])
    expected = losses.softmax_loss(scores.gather(1, target[:, None])[:, 0], others)
    torch.testing.assert_close(losses.one_vs_all_loss(scores, target), expected)


@pytest.mark.parametrize("name", losses.LOSSES)
def test_masked_negatives_have_no_gradient(name):
    loss = losses.loss_named(name)
    mask = torch.tensor([[[False, True, False], [True, True, True]]])
    found = loss(POSITIVE, NEGATIVE.masked_fill(mask, losses.LOW))
    grads = torch.autograd.grad(found, [POSITIVE, NEGATIVE])
    assert all(bool(g.isfinite().all()) for g in grads)
    assert bool((grads[1][mask] == 0).all())


def test_penalty_is_the_mean_over_edges():
    a, b = torch.tensor([[1.0, 2.0], [0.0, 3.0]]), torch.tensor([[2.0], [1.0]])
    assert losses.Penalty(3, 0.1)([a, b]).item() == pytest.approx(0.1 * (1 + 8 + 27 + 8 + 1) / 2)
    with pytest.raises(ValueError, match="power"):
        losses.Penalty(0.5, 1.0)


def test_unknown_loss_is_refused():
    with pytest.raises(ValueError, match="softmax, logistic"):
        losses.loss_named("hinge")
