"""`dropout` against its plain-torch reference, gradients included, and its mask against a Philox written in Python."""

import hashlib

import pytest
import torch

from child import assert_same_digest_on_every_level
from headrace import _native
from headrace.kernels import dropout, dropout_reference
from headrace.kernels._dropout.dropout import _dropout, _dropout_backward
from plain_philox import philox, stream_key

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SIZES = [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000]  # 64 elements are drawn at a time
MANY = (1 << 14) * 5 + 3  # elements that two threads share


def drawn(seed, count):
    """The 16 bits of each element: eight to a block, the low half of a word first."""
    key = stream_key(seed, 0, 0, _native.Purpose.dropout)
    blocks = [philox(key, (block, 0, 0, 0)) for block in range((count + 7) // 8)]
    return torch.tensor([half for block in blocks for word in block for half in (word & 0xFFFF, word >> 16)])[:count]


def with_gradient(function, x, rate, grad, **options):
    x = x.detach().clone().requires_grad_()
    out = function(x, rate, **options)
    return out.detach(), *torch.autograd.grad(out, x, grad)


# ---- the mask


@pytest.mark.parametrize("seed", [0, 7, 2**33 + 5, 2**63 - 1])
@pytest.mark.parametrize("rate", [2**-16, 0.3, 0.5, 0.9])
def test_what_is_dropped_is_philox_of_the_seed_and_the_position(seed, rate):
    kept = dropout(torch.ones(1000), rate, seed=seed) > 0
    assert torch.equal(kept, drawn(seed, 1000) >= round(rate * 2**16))


def test_the_mask_goes_on_where_threads_share_the_elements():
    for threads in (1, 2):
        kept = dropout(torch.ones(MANY), 0.3, seed=12, threads=threads) > 0
        assert torch.equal(kept, drawn(12, MANY) >= round(0.3 * 2**16))


@pytest.mark.parametrize("at", [3, 100, 998])  # of a whole group, and of the last that is none
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_an_element_is_dropped_by_draws_below_the_rate_alone(at, dtype):
    draw = int(drawn(13, 1000)[at])
    x = torch.ones(1000, dtype=dtype)
    assert dropout(x, draw / 2**16, seed=13)[at] > 0
    assert dropout(x, (draw + 1) / 2**16, seed=13)[at] == 0


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.75, 0.99])
def test_the_rate_is_kept(rate):
    count = 200_000
    dropped = int((dropout(torch.ones(count), rate, seed=1) == 0).sum())
    assert abs(dropped - rate * count) < 5 * (count * rate * (1 - rate)) ** 0.5


@pytest.mark.parametrize("rate", [1e-9, 0.1, 0.123456, 0.5, 0.8, 0.99999])
def test_the_mean_is_preserved_exactly(rate):
    """Over all 2^16 draws an element keeps its value: the share that stays, times the scale, is 1."""
    drops = min(max(round(rate * 2**16), 1), 2**16)
    kept = dropout(torch.ones(1000, dtype=torch.float64), rate, seed=2).unique()
    scale = float(kept[-1])
    if scale > 0:  # unless all are dropped
        assert scale * (2**16 - drops) / 2**16 == pytest.approx(1, abs=1e-15)


def test_another_seed_or_position_has_a_mask_of_its_own():
    a, b = (dropout(torch.ones(100_000), seed=seed) > 0 for seed in (1, 2))
    for first, second in ((a, b), (a[1:], a[:-1]), (a[2:], a[:-2]), (a[8:], a[:-8]), (a[64:], a[:-64])):
        assert abs(int((first == second).sum()) - len(first) / 2) < 5 * (len(first) / 4) ** 0.5


def test_a_mask_belongs_to_the_position_and_not_to_the_size_or_shape():
    whole = dropout(torch.ones(1000), 0.3, seed=3)
    for size in SIZES:
        assert torch.equal(dropout(torch.ones(size), 0.3, seed=3), whole[:size])
    assert torch.equal(dropout(torch.ones(10, 4, 25), 0.3, seed=3).flatten(), whole)


def test_torch_manual_seed_decides_where_no_seed_is_given():
    x = torch.randn(50, 7)
    torch.manual_seed(5)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(5)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)


