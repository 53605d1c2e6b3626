"""Gradients of several ranks: the bits of one process, whatever the number of ranks, and the bytes of the formula."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ranks import Traffic, gradient_bytes, sum_gradients
from rank_threads import ThreadExchange, on_every_rank


def gradients_of(batches, parameters, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scale = 10.0 ** torch.randint(-4, 5, (batches, 1), generator=generator)  # so that the order of additions matters
    return (torch.randn(batches, parameters, generator=generator) * scale).to(dtype)


def in_order(gradients):
    total = gradients[0].clone()
    for gradient in gradients[1:]:
        total = total + gradient
    return total


@settings(derandomize=True, max_examples=80, deadline=None)
@given(
    size=st.integers(1, 4),
    batches=st.integers(1, 9),
    parameters=st.integers(0, 40),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    seed=st.integers(0, 99),
)
def test_bits_do_not_depend_on_the_number_of_ranks(size, batches, parameters, dtype, seed):
    gradients = gradients_of(batches, parameters, dtype, seed)
    expected = in_order(gradients)
    exchanges = {}

    def work(ranks):
        exchanges[ranks.rank] = exchange = ThreadExchange(ranks)
        like = torch.empty(parameters, dtype=dtype)
        return sum_gradients(list(gradients[ranks.rank :: size]), batches=batches, exchange=exchange, like=like)

    for rank, total in enumerate(on_every_rank(size, work)):
        assert not isinstance(total, Exception), total
        assert total.dtype == dtype
        assert torch.equal(total, expected)
        counted = exchanges[rank].traffic
        for phase, traffic in gradient_bytes(parameters, dtype.itemsize, batches, size, rank).items():
            assert counted[phase] == traffic
    assert torch.equal(sum_gradients(list(gradients), batches=batches), expected)


def test_the_order_matters_for_these_numbers():
    gradients = gradients_of(9, 40)
    assert not torch.equal(in_order(gradients), in_order(gradients.flip(0)))


def test_parts_are_not_written():
    gradients = gradients_of(3, 10)
    parts = list(gradients.clone())
    sum_gradients(parts, batches=3)
    assert torch.equal(torch.stack(parts), gradients)


@pytest.mark.parametrize(("size", "parameters"), [(2, 1000), (4, 1000), (3, 1000), (7, 12345)])
def test_bytes_are_those_of_an_all_reduce(size, parameters):
    """With a batch for each rank: 2 P (n - 1) / n, up to the rounding of slices."""
    for rank in range(size):
        phases = gradient_bytes(parameters, 4, size, size, rank)
        sent = sum(phase.sent for phase in phases.values())
        assert abs(sent - 2 * 4 * parameters * (size - 1) / size) <= 2 * 4 * size
    assert gradient_bytes(parameters, 4, 3, 1, 0) == {"scatter": Traffic(), "collect": Traffic()}


def test_what_one_sends_the_others_receive():
    for batches in (1, 2, 5, 8):
        phases = [gradient_bytes(1001, 2, batches, 4, rank) for rank in range(4)]
        for phase in ("scatter", "collect"):
            assert sum(p[phase].sent for p in phases) == sum(p[phase].received for p in phases) > 0


@pytest.mark.parametrize(
    ("parts", "batches", "like", "complaint"),
    [
        ([], 0, None, "batches must be at least 1, not 0"),
        ([torch.zeros(3)], 2, None, "rank 0 of 1 has 2 of 2 batches, and 1 parts were given"),
        ([torch.zeros(3), torch.zeros(4)], 2, None, "must be flat and alike: one is torch.float32 of shape \\[3\\]"),
        ([torch.zeros(3), torch.zeros(3).double()], 2, None, "must be flat and alike"),
        ([torch.zeros(3, 1)], 1, None, "must be flat and alike"),
        ([torch.zeros(3)], 1, torch.zeros(4), "must be flat and alike"),
    ],
)
def test_wrong_parts_are_named(parts, batches, like, complaint):
    with pytest.raises(ValueError, match=complaint):
        sum_gradients(parts, batches=batches, like=like)


def test_a_rank_without_a_batch_must_say_how_long_gradients_are():
    class Second:
        rank, size = 1, 2

    with pytest.raises(ValueError, match="rank 1 has no batch of this step: pass like="):
        sum_gradients([], batches=1, exchange=Second())
