"""`dropout` of slices: rows and columns that are part of a whole have the whole's mask, forwards and backwards."""

import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from child import assert_same_digest_on_every_level
from headrace import _native
from headrace.kernels import dropout, dropout_reference
from headrace.kernels._dropout.dropout import _dropout, _dropout_backward
from plain_philox import philox, stream_key

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
FAR = 2**33 + 5  # a row whose positions lie above 2**32


def with_gradient(function, x, grad, **options):
    x = x.detach().clone().requires_grad_()
    out = function(x, 0.4, **options)
    return out.detach(), *torch.autograd.grad(out, x, grad)


def assert_slice_is_that_of_the_whole(whole, rows, first, width, *, relu=False, threads=None, columns="given"):
    """The slice of `whole` with these rows (an interval or a tensor) and `width` columns from `first` on."""
    numbers = rows if isinstance(rows, torch.Tensor) else slice(*rows)
    grad = torch.randn(whole.shape).to(whole.dtype)
    expected = with_gradient(dropout, whole, grad, relu=relu, seed=9)
    place = {"rows": rows if isinstance(rows, torch.Tensor) else rows[0]}
    place |= {"columns": (first, whole.shape[1])} if columns == "given" else {}
    part, part_grad = (t[numbers][:, first : first + width] for t in (whole, grad))
    for function, more in ((dropout, {"threads": threads}), (dropout_reference, {})):
        found = with_gradient(function, part, part_grad, relu=relu, seed=9, **place, **more)
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(a, b[numbers][:, first : first + width])


def position_draws(seed, positions):
    """The 16 bits of elements at these positions, by a Philox in Python."""
    key = stream_key(seed, 0, 0, _native.Purpose.dropout)

    def draw(position):
        block = position // 8
        word = philox(key, (block & 0xFFFFFFFF, block >> 32, 0, 0))[position % 8 // 2]
        return word >> 16 if position % 2 else word & 0xFFFF

    return torch.tensor([[draw(position) for position in row] for row in positions])


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_any_slice_is_that_of_the_whole(data):
    height, total = data.draw(st.integers(1, 30)), data.draw(st.sampled_from([1, 2, 7, 8, 9, 16, 63, 64, 100, 131, 200]))
    width = data.draw(st.integers(0, total))
    first = data.draw(st.integers(0, total - width))
    if data.draw(st.booleans()):
        rows = torch.tensor(data.draw(st.lists(st.integers(0, height - 1), max_size=40)), dtype=torch.int64)
    else:
        begin = data.draw(st.integers(0, height))
        rows = begin, data.draw(st.integers(begin, height))
    whole = torch.randn(height, total).to(data.draw(st.sampled_from(FLOATS)))
    assert_slice_is_that_of_the_whole(
        whole, rows, first, width, relu=data.draw(st.booleans()), threads=data.draw(st.integers(1, 3))
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("total", [8, 61, 64, 300])
def test_rows_alone_are_those_of_the_whole(dtype, relu, total):
    whole = torch.randn(50, total).to(dtype)
    assert_slice_is_that_of_the_whole(whole, (13, 44), 0, total, relu=relu, columns="all")
    assert_slice_is_that_of_the_whole(whole, torch.randperm(50)[:33], 0, total, relu=relu, columns="all")


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(("first", "width"), [(0, 300), (3, 290), (5, 7), (64, 200)])
def test_slices_that_threads_share_are_those_of_the_whole(threads, first, width):
    whole = torch.randn(3_000, 300)
    assert_slice_is_that_of_the_whole(whole, (100, 2_900), first, width, threads=threads)
    assert_slice_is_that_of_the_whole(whole, torch.randperm(3_000), first, width, threads=threads)


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1), (1, 5), (5, 1)])
@pytest.mark.parametrize("relu", [False, True])
def test_slices_of_nothing_and_of_one(shape, relu):
    height, width = shape
    whole = torch.randn(9, 11)
    assert_slice_is_that_of_the_whole(whole, (4, 4 + height), 6, width, relu=relu)
    assert_slice_is_that_of_the_whole(whole, torch.arange(8, 8 - height, -1), 6, width, relu=relu)