# ---- against the reference


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("relu", [False, True])
def test_results_and_gradients_equal_the_reference(dtype, rate, relu):
    for size in SIZES:
        x, grad = torch.randn(size).to(dtype), torch.randn(size).to(dtype)
        ours = with_gradient(dropout, x, rate, grad, relu=relu, seed=4, threads=2)
        truth = with_gradient(dropout_reference, x, rate, grad, relu=relu, seed=4)
        for a, b in zip(ours, truth, strict=True):
            assert a.dtype == dtype
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_relu_inside_equals_relu_and_then_the_same_mask(dtype):
    x, grad = torch.randn(777).to(dtype), torch.randn(777).to(dtype)
    inside = with_gradient(dropout, x, 0.4, grad, relu=True, seed=5)
    after = with_gradient(lambda x, rate, **options: dropout(torch.relu(x), rate, **options), x, 0.4, grad, seed=5)
    for a, b in zip(inside, after, strict=True):
        assert torch.equal(a, b)
    assert (inside[0] == 0).float().mean() > 0.6  # both do something


@pytest.mark.parametrize("relu", [False, True])
def test_gradcheck(relu):
    x = torch.randn(9, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: dropout(x, 0.3, relu=relu, seed=6), x)


@pytest.mark.parametrize("relu", [False, True])
def test_an_expanded_gradient_is_as_a_dense_one(relu):
    x = torch.randn(30, 5, requires_grad=True)
    out = dropout(x, 0.3, relu=relu, seed=6)
    (expanded,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
    (dense,) = torch.autograd.grad(out, x, torch.ones(30, 5))
    assert torch.equal(expanded, dense)


# ---- edges of the domain


@pytest.mark.parametrize("relu", [False, True])
def test_rate_zero_changes_nothing_but_relu(relu):
    x, grad = torch.randn(100), torch.randn(100)
    out, grad_x = with_gradient(dropout, x, 0, grad, relu=relu)
    assert torch.equal(out, torch.relu(x) if relu else x)
    assert torch.equal(grad_x, grad * (x > 0) if relu else grad)


def test_a_tiny_rate_is_not_rounded_to_none():
    assert (dropout(torch.ones(1_000_000), 1e-9, seed=1) == 0).any()


@pytest.mark.parametrize("rate", [1, 0.9999999])
@pytest.mark.parametrize("relu", [False, True])
def test_rate_one_drops_all(rate, relu):
    x = torch.tensor([1.0, float("nan"), float("inf"), -2.0])
    for function in (dropout, dropout_reference):
        out, grad_x = with_gradient(function, x, rate, torch.ones(4), relu=relu, seed=0)
        assert out.tolist() == [0] * 4
        assert grad_x.tolist() == [0] * 4


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("size", [70, 128])
def test_a_kept_nan_stays_and_a_dropped_one_goes(dtype, relu, size):
    x = torch.full((size,), float("nan"), dtype=dtype)
    x[1::3], x[2::3] = float("inf"), -float("inf")
    kept = dropout(torch.ones(size), 0.5, seed=7) > 0
    out = dropout(x, 0.5, relu=relu, seed=7)
    low = 0 if relu else -float("inf")
    wanted = torch.where(kept, torch.where(x == -float("inf"), low, x), 0)
    assert kept.any()
    assert (~kept).any()
    torch.testing.assert_close(out, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(out.isnan(), dropout_reference(x, 0.5, relu=relu, seed=7).isnan())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_smallest_number_that_is_kept_has_its_gradient(dtype):
    """The gradient lets through what came out above zero: nothing positive may round to zero on its way."""
    tiny = torch.full((128,), torch.finfo(dtype).smallest_normal, dtype=dtype)
    out, grad = with_gradient(dropout, tiny, 0.5, torch.ones(128, dtype=dtype), relu=True, seed=8)
    assert torch.equal(grad > 0, dropout(torch.ones(128), 0.5, seed=8) > 0)
    assert torch.equal(out > 0, grad > 0)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0, 2)])
@pytest.mark.parametrize("relu", [False, True])
def test_nothing_is_dropped_from_nothing(shape, relu):
    out, grad = with_gradient(dropout, torch.empty(shape), 0.5, torch.empty(shape), relu=relu)
    assert out.shape == grad.shape == shape


def test_a_single_number_is_kept_or_dropped():
    found = {dropout(torch.tensor(3.0), seed=seed).item() for seed in range(20)}
    assert found == {0.0, 6.0}


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_strides_do_not_matter(relu, rate):
    dense = torch.randn(40, 30)
    strided = dense.T.contiguous().T
    every_other = torch.stack([dense, dense], -1)[..., 0]
    grad = torch.randn(30, 40).T
    wanted = with_gradient(dropout, dense, rate, grad.contiguous(), relu=relu, seed=9)
    for x in (strided, every_other):
        x = x.requires_grad_()
        out = dropout(x, rate, relu=relu, seed=9)
        assert out.is_contiguous()
        assert torch.equal(out, wanted[0])
        assert torch.equal(torch.autograd.grad(out, x, grad)[0], wanted[1])


