"""`attend` and `attend_pairs` against their plain-torch references, gradients included; and native calls that must not crash.

Run as a script, this file makes native calls on memory that ends where the arrays end.
"""

import ctypes
import mmap

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from child import assert_same_digest_on_every_level, run_python
from headrace import _native
from headrace.kernels import attend, attend_pairs, attend_pairs_reference, attend_reference
from headrace.kernels._attend.attend import _factors

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
@pytest.mark.parametrize(("heads", "channels"), [(2, 16), (9, 8), (16, 5), (17, 3), (33, 1), (1, 300), (5, 64)])
@pytest.mark.parametrize("self_loops", [False, True])
def test_rows_of_many_tiles_and_heads_of_many_vectors_equal_the_reference(kind, heads, channels, self_loops):
    indptr, indices = csr([127, 128, 129, 0, 1, 260, 2, 400], 500)  # 128 entries are looked at together
    x, more = inputs(kind, 8, 500, heads, channels)
    assert_same(kind, x, indptr, indices, more, 1e-12, self_loops=self_loops, dropout=0.25)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("slope", [0.0, 0.01, 1.0, 2.5, -0.5])
def test_any_slope_equals_the_reference(kind, slope):
    indptr, indices = csr([3, 9, 0, 4], 12)
    x, more = inputs(kind, 4, 12, 3, 5)
    assert_same(kind, x, indptr, indices, more, 1e-12, slope=slope)