@pytest.mark.parametrize("first", [0, 1, 7, 8, 90])
@pytest.mark.parametrize("numbered", [False, True])
def test_positions_above_two_to_the_32_have_draws_of_their_own(first, numbered):
    total, x = 131, torch.ones(5, 40)
    numbers = torch.tensor([FAR, 3, FAR + 1, FAR, 0]) if numbered else FAR + torch.arange(5)
    where = {"rows": numbers if numbered else FAR, "columns": (first, total)}
    draws = position_draws(7, [[row * total + first + j for j in range(40)] for row in numbers.tolist()])
    for function in (dropout, dropout_reference):
        assert torch.equal(function(x, 0.3, seed=7, **where) > 0, draws >= round(0.3 * 2**16))
    grad = torch.randn(5, 40)
    for a, b in zip(*(with_gradient(f, x, grad, seed=7, **where) for f in (dropout, dropout_reference)), strict=True):
        assert torch.equal(a, b)


def test_the_last_positions_are_drawn():
    last, x = 2**63 - 1, torch.ones(1, 5)
    draws = position_draws(3, [[last - 5 + j for j in range(5)]])
    assert torch.equal(dropout(x, 0.5, seed=3, columns=(last - 5, last)) > 0, draws >= 2**15)


def test_the_whole_as_its_own_slice_has_its_mask():
    x = torch.randn(20, 30)
    for where in ({"rows": 0}, {"columns": (0, 30)}, {"rows": torch.arange(20)}, {"rows": torch.arange(20), "columns": (0, 30)}):
        assert torch.equal(dropout(x, seed=3, **where), dropout(x, seed=3))


@pytest.mark.parametrize("relu", [False, True])
def test_strides_of_x_and_rows_do_not_matter(relu):
    x, grad = torch.randn(30, 40).T, torch.randn(30, 40).T
    rows = torch.stack([torch.randperm(40)] * 2, -1)[:, 0]
    strided = with_gradient(dropout, x, grad, relu=relu, seed=2, rows=rows, columns=(3, 50))
    dense = with_gradient(dropout, x.contiguous(), grad.contiguous(), relu=relu, seed=2, rows=rows.contiguous(), columns=(3, 50))
    assert all(torch.equal(a, b) for a, b in zip(strided, dense, strict=True))


@pytest.mark.parametrize("rate", [0, 1])
def test_rates_without_a_draw_take_slices(rate):
    x = torch.randn(4, 5)
    assert torch.equal(dropout(x, rate, rows=3, columns=(1, 9)), x * (1 - rate))


def test_a_seed_from_torch_is_drawn_for_slices_too():
    torch.manual_seed(5)
    seeded = dropout(torch.ones(20, 9), rows=2)
    torch.manual_seed(5)
    assert torch.equal(dropout(torch.ones(22, 9))[2:], seeded)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"columns": (-1, 9)}, r"columns \(-1, 9\) do not fit: 4 columns of x, from -1 on, of a whole with 9"),
        ({"columns": (6, 9)}, r"columns \(6, 9\) do not fit"),
        ({"columns": (0, 3)}, r"columns \(0, 3\) do not fit"),
        ({"columns": 9}, r"columns must be \(first column, columns of the whole\), not 9"),
        ({"columns": (0, 4, 9)}, r"columns must be \(first column, columns of the whole\)"),
        ({"rows": -1}, "rows must be from 0 to where positions reach"),
        ({"rows": 2**61}, "rows must be from 0 to where positions reach"),
        ({"rows": torch.tensor([0, 1])}, r"rows must be int64 of shape \(3,\)"),
        ({"rows": torch.zeros(3, 1, dtype=torch.int64)}, r"rows must be int64 of shape \(3,\)"),
        ({"rows": torch.zeros(3, dtype=torch.int32)}, r"rows must be int64 of shape \(3,\)"),
        ({"rows": torch.tensor([0, 1, -2])}, r"rows must not be negative, but rows\[2\] is -2"),
        ({"rows": torch.tensor([0, 2**61, 0])}, "row 2305843009213693952 of a whole with 4 columns has positions beyond"),
        ({"rows": torch.zeros(3, dtype=torch.int64, device="meta")}, "rows is on meta, x is on cpu"),
    ],
)
def test_rows_and_columns_that_do_not_fit_are_named(where, message):
    with pytest.raises(ValueError, match=message):
        dropout(torch.ones(3, 4), seed=1, **where)