def test_the_input_is_left_as_it_was():
    x = torch.randn(100)
    before = x.clone()
    dropout(x, 0.5, relu=True, seed=1)
    assert torch.equal(x, before)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_named(rate):
    with pytest.raises(ValueError, match=r"rate must be from 0 to 1, not"):
        dropout(torch.ones(3), rate)


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64])
def test_a_seed_out_of_range_is_named(seed):
    with pytest.raises(ValueError, match=rf"seed must be from 0 to 2\*\*63 - 1, not {seed}"):
        dropout(torch.ones(3), seed=seed)


def test_other_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="x must be float32"):
        dropout(torch.arange(3))
    with pytest.raises(ValueError, match="threads must be at least 1"):
        dropout(torch.ones(3), threads=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out": torch.empty(99)}, "out must have the size and type of x"),
        ({"out": torch.empty(100, dtype=torch.float64)}, "out must have the size and type of x"),
        ({"gate": torch.empty(99)}, "gate must have the size and type of x"),
        ({"gate": torch.empty(100).half()}, "gate must have the size and type of x"),
        ({"dropped": 2**16}, "dropped must be below 65536"),
    ],
)
def test_the_native_function_refuses_what_does_not_fit(change, message):
    good = {"x": torch.ones(100), "out": torch.empty(100), "seed": 0, "dropped": 5, "scale": 1.0, "relu": False}
    with pytest.raises(ValueError, match=message):
        _native.dropout(**({"gate": None, "threads": 1} | good | change))


# ---- the same bits everywhere


def digest(threads):
    """Of results and gradients, for every type."""
    torch.manual_seed(0)
    found = hashlib.sha256()
    for dtype in FLOATS:
        for size in (*SIZES, MANY):
            x, grad = torch.randn(size).to(dtype), torch.randn(size).to(dtype)
            for relu in (False, True):
                for tensor in with_gradient(dropout, x, 0.3, grad, relu=relu, seed=10, threads=threads):
                    found.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def test_threads_change_nothing():
    assert digest(1) == digest(2) == digest(5)


@pytest.mark.skipif(_native.level == "baseline", reason="needs a processor with AVX2: this one runs the baseline only")
def test_every_instruction_set_gives_the_same_bits():
    assert_same_digest_on_every_level(__file__)


# ---- as a custom op


@pytest.mark.parametrize("shape", [(70,), (7, 5)])
@pytest.mark.parametrize("dropped", [1000, 2**16])
@pytest.mark.parametrize("relu", [False, True])
def test_opcheck_of_the_op(shape, dropped, relu):
    torch.library.opcheck(_dropout, (torch.randn(shape, requires_grad=True), dropped, relu, 5, 1, None, 0, 0))
    torch.library.opcheck(
        _dropout, (torch.randn(shape).T if len(shape) == 2 else torch.randn(140)[::2], dropped, relu, 5, 1, None, 0, 0)
    )


@pytest.mark.parametrize("dropped", [1000, 2**16])
def test_opcheck_of_its_gradient(dropped):
    for gate in (None, torch.randn(5, 7), torch.randn(7, 5).T):
        torch.library.opcheck(_dropout_backward, (torch.randn(5, 7), gate, dropped, 5, 1, None, 0, 0))
        torch.library.opcheck(_dropout_backward, (torch.randn(7, 5).T, gate, dropped, 5, 1, None, 0, 0))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_equals_eager(backend):
    def function(x, weight):
        return dropout(x @ weight, 0.3, relu=True, seed=11).square().sum(dim=1)

    def run(function):
        x, weight = torch.linspace(-1, 1, 30).view(6, 5).requires_grad_(), torch.linspace(-1, 1, 15).view(5, 3).requires_grad_()
        out = function(x, weight)
        return out.detach(), *torch.autograd.grad(out.sum(), (x, weight))

    for a, b in zip(run(torch.compile(function, fullgraph=True, backend=backend)), run(function), strict=True):
        torch.testing.assert_close(a, b)


if __name__ == "__main__":
    print(_native.level, digest(2))