@pytest.mark.parametrize("kind", KINDS)
def test_at_zero_the_slope_is_that_below(kind):
    indptr, indices = csr([4, 3], 6)
    x, more = inputs(kind, 2, 6, 2, 3)
    x, more = x.round(), {name: value.round() for name, value in more.items()}  # many sums are exactly 0
    assert_same(kind, x, indptr, indices, more, 1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("self_loops", [False, True])
def test_gradcheck(kind, self_loops):
    indptr, indices = csr([2, 0, 3, 1], 5, seed=3)
    x, more = inputs(kind, 4, 5, 2, 3)
    ours, _ = both(kind)
    leaves = [x, *more.values()]
    for leaf in leaves:
        leaf.requires_grad_()

    def run(x, *values):
        options = {"self_loops": self_loops, "dropout": 0.3, "seed": 4}
        return ours(x, indptr, indices, **dict(zip(more, values, strict=True)), **options)

    assert torch.autograd.gradcheck(run, leaves)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_agrees_with_fp64(kind, dtype):
    indptr, indices = csr([5, 1, 0, 20], 9, dtype=torch.int64)
    x, more = inputs(kind, 4, 9, 4, 16, dtype)
    assert_same(kind, x, indptr, indices, more, TYPES[dtype], self_loops=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("degree", [40, 300])
def test_gradients_of_short_rows_that_cancel_are_as_exact_as_those_of_fp32(dtype, dropout, degree):
    indptr, indices = csr([degree] * 3, 50)
    x, more = inputs("gat", 3, 50, 2, 16, dtype)
    more = {name: value.float() + 9 for name, value in more.items()}  # all scores rise alike: the target's gradient is 0
    grads = []
    for rows in (x, x.float()):
        leaves = {name: value.clone().requires_grad_() for name, value in more.items()}
        out = attend(rows, indptr, indices, **leaves, dropout=dropout)
        grads.append(torch.autograd.grad(out, leaves.values(), torch.ones_like(out)))
    for short, exact in zip(*grads, strict=True):
        torch.testing.assert_close(short, exact, rtol=1e-4, atol=1e-5)


def test_exp_is_exact_to_a_few_units_in_the_last_place():
    below = torch.linspace(0, 80, 20_001)
    rows = len(below)
    x = torch.zeros(2 * rows, 1, 1)
    x[1::2] = 1  # each row has a score of 0 and one below it, and gives the second's coefficient
    source = torch.zeros(2 * rows, 1)
    source[1::2, 0] = -below
    out = attend(x, 2 * torch.arange(rows + 1), torch.arange(2 * rows), source=source, target=torch.zeros(rows, 1), slope=1.0)
    exact = torch.sigmoid(-below.double())
    assert float(((out.flatten().double() - exact) / exact).abs().max()) < 5e-7


@pytest.mark.parametrize("kind", KINDS)
def test_a_hub_of_a_hundred_thousand_entries(kind):
    indptr, indices = csr([2, 100_000, 3], 5_000)
    x, more = inputs(kind, 3, 5_000, 2, 8)
    assert_same(kind, x, indptr, indices, more, 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hub_among_the_sources(kind):
    indptr, indices = csr([1] * 20_000, 1)
    x, more = inputs(kind, 20_000, 3, 1, 5)
    assert_same(kind, x, indptr, indices, more, 1e-11)


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
def test_a_nan_stays_in_its_rows_and_its_head(kind):
    indptr, indices = torch.tensor([0, 2, 4, 5]), torch.tensor([0, 1, 2, 3, 1])
    x, more = inputs(kind, 3, 4, 3, 5, torch.float32)
    x[0, 1, 2] = float("nan")
    ours, reference = both(kind)
    out, truth = ours(x, indptr, indices, **more), reference(x, indptr, indices, **more)
    assert truth.isnan().any()
    torch.testing.assert_close(out, truth, equal_nan=True)


def test_what_is_kept_of_an_empty_row_is_finite():
    x, source, target = torch.randn(4, 2, 3), torch.randn(4, 2), torch.randn(3, 2)
    arguments = (x, torch.tensor([0, 0, 2, 2]), torch.tensor([1, 3]), source, target, *[None] * 5, 0, 0.2, False, 0.0, 0, 1)
    out, peak = torch.ops.headrace.attend(*arguments)
    assert out[0].tolist() == out[2].tolist() == [[0] * 3] * 2
    assert torch.isfinite(peak).all()


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_without_rows_or_entries(kind):
    for degrees in ([], [0, 0]):
        indptr, indices = csr(degrees, 1)
        x, more = inputs(kind, len(degrees), 3, 2, 4)
        assert_same(kind, x, indptr, indices, more, 1e-12)
        assert_same(kind, x, indptr, indices, more, 1e-12, self_loops=True)


@pytest.mark.parametrize("kind", KINDS)
def test_wide_indices_strided_arguments_and_other_types_change_nothing(kind):
    indptr, indices = csr([5, 0, 8], 10)
    x, more = inputs(kind, 3, 10, 2, 6, torch.float32)
    ours, _ = both(kind)
    out = ours(x, indptr, indices, **more)
    strided = {name: torch.stack([value, value], -1)[..., 0] for name, value in more.items()}
    assert torch.equal(ours(x, indptr, indices.long(), **more), out)
    assert torch.equal(ours(torch.stack([x, x], -1)[..., 0], torch.stack([indptr] * 2).T[:, 0], indices, **strided), out)
    other = {name: value.double().requires_grad_() for name, value in more.items()}
    result = ours(x, indptr, indices, **other)
    assert torch.equal(result, out)
    result.sum().backward()
    assert all(value.grad.dtype == torch.float64 for value in other.values())


@pytest.mark.parametrize("kind", KINDS)
def test_each_gradient_alone_is_that_of_all(kind):
    indptr, indices = csr([5, 0, 8, 2], 10)
    x, more = inputs(kind, 4, 10, 3, 6, torch.float32)
    ours, _ = both(kind)
    all_of_them = outputs_and_gradients(ours, x, indptr, indices, more, self_loops=True)
    weight = torch.linspace(-1, 1, all_of_them["out"].numel()).view_as(all_of_them["out"])
    for name in ("x", *more):
        leaves = {"x": x, **more}
        leaves[name] = leaves[name].clone().requires_grad_()
        out = ours(leaves["x"], indptr, indices, **{n: leaves[n] for n in more}, self_loops=True)
        (grad,) = torch.autograd.grad(out, leaves[name], weight)
        torch.testing.assert_close(grad, all_of_them[name], rtol=1e-5, atol=1e-6)
    assert not ours(x, indptr, indices, **more).requires_grad


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
    mask = _factors(torch.arange(50_000), 8, 0.3, 5) > 0
    assert abs(float(mask.float().mean()) - 0.7) < 0.005
    assert abs(float((mask[:, 0] & mask[:, 1]).float().mean()) - 0.49) < 0.01
    assert abs(float((mask[1:] & mask[:-1]).float().mean()) - 0.49) < 0.01


def test_the_mask_depends_on_seed_position_and_head_alone():
    def mask(positions, heads, seed):
        return _factors(torch.arange(positions), heads, 0.5, seed) > 0

    assert torch.equal(mask(1_000, 9, 3)[:500, :2], mask(500, 2, 3))
    assert not torch.equal(mask(500, 2, 3), mask(500, 2, 4))


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_keeps_the_mean(kind):
    indptr, indices = csr([10, 10], 20)
    x, more = inputs(kind, 2, 20, 1, 3)
    ours, _ = both(kind)
    mean = sum(ours(x, indptr, indices, **more, dropout=0.5, seed=seed) for seed in range(2_000)) / 2_000
    torch.testing.assert_close(mean, ours(x, indptr, indices, **more), rtol=0, atol=0.1)


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
    arguments = [x.requires_grad_(), indptr, indices, *(v.requires_grad_() for v in more.values()), *[None] * 5, 0]
    torch.library.opcheck(op.default, (*arguments, 0.2, True, 0.3, 7, 1))
    detached = [a.detach() if isinstance(a, torch.Tensor) else a for a in arguments]
    out, peak = op(*detached, 0.2, True, 0.3, 7, 1)
    backward = torch.ops.headrace.attend_backward if kind == "gat" else torch.ops.headrace.attend_pairs_backward
    for needed in ((True, True, True), (False, True, False)):
        torch.library.opcheck(backward.default, (torch.ones_like(out), out, peak, *detached, 0.2, True, 0.3, 7, 1, *needed))


@pytest.mark.parametrize("kind", KINDS)
def test_it_compiles_as_one_graph(kind):
    indptr, indices = csr([3, 0, 4], 5)
    x, more = inputs(kind, 3, 5, 2, 4, torch.float32)
    ours, _ = both(kind)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(x, **more):
        return ours(2 * x, indptr, indices, **more, self_loops=True, dropout=0.2, seed=3)

    leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    out = layer(leaf, **more)
    truth = ours(2 * other, indptr, indices, **more, self_loops=True, dropout=0.2, seed=3)
    assert torch.equal(out, truth)
    assert torch.equal(*(torch.autograd.grad(o.sum(), v)[0] for o, v in ((out, leaf), (truth, other))))


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_one_bad_entry_among_many_is_found(kind, index_dtype):
    indptr, indices = csr([50] * 400, 40, dtype=index_dtype)
    x, more = inputs(kind, 400, 40, 2, 8, torch.float32)
    ours, _ = both(kind)
    for at, value in ((0, 40), (10_000, -1), (19_999, 2**31 - 1)):
        wrong = indices.clone()
        wrong[at] = value
        with pytest.raises(ValueError, match="indices holds values from"):
            ours(x, indptr, wrong, **more, threads=2)
    for at, value in ((0, 1), (1, -1), (200, 20_001), (399, 0), (400, 19_999)):
        wrong = indptr.clone()
        wrong[at] = value
        with pytest.raises(ValueError, match="indptr"):
            ours(x, wrong, indices, **more, threads=2)


def test_a_reverse_of_another_graph_is_refused():
    graph = hr.Graph.from_edges([0, 1, 1], [1, 0, 2], 3)
    x, more = inputs("gat", 3, 3, 1, 2)
    with pytest.raises(ValueError, match="reverse has 2 entries"):
        attend(x, graph.indptr, graph.indices, **more, reverse=hr.Graph.from_edges([0, 1], [1, 0], 3).reverse())


# ---- native calls


def native_arguments(kind, heads, channels, dtype="f4", array=lambda a: a):
    """All arguments of the two native functions, outputs poisoned with NaN."""
    degrees, columns = [3, 0, 130, 1, 2], 9
    indptr, indices = (array(a.numpy()) for a in csr(degrees, columns))
    wide, rows = "f8" if dtype == "f8" else "f4", len(degrees)

    def made(*shape, of=wide, value=None):
        return array(np.full(shape, value, of) if value is not None else np.random.default_rng(0).normal(size=shape).astype(of))

    nan = float("nan")
    x = made(columns, heads, channels, of=dtype)
    if kind == "gat":
        more = {"source": made(columns, heads), "target": made(rows, heads), "attention": None}
        grads = {
            "grad_source": made(columns, heads, value=nan),
            "grad_target": made(rows, heads, value=nan),
            "grad_attention": None,
        }
    else:
        more = {"source": None, "target": made(rows, heads, channels, of=dtype), "attention": made(heads, channels)}
        grads = {
            "grad_source": None,
            "grad_target": made(rows, heads, channels, of=dtype, value=nan),
            "grad_attention": made(heads, channels, value=nan),
        }
    out, peak = made(rows, heads, channels, of=dtype, value=nan), made(rows, 2, heads, value=nan)
    options = {"slope": 0.2, "self_loops": True, "dropout": 0.3, "seed": 1, "threads": 1, "whole_entries": 2**40}
    options |= {name: array(np.arange(rows) + 2**33) for name in ("shift", "whole_rows")}
    forward = {"x": x, "indptr": indptr, "indices": indices, "out": out, "peak": peak, **more, **options}
    t = [array(a) for a in _native.transpose_csr(indptr, indices, columns, positions=True, threads=1)]
    transposed = dict(zip(("t_indptr", "t_indices", "t_position"), t, strict=True))
    grad_x = made(columns, heads, channels, of=dtype, value=nan)
    backward = {"grad": made(rows, heads, channels, of=dtype), **forward, **transposed, "grad_x": grad_x, **grads}
    return forward, backward


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("channels", [1, 7, 16, 47])
def test_poisoned_outputs_are_fully_written(kind, heads, channels):
    forward, backward = native_arguments(kind, heads, channels)
    _native.attend(**forward)
    _native.attend_gradient(**backward)
    written = ["out", "peak", "grad_x", "grad_source", "grad_target", "grad_attention"]
    assert all(np.isfinite(backward[name]).all() for name in written if backward[name] is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_native_arguments_are_refused(kind):
    _, backward = native_arguments(kind, 2, 4)
    _native.attend(**native_arguments(kind, 2, 4)[0])
    refused = 0
    for call in (_native.attend, _native.attend_gradient):
        names = native_arguments(kind, 2, 4)[call is _native.attend_gradient]
        for name, good in names.items():
            if not isinstance(good, np.ndarray):
                continue
            other_shapes = [good[..., None].copy(), good.reshape(-1)[:-1].copy(), np.zeros((0,) * good.ndim, good.dtype)]
            for wrong in [*other_shapes, np.zeros(good.shape, "u1"), np.stack([good, good], -1)[..., 0]]:
                with pytest.raises((ValueError, TypeError)):
                    call(**(names | {name: wrong}))
                refused += 1
        for wrong in (
            {"dropout": 1.0},
            {"dropout": -0.1},
            {"dropout": float("nan")},
            {"seed": -1},
            {"source": None, "attention": None},
        ):
            with pytest.raises((ValueError, TypeError)):
                call(**(names | wrong))
    for name in ("t_indptr", "t_indices"):
        wrong = backward[name].copy()
        wrong[len(wrong) // 2] = 1_000
        with pytest.raises(ValueError, match="out of range"):
            _native.attend_gradient(**(backward | {name: wrong}))
    assert refused > 60


_kept = []


def guarded(array):
    """A copy of `array` that ends at a page nobody may touch: one byte too far is a crash, and not a silent read."""
    pages = -(-max(array.nbytes, 1) // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert mprotect(address + pages * mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
    flat = np.frombuffer(memory, np.uint8, array.nbytes, pages * mmap.PAGESIZE - array.nbytes)
    copy = flat.view(array.dtype).reshape(array.shape)
    copy[...] = array
    _kept.append((memory, copy))  # a mapping that is freed could be reused, and hide a late write
    if len(_kept) > 2_000:
        del _kept[:1_000]
    return copy


def guarded_calls():
    for kind in KINDS:
        for dtype in ("f4", "f8", "f2"):
            for heads in (1, 2, 3, 5, 8, 17):
                for channels in [*range(1, 10), 15, 16, 17, 31, 33, 47, 64]:
                    forward, backward = native_arguments(kind, heads, channels, dtype, guarded)
                    _native.attend(**forward)
                    _native.attend_gradient(**backward)


def test_calls_touch_nothing_outside_their_arrays():
    done = run_python(__file__)
    assert done.returncode == 0, done.stderr[-2_000:]


DIGEST = """
import hashlib, torch, headrace as hr
from headrace import _native
from headrace.kernels import Whole, attend, attend_pairs
graph = hr.generate.community(300, 9000, features=0, seed=2).graph
digest = hashlib.sha256()
torch.manual_seed(0)
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
    for heads, channels in ((1, 3), (8, 8), (3, 7), (4, 16), (1, 47), (2, 40), (18, 2)):
        x = torch.randn(300, heads, channels).to(dtype)
        gat = (attend, [x, torch.randn(300, heads), torch.randn(300, heads)], ("source", "target"))
        v2 = (attend_pairs, [x, torch.randn(300, heads, channels).to(dtype), torch.randn(heads, channels)], ("target", "attention"))
        for function, leaves, names in (gat, v2):
            leaves = [leaf.clone().requires_grad_() for leaf in leaves]
            options = dict(zip(names, leaves[1:]), self_loops=True, dropout=0.2, seed=heads)
            if heads % 2:
                options["whole"] = Whole(torch.arange(300) + 2**33, graph.indptr[:-1] + 2**33, 2**40)
            out = function(leaves[0], graph.indptr, graph.indices, **options)
            for tensor in (out, *torch.autograd.grad(out, leaves, torch.randn(out.shape).to(dtype))):
                digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
print(_native.level, digest.hexdigest())
"""


@pytest.mark.skipif(_native.level == "baseline", reason="needs a processor with AVX2: this one runs the baseline only")
def test_every_instruction_set_gives_the_same_bits():
    assert_same_digest_on_every_level("-c", DIGEST)


if __name__ == "__main__":
    guarded_calls()
