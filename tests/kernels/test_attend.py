import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace import _native
from headrace.kernels import attend, attend_pairs, attend_pairs_reference, attend_reference

KINDS = ["gat", "gatv2"]
TYPES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def csr(degrees, columns, seed=0, dtype=torch.int32):
    generator = torch.Generator().manual_seed(seed)
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    return indptr, torch.randint(0, columns, (int(indptr[-1]),), generator=generator).to(dtype)


def inputs(kind, rows, columns, heads, channels, dtype=torch.float64, scale=1.0):
    x = scale * torch.randn(columns, heads, channels, dtype=torch.float64)
    if kind == "gat":
        more = {"source": torch.randn(columns, heads).double(), "target": torch.randn(rows, heads).double()}
    else:
        more = {"target": torch.randn(rows, heads, channels).double(), "attention": torch.randn(heads, channels).double()}
    return x.to(dtype), {name: (scale * value).to(dtype) for name, value in more.items()}


def both(kind):
    return (attend, attend_reference) if kind == "gat" else (attend_pairs, attend_pairs_reference)


def outputs_and_gradients(function, x, indptr, indices, more, **options):
    leaves = {"x": x.clone().requires_grad_(), **{n: v.clone().requires_grad_() for n, v in more.items()}}
    out = function(leaves["x"], indptr, indices, **{n: leaves[n] for n in more}, **options)
    weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out)
    (out.double() * weight).sum().backward()
    return {"out": out.detach(), **{name: leaf.grad for name, leaf in leaves.items()}}


