"""The softmax loss of shared candidates against the plain formula in double precision, with gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.nn.links.link_losses import softmax_loss


def drawn(chunks, questions, candidates, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(chunks, questions, width), (chunks, questions, width), (chunks, candidates, width)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def hidden_of(chunks, questions, candidates, share, seed=0):
    mask = torch.rand(chunks * questions * candidates, generator=torch.Generator().manual_seed(seed + 1)) < share
    return mask.nonzero()[:, 0]


def plain(query, answer, candidates, hidden):
    """The loss and its gradients in float64, hidden candidates taken out one by one."""
    tensors = [x.double().requires_grad_() for x in (query, answer, candidates)]
    scores = torch.einsum("kqd,knd->kqn", tensors[0], tensors[2])
    if hidden is not None:
        mask = torch.zeros(scores.numel(), dtype=torch.bool)
        mask[hidden] = True
        scores = scores.masked_fill(mask.view(scores.shape), -torch.inf)
    positive = (tensors[0] * tensors[1]).sum(-1, keepdim=True)
    loss = (torch.cat([positive, scores], -1).logsumexp(-1) - positive[..., 0]).mean()
    return loss.detach(), torch.autograd.grad(loss, tensors)


def fast(query, answer, candidates, hidden, threads=1):
    tensors = [x.clone().requires_grad_() for x in (query, answer, candidates)]
    loss = hr.nn.shared_softmax_loss(*tensors, hidden=hidden, threads=threads)
    return loss.detach(), torch.autograd.grad(loss, tensors)


def check(tensors, hidden):
    expected, expected_grads = plain(*tensors, hidden)
    found, grads = fast(*tensors, hidden)
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=1e-7)
    for grad, wanted in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad.double(), wanted, rtol=1e-4, atol=1e-6 * float(wanted.abs().max()) + 1e-9)


@pytest.mark.parametrize("width", [1, 16, 47, 100])
@pytest.mark.parametrize(("chunks", "questions", "candidates"), [(1, 1, 1), (3, 7, 5), (2, 200, 100), (1, 600, 33), (2, 31, 16)])
def test_loss_and_gradients_are_those_of_the_formula(width, chunks, questions, candidates):
    tensors = [x / width**0.25 for x in drawn(chunks, questions, candidates, width)]
    check(tensors, None)
    check(tensors, hidden_of(chunks, questions, candidates, 0.2))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.floats(0, 1), st.integers(0, 1000))
def test_any_shape_and_any_hidden_candidates(chunks, questions, candidates, width, share, seed):
    check(
        [x / width**0.25 for x in drawn(chunks, questions, candidates, width, seed)],
        hidden_of(chunks, questions, candidates, share, seed),
    )


def test_bits_do_not_depend_on_threads():
    tensors, hidden = drawn(3, 700, 50, 47), hidden_of(3, 700, 50, 0.1)
    loss, grads = fast(*tensors, hidden)
    for threads in (2, 5):
        again, others = fast(*tensors, hidden, threads)
        assert torch.equal(loss, again)
        assert all(torch.equal(a, b) for a, b in zip(grads, others, strict=True))


def test_order_and_repeats_of_hidden_do_not_matter():
    tensors, hidden = drawn(2, 30, 20, 8), hidden_of(2, 30, 20, 0.3)
    expected = fast(*tensors, hidden)
    found = fast(*tensors, torch.cat([hidden.flip(0), hidden]).int())
    assert torch.equal(expected[0], found[0])
    assert all(torch.equal(a, b) for a, b in zip(expected[1], found[1], strict=True))


def test_without_candidates_there_is_nothing_to_lose():
    query, answer, candidates = drawn(2, 3, 0, 4)
    loss, grads = fast(query, answer, candidates, None)
    assert loss == 0
    assert all(bool((grad == 0).all()) for grad in grads)
    nothing = fast(query[:, :0], answer[:, :0], drawn(2, 3, 5, 4)[2], None)
    assert nothing[0] == 0
    assert bool((nothing[1][2] == 0).all())


def test_large_scores_neither_overflow_nor_vanish():
    query, answer, candidates = drawn(1, 6, 9, 10)
    check([query * 40, answer * 40, candidates * 40], None)
    loss, _ = fast(query * torch.nan, answer, candidates, None)
    assert bool(loss.isnan())


def test_double_precision_is_plain_torch_and_passes_gradcheck():
    tensors = [x.double().requires_grad_() for x in drawn(2, 3, 4, 5)]
    hidden = torch.tensor([0, 7, 23])
    assert torch.autograd.gradcheck(lambda *x: hr.nn.shared_softmax_loss(*x, hidden=hidden), tensors)
    torch.testing.assert_close(hr.nn.shared_softmax_loss(*tensors, hidden=hidden).detach(), plain(*tensors, hidden)[0])


def test_it_is_the_loss_of_a_decoders_scores():
    query, answer, candidates = drawn(2, 5, 7, 12)
    decoder = hr.nn.DistMult(12)
    expected = softmax_loss(decoder.compare(query, answer), decoder.score(query, candidates))
    torch.testing.assert_close(hr.nn.shared_softmax_loss(query, answer, candidates), expected)


def test_gradients_scale_with_what_comes_from_above():
    tensors = [x.requires_grad_() for x in drawn(1, 4, 5, 6)]
    once = torch.autograd.grad(hr.nn.shared_softmax_loss(*tensors), tensors)
    thrice = torch.autograd.grad(3 * hr.nn.shared_softmax_loss(*tensors), tensors)
    for a, b in zip(once, thrice, strict=True):
        torch.testing.assert_close(3 * a, b)


def test_wrong_shapes_and_places_are_refused():
    query, answer, candidates = drawn(2, 3, 4, 5)
    with pytest.raises(ValueError, match="query and answer must both be"):
        hr.nn.shared_softmax_loss(query, answer[:, :2], candidates)
    with pytest.raises(ValueError, match=r"candidates must be \[2, n, 5\]"):
        hr.nn.shared_softmax_loss(query, answer, candidates[:1])
    with pytest.raises(ValueError, match="hidden candidate out of range"):
        hr.nn.shared_softmax_loss(query, answer, candidates, hidden=torch.tensor([2 * 3 * 4]))
