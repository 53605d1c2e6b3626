"""Deltas of rows against torch's own optimizers."""

import pytest
import torch

from headrace.train.links.flow.row_optimizer import RowOptimizer


@pytest.mark.parametrize("width", [1, 47, 100])
def test_adagrad_is_that_of_torch(width):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(5, width))
    rows, state, ours = weight.detach().clone(), torch.zeros(5, width), RowOptimizer("adagrad")
    theirs = torch.optim.Adagrad([weight], lr=0.1)
    for _ in range(4):
        weight.grad = torch.randn(5, width)
        delta_rows, delta_state = ours.deltas(weight.grad, state, lr=0.1)
        rows, state = rows + delta_rows, state + delta_state
        theirs.step()
    torch.testing.assert_close(rows, weight.detach())
    torch.testing.assert_close(state, theirs.state[weight]["sum"])


def test_row_adagrad_keeps_the_mean_of_squares():
    grad, state = torch.randn(3, 4), torch.rand(3, 1)
    delta_rows, delta_state = RowOptimizer("row_adagrad", eps=0.5).deltas(grad, state, lr=0.2)
    mean = (grad**2).mean(1, keepdim=True)
    torch.testing.assert_close(delta_state, mean)
    torch.testing.assert_close(delta_rows, -0.2 * grad / ((state + mean).sqrt() + 0.5))


def test_sgd_has_no_state():
    optimizer = RowOptimizer("sgd")
    assert [RowOptimizer(name).state_width(8) for name in ("row_adagrad", "adagrad", "sgd")] == [1, 8, 0]
    delta_rows, delta_state = optimizer.deltas(torch.ones(2, 3), torch.zeros(2, 0), lr=0.5)
    assert delta_rows.tolist() == [[-0.5] * 3] * 2
    assert delta_state.shape == (2, 0)


def test_rows_without_gradient_stay():
    for name in ("row_adagrad", "adagrad", "sgd"):
        optimizer = RowOptimizer(name)
        delta_rows, _ = optimizer.deltas(torch.zeros(2, 3), torch.zeros(2, optimizer.state_width(3)), lr=0.1)
        assert bool((delta_rows == 0).all())


def test_unknown_name_is_refused():
    with pytest.raises(ValueError, match="row_adagrad"):
        RowOptimizer("adam")