def assert_same(kind, x, indptr, indices, more, tolerance, **options):
    ours, reference = both(kind)
    found = outputs_and_gradients(ours, x, indptr, indices, more, **options)
    options.pop("reverse", None)
    options.pop("threads", None)
    truth = outputs_and_gradients(reference, x.double(), indptr, indices, {n: v.double() for n, v in more.items()}, **options)
    for name, expected in truth.items():
        assert found[name].dtype == x.dtype
        scale = max(float(expected.abs().max()), 1.0) if expected.numel() else 1.0
        torch.testing.assert_close(
            found[name].double(), expected, rtol=0, atol=tolerance * scale * 4, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("channels", [1, 7, 8, 47, 100])
@pytest.mark.parametrize("self_loops", [False, True])
def test_rows_and_gradients_equal_the_reference(kind, heads, channels, self_loops):
    indptr, indices = csr([3, 0, 7, 1, 40, 2, 0], 12)  # empty rows, an isolated last one, multi-edges, rows < sources
    x, more = inputs(kind, 7, 12, heads, channels)
    assert_same(kind, x, indptr, indices, more, 1e-12, self_loops=self_loops)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_agrees_with_fp64(kind, dtype):
    indptr, indices = csr([5, 1, 0, 20], 9, dtype=torch.int64)
    x, more = inputs(kind, 4, 9, 4, 16, dtype)
    assert_same(kind, x, indptr, indices, more, TYPES[dtype], self_loops=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hub_of_a_hundred_thousand_entries(kind):
    indptr, indices = csr([2, 100_000, 3], 5_000)
    x, more = inputs(kind, 3, 5_000, 2, 8)
    assert_same(kind, x, indptr, indices, more, 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_existing_loops_count_once_with_self_loops_and_as_they_are_without(kind):
    indptr, indices = torch.tensor([0, 4, 6, 7]), torch.tensor([0, 0, 1, 2, 1, 0, 2], dtype=torch.int32)
    x, more = inputs(kind, 3, 3, 2, 5)
    for loops in (False, True):
        assert_same(kind, x, indptr, indices, more, 1e-12, self_loops=loops)


@pytest.mark.parametrize("kind", KINDS)
def test_large_scores_do_not_overflow(kind):
    indptr, indices = csr([6, 9], 8)
    x, more = inputs(kind, 2, 8, 2, 4, torch.float32, scale=40.0)
    ours, _ = both(kind)
    out = outputs_and_gradients(ours, x, indptr, indices, more)
    assert all(bool(torch.isfinite(value).all()) for value in out.values())
    assert_same(kind, x, indptr, indices, more, 1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("self_loops", [False, True])
def test_dropout_drops_the_same_forward_and_backward(kind, self_loops):
    indptr, indices = csr([30, 0, 12, 5], 20)
    x, more = inputs(kind, 4, 20, 5, 6)
    assert_same(kind, x, indptr, indices, more, 1e-12, self_loops=self_loops, dropout=0.4, seed=11)
    ours, _ = both(kind)
    first, again, other = (ours(x, indptr, indices, **more, dropout=0.4, seed=s) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_mask_keeps_its_share():
    mask = torch.empty(50_000, 8, dtype=torch.bool)
    _native.attend_mask(mask, 0.3, 5, 2)
    assert abs(float(mask.float().mean()) - 0.7) < 0.005
    assert abs(float((mask[:, 0] & mask[:, 1]).float().mean()) - 0.49) < 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_threads_and_a_given_transpose_change_no_bit(kind):
    graph = hr.generate.community(nodes=600, edges=9_000, classes=3, features=0).graph
    x, more = inputs(kind, 600, 600, 4, 8, torch.float32)
    ours, _ = both(kind)
    runs = [
        outputs_and_gradients(ours, x, graph.indptr, graph.indices, more, self_loops=True, dropout=0.2, **options)
        for options in ({"threads": 1}, {"threads": 2}, {"threads": 5}, {"reverse": graph.reverse()})
    ]
    for run in runs[1:]:
        assert all(torch.equal(run[name], runs[0][name]) for name in runs[0])


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    degrees=st.lists(st.integers(0, 9), min_size=0, max_size=6),
    more_columns=st.integers(1, 5),
    heads=st.integers(1, 5),
    channels=st.integers(1, 20),
    loops=st.booleans(),
    rate=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 2**63 - 1),
)
def test_any_shape_equals_the_reference(kind, degrees, more_columns, heads, channels, loops, rate, seed):
    columns = len(degrees) + more_columns
    indptr, indices = csr(degrees, columns, seed % 1000)
    x, more = inputs(kind, len(degrees), columns, heads, channels)
    assert_same(kind, x, indptr, indices, more, 1e-12, self_loops=loops, dropout=rate, seed=seed)


@pytest.mark.parametrize("kind", KINDS)
def test_torch_takes_it_for_an_op(kind):
    indptr, indices = csr([3, 0, 4], 5)
    x, more = inputs(kind, 3, 5, 2, 4, torch.float32)
    op = torch.ops.headrace.attend if kind == "gat" else torch.ops.headrace.attend_pairs
    arguments = [x.requires_grad_(), indptr, indices, *(v.requires_grad_() for v in more.values()), None, None, None]
    torch.library.opcheck(op.default, (*arguments, 0.2, True, 0.3, 7, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.randn(5, 8)}, r"x must be \[n, heads, channels\]"),
        ({"x": torch.ones(5, 2, 4, dtype=torch.int64)}, "x must be float32, float64, float16 or bfloat16, not torch.int64"),
        ({"indptr": torch.tensor([0, 1, 2, 3], dtype=torch.int32)}, "indptr must be int64"),
        ({"indices": torch.tensor([0, 1, 9], dtype=torch.int32)}, "indices holds values from 0 to 9"),
        ({"indices": torch.tensor([0.0, 1.0, 2.0])}, "indices must be int32 or int64"),
        ({"source": torch.randn(4, 2)}, r"source must be \[rows of x, heads\], here \(5, 2\)"),
        ({"target": torch.randn(3, 1)}, r"target must be \[rows of indptr, heads\], here \(3, 2\)"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
        ({"seed": -1}, "seed must be from 0"),
        ({"slope": float("nan")}, "slope must be a finite number"),
        (
            {"x": torch.randn(2, 2, 4), "source": torch.randn(2, 2), "self_loops": True},
            "self_loops needs a row of x for each of the 3",
        ),
    ],
)
def test_bad_input_is_named(change, message):
    given = {
        "x": torch.randn(5, 2, 4),
        "indptr": torch.tensor([0, 1, 2, 3]),
        "indices": torch.tensor([0, 1, 1], dtype=torch.int32),
        "source": torch.randn(5, 2),
        "target": torch.randn(3, 2),
    } | change
    x, indptr, indices = (given.pop(name) for name in ("x", "indptr", "indices"))
    with pytest.raises(ValueError, match=message):
        attend(x, indptr, indices, **given)
