"""`gru_gates` against its plain-torch reference and torch's GRUCell, gradients included."""

import pytest
import torch

from headrace.kernels import gru_gates, gru_gates_reference

TYPES = {torch.float64: 1e-14, torch.float32: 4e-7}


def outputs_and_gradients(function, *leaves, **options):
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    out = function(*leaves, **options)
    out.backward(torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out))
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def inputs(rows, width, dtype, scale=2.0):
    torch.manual_seed(0)
    return [scale * torch.randn(rows, w, dtype=torch.float64).to(dtype) for w in (3 * width, 3 * width, width)]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "width"), [(0, 5), (1, 1), (7, 15), (5, 16), (300, 47), (200, 100)])
@pytest.mark.parametrize("scale", [1e-4, 2.0, 60.0])  # near 0, where tanh is nearly its argument, and where gates are shut
def test_rows_and_gradients_equal_the_reference(rows, width, dtype, scale):
    leaves = inputs(rows, width, dtype, scale)
    found = outputs_and_gradients(gru_gates, *leaves)
    truth = outputs_and_gradients(gru_gates_reference, *(leaf.double() for leaf in leaves))
    for i, (ours, expected) in enumerate(zip(found, truth, strict=True)):
        close = 10 * TYPES[dtype] * (max(scale, 1.0) if i else scale)  # gradients begin with numbers up to 1
        torch.testing.assert_close(ours.double(), expected, rtol=10 * TYPES[dtype], atol=close)


def test_a_cell_of_torch_is_the_same():
    torch.manual_seed(0)
    cell, x, memory = torch.nn.GRUCell(7, 5).double(), torch.randn(9, 7).double(), torch.randn(9, 5).double()
    products = x @ cell.weight_ih.t() + cell.bias_ih, memory @ cell.weight_hh.t() + cell.bias_hh
    torch.testing.assert_close(gru_gates(*products, memory), cell(x, memory), atol=1e-14, rtol=0)


def test_any_number_of_threads_gives_the_same_bits():
    leaves = inputs(1000, 47, torch.float32)
    runs = [outputs_and_gradients(gru_gates, *leaves, threads=threads) for threads in (1, 2, 5)]
    assert all(torch.equal(a, b) for run in runs for a, b in zip(runs[0], run, strict=True))


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"hidden must be torch.float32 of shape \(2, 9\)"):
        gru_gates(torch.zeros(2, 9), torch.zeros(2, 6), torch.zeros(2, 3))
