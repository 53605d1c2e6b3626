"""The GPU's softmax on CPU tensors, under Triton's interpreter."""

import torch

from headrace.kernels import softmax_rows_, softmax_rows_reference_
from interpreted import run_interpreted

SOFTMAX = """
from unittest import mock
import torch
from headrace.kernels import softmax_rows_reference_
from headrace.kernels._softmax import triton_softmax as _triton_softmax

torch.manual_seed(0)


def check(scores, own, share):
    expected, found = scores.double(), scores.clone()
    loss, to_own = softmax_rows_reference_(expected, own.double(), share=share)
    for a, b in zip((expected, loss, to_own), (found, *_triton_softmax.softmax_rows_(found, own, share=share)), strict=True):
        torch.testing.assert_close(b.double(), a, rtol=1e-5, atol=1e-7)


for rows, width in ((1, 1), (3, 5), (4, 64), (2, 1000), (3, 0), (0, 4)):
    check(3 * torch.randn(rows, width), torch.randn(rows), 0.3)
low = torch.full((2, 7), -1e9)  # hidden ones count for nothing
check(low, torch.randn(2), 1.0)
check(100 * torch.randn(5, 33), 100 * torch.randn(5), 1.0)  # no exponential overflows
with mock.patch.object(_triton_softmax, "_BLOCK", 16):
    check(30 * torch.randn(6, 100), torch.randn(6), 0.5)

# The losses that are made of it, as on a GPU.
from headrace.nn.links import link_losses, shared_softmax

query, answer, candidates = (torch.randn(2, n, 8, requires_grad=True) for n in (6, 6, 9))
for loss in (
    lambda: link_losses.softmax_loss((query * answer).sum(-1), query @ candidates.transpose(1, 2)),
    lambda: shared_softmax._SharedProducts.apply(query, answer, candidates, torch.tensor([3, 50])),
):
    expected = loss()
    gradients = torch.autograd.grad(3 * expected, (query, answer, candidates))
    with (
        mock.patch.object(link_losses, "softmax_rows_", _triton_softmax.softmax_rows_),
        mock.patch.object(shared_softmax, "softmax_rows_", _triton_softmax.softmax_rows_),
    ):
        found = loss()
        torch.testing.assert_close(found, expected)
        for a, b in zip(gradients, torch.autograd.grad(3 * found, (query, answer, candidates)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
print("equal")
"""


def test_softmax_under_the_interpreter():
    run_interpreted(SOFTMAX)


def test_rows_take_the_place_of_their_gradients():
    scores, own = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    leaves = [scores.clone().requires_grad_(), own.clone().requires_grad_()]
    loss = torch.cat([leaves[1].unsqueeze(1), leaves[0]], 1).logsumexp(1) - leaves[1]
    to_scores, to_own = torch.autograd.grad(0.25 * loss.sum(), leaves)
    found, pull = softmax_rows_(scores, own, share=0.25)
    torch.testing.assert_close(found, loss.detach())
    torch.testing.assert_close(pull, to_own)
    torch.testing.assert_close(scores, to_scores)
    assert softmax_rows_reference_(torch.empty(2, 0), torch.ones(2), share=1.0)[0].tolist() == [0.0, 0.0]