@pytest.mark.parametrize("shape", [(12,), (2, 3, 4)])
def test_slices_have_two_dimensions(shape):
    for where in ({"rows": 1}, {"columns": (0, 4)}, {"rows": torch.zeros(2, dtype=torch.int64)}):
        with pytest.raises(ValueError, match="rows and columns are of an x with two dimensions"):
            dropout(torch.ones(shape), seed=1, **where)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first": -1}, "first and stride must not be negative"),
        ({"stride": -1}, "first and stride must not be negative"),
        ({"x": torch.ones(12), "stride": 5}, "x must have two dimensions"),
        ({"rows": torch.tensor([0, 1])}, "rows must have one element per row of x"),
        ({"first": 2**63 - 5}, r"positions beyond 2\*\*63"),
        ({"stride": 2**62}, r"positions beyond 2\*\*63"),
    ],
)
def test_the_native_function_refuses_what_does_not_fit(change, message):
    good = {"x": torch.ones(3, 4), "out": torch.empty(3, 4), "seed": 0, "dropped": 5, "scale": 1.0, "relu": False}
    with pytest.raises(ValueError, match=message):
        _native.dropout(**({"gate": None, "threads": 1} | good | change))


@pytest.mark.parametrize("rows", [None, torch.tensor([4, 0, 2])])
@pytest.mark.parametrize("relu", [False, True])
def test_opcheck_of_slices(rows, relu):
    torch.library.opcheck(_dropout, (torch.randn(3, 7, requires_grad=True), 1000, relu, 5, 1, rows, 3, 50))
    torch.library.opcheck(_dropout_backward, (torch.randn(3, 7), None, 1000, 5, 1, rows, 3, 50))


def test_compiled_slices_equal_eager_ones():
    def function(x, rows):
        return dropout(2 * x, 0.3, relu=True, seed=11, rows=rows, columns=(2, 9)) + dropout(x, 0.3, seed=1, rows=5)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    results = []
    for run in (compiled, function):
        x = torch.linspace(-1, 1, 30).view(6, 5).requires_grad_()
        out = run(x, torch.tensor([3, 9, 0, 1, 1, 7]))
        results.append((out.detach(), *torch.autograd.grad(out.square().sum(), x)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def digest(threads):
    """Of results and gradients of slices, for every type."""
    torch.manual_seed(0)
    found = hashlib.sha256()
    for dtype in FLOATS:
        for height, width in ((3, 1), (40, 7), (30, 65), (70, 600)):
            x, grad = torch.randn(height, width).to(dtype), torch.randn(height, width).to(dtype)
            for where in ({"rows": FAR}, {"rows": torch.randperm(height), "columns": (5, 700)}):
                for tensor in with_gradient(dropout, x, grad, seed=10, threads=threads, **where):
                    found.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def test_threads_change_nothing():
    assert digest(1) == digest(2) == digest(5)


@pytest.mark.slow
@pytest.mark.skipif(_native.level == "baseline", reason="needs a processor with AVX2: this one runs the baseline only")
def test_every_instruction_set_gives_the_same_bits():
    assert_same_digest_on_every_level(__file__)


if __name__ == "__main__":
    print(_native.level, digest(2))
