"""`aggregate` against its plain-torch reference, gradients included, on awkward graphs; and native calls that must not crash.

Most tests use small whole numbers and weights that are powers of two: sums are exact then, whatever their order, so results must
be equal to the last bit. Run as a script, this file feeds wrong arguments to one native function: `test_aggregate.py <name>`.
"""

import ctypes
import mmap
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from child import assert_same_digest_on_every_level, run_python
from headrace import _native
from headrace.kernels import aggregate, aggregate_reference

WIDTHS = [1, 3, 15, 16, 17, 47, 64, 100, 128, 129, 144, 145, 602]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
REDUCES = ["sum", "mean", "max"]
EPSILON = {torch.float32: 2**-23, torch.float64: 2**-52, torch.bfloat16: 2**-7, torch.float16: 2**-10}
COLUMNS = 40


def csr_of(degrees, seed=0, columns=COLUMNS):
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    return indptr, torch.from_numpy(np.random.default_rng(seed).integers(0, columns, int(indptr[-1])))


AWKWARD = {
    "ordinary": [3, 1, 4, 1, 5, 9, 2, 6],
    "empty rows": [0, 0, 5, 0, 3, 0, 0],
    "isolated last": [2, 2, 0],
    "one entry": [1],
    "one long row": [300],  # many repeated neighbors
    "no entries": [0, 0, 0],
    "no rows": [],
    "past a window": [2_047, 1, 2_048, 2_049, 0, 4_097],  # 2048 entries are looked up at a time
}


def whole(shape, dtype, seed=0, low=-4, high=5):
    return torch.from_numpy(np.random.default_rng(seed).integers(low, high, shape)).to(dtype)


def powers(count, dtype, seed=0):
    """Weights that keep whole numbers exact."""
    return torch.from_numpy(np.random.default_rng(seed).choice([0.5, 1.0, 2.0, -1.0], count)).to(dtype)


def with_gradients(function, x, indptr, indices, grad, weight=None, **options):
    x = x.clone().requires_grad_()
    weight = None if weight is None else weight.clone().requires_grad_()
    out = function(x, indptr, indices, weight=weight, **options)
    wanted = [x] if weight is None else [x, weight]
    return [out.detach(), *torch.autograd.grad(out, wanted, grad)]


def assert_close(ours, truth, ulps):
    """Equal, or for `ulps` > 0 within that many rounding steps of the largest number."""
    assert ours.dtype == truth.dtype
    assert ours.shape == truth.shape
    if ulps == 0:
        assert torch.equal(ours, truth)
    else:
        step = ulps * EPSILON[ours.dtype]
        torch.testing.assert_close(ours, truth, rtol=step, atol=step * float(truth.abs().max()) if truth.numel() else 0)


def check_against_reference(x, indptr, indices, reduce, weight, ids=None, ulps=0):
    grad = whole((len(indptr) - 1, *x.shape[1:]), x.dtype, seed=9)
    ours = with_gradients(aggregate, x, indptr, indices, grad, weight, reduce=reduce, ids=ids, threads=2)
    truth = with_gradients(aggregate_reference, x, indptr, indices, grad, weight, reduce=reduce, ids=ids)
    for a, b in zip(ours, truth, strict=True):
        assert_close(a, b, ulps)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_sum_and_max_equal_the_reference_for_every_width(dtype, width):
    indptr, indices = csr_of(AWKWARD["ordinary"] + AWKWARD["empty rows"] + [100, 0])
    x = whole((COLUMNS, width), dtype)
    for reduce in ("sum", "max"):
        for weight in (None, powers(len(indices), torch.float64 if dtype == torch.float64 else torch.float32)):
            check_against_reference(x, indptr, indices.int(), reduce, weight)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("width", [1, 17, 47, 129])
@pytest.mark.parametrize("weighted", [False, True])
def test_mean_equals_the_reference_but_for_rounding(dtype, width, weighted):
    indptr, indices = csr_of(AWKWARD["ordinary"] + AWKWARD["empty rows"])
    x = whole((COLUMNS, width), dtype, low=1)  # one sign, and so no cancellation that would magnify rounding
    weight = torch.rand(len(indices), dtype=torch.float64 if dtype == torch.float64 else torch.float32) if weighted else None
    grad = whole((len(indptr) - 1, width), dtype, seed=9, low=1)
    ours = with_gradients(aggregate, x, indptr, indices, grad, weight, reduce="mean")
    truth = with_gradients(aggregate_reference, x, indptr, indices, grad, weight, reduce="mean")
    for a, b in zip(ours, truth, strict=True):
        assert_close(a, b, 4 if a.dtype in (torch.bfloat16, torch.float16) else 16)


@pytest.mark.parametrize("degrees", AWKWARD.values(), ids=AWKWARD.keys())
@pytest.mark.parametrize("reduce", ["sum", "max"])
@pytest.mark.parametrize("ids_dtype", [None, torch.int32, torch.int64])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_awkward_rows_equal_the_reference(degrees, reduce, ids_dtype, index_dtype):
    indptr, indices = csr_of(degrees)
    ids = None if ids_dtype is None else whole(COLUMNS, ids_dtype, seed=3, low=0, high=7)  # repeated, and rows 7 to 9 unused
    x = whole((COLUMNS if ids is None else 10, 5), torch.float32)
    for weight in (None, powers(len(indices), torch.float32)):
        check_against_reference(x, indptr, indices.to(index_dtype), reduce, weight, ids)


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("width", [1, 47, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_hub_of_100_000_equals_the_reference(reduce, width, dtype):
    indptr, indices = csr_of([5, 100_000, 0, 7], columns=3_000)
    x = whole((3_000, width), dtype, low=0, high=4)  # the sum stays below 2^24: exact
    check_against_reference(
        x, indptr, indices.int(), reduce, powers(len(indices), torch.float32), ulps=0 if reduce != "mean" else 4
    )


def test_a_hub_among_the_sources_gets_every_gradient():
    indptr, _ = csr_of([1] * 100_000)
    x = torch.ones(3, 2)
    indices = torch.full((100_000,), 1, dtype=torch.int32)
    _, grad = with_gradients(aggregate, x, indptr, indices, torch.ones(100_000, 2), reduce="sum", threads=2)
    assert grad.tolist() == [[0, 0], [100_000, 100_000], [0, 0]]


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    degrees=st.lists(st.integers(0, 9), max_size=12),
    columns=st.integers(1, 9),
    width=st.integers(1, 40),
    dtype=st.sampled_from(FLOATS),
    reduce=st.sampled_from(["sum", "max"]),
    weighted=st.booleans(),
    use_ids=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_graph_equals_the_reference(degrees, columns, width, dtype, reduce, weighted, use_ids, seed):
    indptr, indices = csr_of(degrees, seed, columns)
    ids = whole(columns, torch.int64, seed, 0, 5) if use_ids else None
    x = whole((5 if use_ids else columns, width), dtype, seed)
    weight = powers(len(indices), torch.float64 if dtype == torch.float64 else torch.float32, seed) if weighted else None
    check_against_reference(x, indptr, indices, reduce, weight, ids)


@pytest.mark.parametrize("reduce", REDUCES)
def test_rows_may_be_vectors_or_have_more_dimensions(reduce):
    indptr, indices = csr_of(AWKWARD["ordinary"])
    for shape in ((COLUMNS,), (COLUMNS, 3, 4), (COLUMNS, 2, 1, 5), (COLUMNS, 0)):
        x = whole(shape, torch.float64)
        out = aggregate(x, indptr, indices, reduce=reduce)
        assert out.shape == (8, *shape[1:])
        torch.testing.assert_close(out, aggregate_reference(x, indptr, indices, reduce=reduce))


def test_x_without_rows_gives_zeros():
    out = aggregate(torch.zeros(0, 3), torch.zeros(5, dtype=torch.int64), torch.zeros(0, dtype=torch.int32))
    assert out.tolist() == [[0] * 3] * 4


def test_strided_arguments_are_the_same_as_dense_ones():
    indptr, indices = csr_of(AWKWARD["ordinary"])
    x, weight = whole((3, COLUMNS), torch.float32).T, powers(2 * len(indices), torch.float32)[::2]
    out = aggregate(x, torch.stack([indptr, indptr]).T[:, 0], torch.stack([indices, indices]).T[:, 0], weight=weight)
    assert torch.equal(out, aggregate_reference(x, indptr, indices, weight=weight))


@pytest.mark.parametrize("weight_dtype", [torch.float16, torch.float64, torch.int64])
def test_weights_of_another_type_get_a_gradient_in_their_own(weight_dtype):
    indptr, indices = csr_of(AWKWARD["ordinary"])
    x, weight = whole((COLUMNS, 3), torch.float32), whole(len(indices), weight_dtype)
    assert torch.equal(aggregate(x, indptr, indices, weight=weight), aggregate_reference(x, indptr, indices, weight=weight))
    if weight_dtype.is_floating_point:
        assert with_gradients(aggregate, x, indptr, indices, torch.ones(8, 3), weight)[2].dtype == weight_dtype


def test_rows_past_two_to_the_31_elements(tmp_path):
    rows, width = (1 << 31) // 32 + 8, 32  # 4 GiB of holes
    (tmp_path / "holes").touch()
    memory = np.memmap(tmp_path / "holes", np.float16, "r+", shape=(rows, width))
    memory[rows - 1], memory[rows - 2], memory[3] = 2, 5, 7
    x = torch.from_numpy(memory)
    indices = torch.tensor([rows - 1, 3, rows - 2], dtype=torch.int32)
    assert aggregate(x, torch.tensor([0, 2, 3]), indices)[:, 0].tolist() == [9, 5]
    assert aggregate(x, torch.tensor([0, 3]), torch.tensor([0, 1, 2]), ids=indices.long(), reduce="max")[0, 31] == 7


# ---- what the reference says about max, mean and special numbers


def test_max_takes_the_first_of_equal_entries():
    x = torch.tensor([[1.0], [2.0], [2.0]])
    indptr, indices = torch.tensor([0, 4]), torch.tensor([0, 2, 1, 2])
    _, grad = with_gradients(aggregate, x, indptr, indices, torch.ones(1, 1), reduce="max")
    assert grad.flatten().tolist() == [0, 0, 1]


def test_max_of_negative_numbers_is_negative_and_of_nothing_zero():
    x = torch.tensor([[-3.0], [-2.0]])
    assert aggregate(x, torch.tensor([0, 2, 2]), torch.tensor([0, 1]), reduce="max").tolist() == [[-2], [0]]


def test_weighted_max_compares_weighted_values():
    x, weight = torch.tensor([[1.0], [2.0]]), torch.tensor([5.0, -1.0])
    out, grad_x, grad_weight = with_gradients(
        aggregate, x, torch.tensor([0, 2]), torch.tensor([0, 1]), torch.ones(1, 1), weight, reduce="max"
    )
    assert out.item() == 5
    assert grad_x.flatten().tolist() == [5, 0]
    assert grad_weight.tolist() == [1, 0]


def test_mean_divides_by_entries_and_not_by_weights():
    x, weight = torch.tensor([[4.0], [8.0]]), torch.tensor([3.0, 1.0])
    assert aggregate(x, torch.tensor([0, 2]), torch.tensor([0, 1]), weight=weight, reduce="mean").item() == 10


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("width", [3, 16, 33])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_nan_and_infinity_spread_as_in_the_reference(dtype, width, weighted, reduce):
    x = whole((COLUMNS, width), dtype)
    for row, value in ((1, float("nan")), (2, float("inf")), (3, -float("inf")), (4, torch.finfo(dtype).max)):
        x[row, row % width] = value
    indptr, indices = csr_of([4, 9, 2, 30, 1, 1, 1], columns=6)
    weight = powers(len(indices), torch.float64 if dtype == torch.float64 else torch.float32) if weighted else None
    ours = aggregate(x, indptr, indices, reduce=reduce, weight=weight)
    truth = aggregate_reference(x, indptr, indices, reduce=reduce, weight=weight)
    assert truth.isnan().any()
    torch.testing.assert_close(ours, truth, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_max_with_infinity_equals_the_reference(dtype):
    x = whole((6, 5), dtype)
    x[2], x[3] = float("inf"), -float("inf")
    indptr, indices = torch.tensor([0, 2, 4, 5, 7]), torch.tensor([2, 3, 1, 2, 3, 3, 3])
    check_against_reference(x, indptr, indices, "max", None)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_max_with_a_nan_is_nan_as_in_torch(dtype, at):
    x = torch.tensor([[1.0], [5.0], [3.0]], dtype=dtype)
    x[at] = float("nan")
    out, grad = with_gradients(
        aggregate, x, torch.tensor([0, 3]), torch.tensor([0, 1, 2]), torch.ones(1, 1, dtype=dtype), reduce="max"
    )
    assert out.isnan().all()
    assert grad.flatten().tolist() == [float(i == at) for i in range(3)]


def test_the_reference_of_max_with_a_nan_is_nan():
    x = torch.tensor([[1.0], [float("nan")]])
    assert aggregate_reference(x, torch.tensor([0, 2]), torch.tensor([0, 1]), reduce="max").isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [5, 16, 37])
@pytest.mark.parametrize("weighted", [False, True])
def test_short_floats_are_summed_in_fp32_and_rounded_once(dtype, width, weighted):
    x = torch.rand(COLUMNS, width).add(0.5).to(dtype)
    indptr, indices = csr_of([3_000, 17, 1_000])
    weight = torch.rand(len(indices)) if weighted else None
    exact = aggregate_reference(x.double(), indptr, indices, weight=None if weight is None else weight.double())
    out = aggregate(x, indptr, indices, weight=weight)
    torch.testing.assert_close(out.double(), exact, rtol=0.5001 * EPSILON[dtype] + 1e-4, atol=0)
    # and rounded to nearest, to even: from whole sums there is one right answer
    sums = aggregate_reference((x * 64).round().double(), indptr, indices)
    assert torch.equal(aggregate((x * 64).round(), indptr, indices), sums.to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [3, 16])
def test_every_short_float_survives_the_way_through_fp32(dtype, width):
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    rows = len(bits) // width
    x = bits[: rows * width].view(rows, width)
    out = aggregate(x, torch.arange(rows + 1), torch.arange(rows))
    same = (out == x) | (out.isnan() & x.isnan())
    assert same.all()


def test_the_gradient_of_repeated_ids_is_summed_in_fp32():
    x = torch.zeros(2, 3, dtype=torch.bfloat16)
    ids = torch.zeros(1_000, dtype=torch.int64)
    _, grad = with_gradients(aggregate, x, torch.arange(1_001), torch.arange(1_000), torch.ones(1_000, 3).bfloat16(), ids=ids)
    assert grad[0].tolist() == [1_000] * 3


# ---- gradients


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("use_ids", [False, True])
@pytest.mark.parametrize("width", [2, 9])
def test_gradcheck(reduce, use_ids, width):
    indptr, indices = csr_of([2, 0, 3, 1, 0], columns=5)
    ids = torch.tensor([3, 0, 3, 1, 2]) if use_ids else None
    x = torch.randn(5, width, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(len(indices), dtype=torch.float64).add_(0.5).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: aggregate(x, indptr, indices, reduce=reduce, weight=w, ids=ids), (x, weight))
    assert torch.autograd.gradcheck(lambda x: aggregate(x, indptr, indices, reduce=reduce, ids=ids), x)
    fixed = x.detach()
    assert torch.autograd.gradcheck(lambda w: aggregate(fixed, indptr, indices, reduce=reduce, weight=w, ids=ids), weight)


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_graphs_own_reverse_gives_the_same_gradient(reduce, dtype):
    random = np.random.default_rng(4)
    graph = hr.Graph.from_edges(*random.integers(0, 300, (2, 5_000)), 300)
    x, grad = torch.randn(300, 21, dtype=dtype), torch.randn(300, 21, dtype=dtype)
    for weight in (None, torch.rand(5_000)):
        own, given = (
            with_gradients(aggregate, x, graph.indptr, graph.indices, grad, weight, reduce=reduce, reverse=r)
            for r in (None, graph.reverse())
        )
        for a, b in zip(own, given, strict=True):
            assert torch.equal(a, b)


def test_a_block_serves_as_rows_without_a_permutation():
    graph = hr.generate.community(500, 5_000, features=0).graph
    block = hr.sample.NeighborSampler(graph, [4, 3]).sample([1, 2, 3]).blocks[-1]
    x, grad = torch.randn(block.num_src, 6), torch.randn(block.num_dst, 6)
    ours = with_gradients(aggregate, x, block.indptr, block.indices, grad, reduce="mean")
    truth = with_gradients(aggregate_reference, x, block.indptr, block.indices, grad, reduce="mean")
    for a, b in zip(ours, truth, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("use_ids", [False, True])
def test_forward_and_backward_have_the_same_bits_for_any_number_of_threads(reduce, dtype, use_ids):
    random = np.random.default_rng(5)
    degrees = [*random.integers(0, 40, 1_500).tolist(), 20_000, *random.integers(0, 5, 1_500).tolist()]
    indptr, indices = csr_of(degrees, columns=2_000)
    ids = torch.from_numpy(random.integers(0, 900, 2_000)) if use_ids else None
    x, grad = torch.randn(2_000, 19).to(dtype), torch.randn(len(degrees), 19).to(dtype)
    weight = torch.randn(len(indices), dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    runs = [with_gradients(aggregate, x, indptr, indices, grad, weight, reduce=reduce, ids=ids, threads=t) for t in (1, 2, 7)]
    for run in runs[1:]:
        for a, b in zip(run, runs[0], strict=True):
            assert torch.equal(a, b)


def test_nothing_is_differentiated_that_does_not_ask_for_it():
    indptr, indices = csr_of([2, 1], columns=3)
    weight = torch.ones(3, requires_grad=True)
    aggregate(torch.randn(3, 2), indptr, indices, weight=weight).sum().backward()
    assert weight.grad is not None
    assert not aggregate(torch.randn(3, 2), indptr, indices).requires_grad


# ---- factors of sources and of rows


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("use_ids", [False, True])
@pytest.mark.parametrize("which", ["scale", "row_scale", "both"])
def test_factors_equal_the_reference_and_swap_in_the_gradient(reduce, weighted, use_ids, which):
    graph = hr.Graph.from_edges(*np.random.default_rng(1).integers(0, COLUMNS, (2, 400)), COLUMNS)
    factors = {name: powers(COLUMNS, torch.float32, seed) for seed, name in enumerate(("scale", "row_scale"))}
    factors = {name: f for name, f in factors.items() if which in (name, "both")}
    ids = whole(COLUMNS, torch.int64, seed=3, low=0, high=7) if use_ids else None
    x, grad = torch.randn(COLUMNS, 17), torch.randn(COLUMNS, 17)
    weight = torch.rand(400) if weighted else None
    truth = with_gradients(aggregate_reference, x, graph.indptr, graph.indices, grad, weight, reduce=reduce, ids=ids, **factors)
    for reverse in (None, graph.reverse()):
        options = {"reduce": reduce, "ids": ids, "reverse": reverse, **factors}
        for a, b in zip(with_gradients(aggregate, x, graph.indptr, graph.indices, grad, weight, **options), truth, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)


def test_gcns_norm_is_two_factors():
    graph = hr.generate.community(300, 3_000, features=0).graph
    x, norm = torch.randn(300, 9, dtype=torch.float64), graph.degrees().clamp_min(1).double().rsqrt()
    rows = torch.repeat_interleave(torch.arange(300), graph.degrees())
    weighted = aggregate(x, graph.indptr, graph.indices, weight=norm[rows] * norm[graph.indices.long()])
    torch.testing.assert_close(aggregate(x, graph.indptr, graph.indices, scale=norm, row_scale=norm), weighted)


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_symmetric_graph_is_its_own_reverse(reduce, weighted):
    source, target = np.random.default_rng(2).integers(0, 50, (2, 300))
    graph = hr.Graph.from_edges(source, target, 50, undirected=True)
    x, grad = torch.randn(50, 6), torch.randn(50, 6)
    weight = torch.rand(graph.num_edges) if weighted else None
    aliased = with_gradients(aggregate, x, graph.indptr, graph.indices, grad, weight, reduce=reduce, reverse=graph)
    for a, b in zip(aliased, with_gradients(aggregate, x, graph.indptr, graph.indices, grad, weight, reduce=reduce), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)  # rows are in another order


def test_wrong_factors_are_named():
    indptr, indices = csr_of([2, 1], columns=3)
    x = torch.zeros(3, 2)
    with pytest.raises(ValueError, match=r"row_scale must have one number per row, \[2\] for 2 rows, not \[3\]"):
        aggregate(x, indptr, indices, row_scale=torch.ones(3))
    with pytest.raises(ValueError, match="scale goes with reduce='sum' or 'mean'"):
        aggregate(x, indptr, indices, scale=torch.ones(3), reduce="max")


def test_launch_and_prepared_change_nothing_on_the_cpu():
    indptr, indices = csr_of(AWKWARD["ordinary"])
    x = torch.randn(COLUMNS, 5)
    launched = aggregate(x, indptr, indices, launch=hr.kernels.Launch("split", group=2))
    assert torch.equal(launched, aggregate(x, indptr, indices))


# ---- native calls


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("width", [1, 15, 17, 129, 145])
@pytest.mark.parametrize("degrees", AWKWARD.values(), ids=AWKWARD.keys())
def test_poisoned_outputs_are_fully_written(reduce, width, degrees):
    indptr, indices = csr_of(degrees)
    x = whole((COLUMNS, width), torch.float32)
    out = torch.full((len(degrees), width), float("nan"))
    where = torch.full((len(degrees), width), -12345, dtype=torch.int32)
    _native.aggregate(x, indptr, indices, out, reduce, ids=None, weight=None, position=None, scale=None, where=where, threads=2)
    torch.testing.assert_close(out, aggregate_reference(x, indptr, indices, reduce=reduce))
    if reduce == "max":
        degree = indptr.diff().unsqueeze(1)
        assert ((where >= 0) & (where < degree) | (degree == 0) & (where == -1)).all()
        t_indptr, t_indices, permutation = _native.transpose_csr(indptr, indices, COLUMNS, positions=True, threads=1)
        grad, grad_x = whole(out.shape, torch.float32, seed=1), torch.full_like(x, float("nan"))
        _native.max_gradient(grad, t_indptr, t_indices, permutation, indptr, where, grad_x, weight=None, threads=2)
        assert not grad_x.isnan().any()
    dots = torch.full((len(indices),), float("nan"))
    _native.weight_gradient(x, indptr, indices, torch.ones_like(out), dots, ids=None, row_scale=None, where=None, threads=2)
    assert torch.equal(dots, x.sum(1)[indices])


def test_position_and_scale_choose_and_scale_weights():
    x, indptr = torch.tensor([[1.0], [10.0], [100.0]]), torch.tensor([0, 2, 3])
    indices, position = torch.tensor([0, 2, 1]), torch.tensor([2, 0, 1], dtype=torch.int32)
    out = torch.empty(2, 1)
    weight, scale = torch.tensor([2.0, 3.0, 5.0]), torch.tensor([7.0, 11.0, 13.0])
    _native.aggregate(
        x, indptr, indices, out, "sum", ids=None, weight=weight, position=position, scale=scale, where=None, threads=1
    )
    assert out.flatten().tolist() == [5 * 7 * 1 + 2 * 13 * 100, 3 * 11 * 10]


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("variant", ["plain", "weighted", "ids", "reverse", "scaled"])
def test_the_operators_are_well_formed(reduce, variant):
    graph = hr.Graph.from_edges([0, 1, 2, 2, 0], [1, 1, 0, 3, 3], 4)
    x = torch.randn(4, 3, requires_grad=True)
    weight = torch.rand(5, requires_grad=True) if variant == "weighted" else None
    ids = torch.tensor([3, 1, 1, 0]) if variant == "ids" else None
    scales = (torch.rand(4), torch.rand(4)) if variant == "scaled" and reduce != "max" else (None, None)
    reverse = graph.reverse()
    transposed = (reverse.indptr, reverse.indices, reverse.permutation) if variant == "reverse" else (None, None, None)
    plans, launches = ([torch.arange(3)], [torch.arange(2), torch.arange(1)]), ("row,512,128,8,2,16,1,3", "")
    arguments = (x, graph.indptr, graph.indices, weight, ids, *scales, *transposed, *plans, *launches, reduce, 1)
    torch.library.opcheck(torch.ops.headrace.aggregate, arguments)
    _, where = torch.ops.headrace.aggregate(*arguments)
    detached = [a.detach() if isinstance(a, torch.Tensor) else a for a in arguments[:10]]
    backward = (torch.randn(4, 3), *detached, plans[1], launches[1], where, reduce, True, weight is not None, 1)
    torch.library.opcheck(torch.ops.headrace.aggregate_backward, backward)


def two_layers(x, weight, indptr, indices):
    hidden = aggregate(x, indptr, indices, reduce="mean", weight=weight, threads=2).relu()
    return aggregate(hidden, indptr, indices, reduce="max", threads=2).pow(2).sum()


def test_compiled_equals_eager():
    graph = hr.Graph.from_edges(*np.random.default_rng(0).integers(0, 20, (2, 80)), 20)
    x, weight = torch.randn(20, 5, requires_grad=True), torch.rand(80, requires_grad=True)
    arguments = (x, weight, graph.indptr, graph.indices)
    function = torch.compile(two_layers, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(function(*arguments), two_layers(*arguments), rtol=0, atol=0)
    ours, truth = (torch.autograd.grad(f(*arguments), (x, weight)) for f in (function, two_layers))
    for a, b in zip(ours, truth, strict=True):
        assert torch.equal(a, b)


# ---- errors


def call(**changes):
    indptr, indices = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 2])
    arguments = {"x": torch.zeros(3, 4), "indptr": indptr, "indices": indices} | changes
    return aggregate(**arguments)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"reduce": "min"}, "reduce must be 'sum', 'mean' or 'max', not 'min'"),
        ({"x": torch.tensor(1.0)}, "x must have rows"),
        ({"x": torch.zeros(3, 4, dtype=torch.int64)}, "x must be float32, float64, float16 or bfloat16"),
        ({"x": torch.zeros(3, 4, dtype=torch.bool)}, "x must be float32"),
        ({"x": torch.zeros(3, 4, dtype=torch.complex64)}, "x must be float32"),
        ({"x": torch.zeros(2, 4)}, "index is out of range"),
        ({"indptr": torch.tensor([0, 2, 3], dtype=torch.int32)}, "indptr must be int64, not torch.int32"),
        ({"indptr": torch.zeros(0, dtype=torch.int64)}, "indptr must hold at least one element"),
        ({"indptr": torch.tensor([0, 4, 3])}, "indptr does not rise"),
        ({"indptr": torch.tensor([-1, 2, 3])}, "indptr must lie between 0 and the number of indices"),
        ({"indptr": torch.tensor([0, 2, 4])}, "indptr must lie between 0 and the number of indices"),
        ({"indices": torch.tensor([0, 1, 3])}, "index is out of range"),
        ({"indices": torch.tensor([0, -1, 2])}, "index is out of range"),
        ({"indices": torch.tensor([0, 1, 2], dtype=torch.int16)}, "indices must be int32 or int64"),
        ({"indices": torch.tensor([0.0, 1, 2])}, "indices must be int32 or int64"),
        ({"indices": torch.tensor([[0, 1, 2]])}, "indices must have one dimension"),
        ({"weight": torch.ones(2)}, "weight must have 3 elements"),
        ({"weight": torch.ones(3, 1)}, "weight must have one dimension"),
        ({"ids": torch.tensor([0, 1, 3])}, "index is out of range"),
        ({"ids": torch.tensor([0, -1, 2])}, "index is out of range"),
        ({"ids": torch.tensor([0, 1])}, "index is out of range"),
        ({"ids": torch.tensor([0.0, 1, 2])}, "ids must be int32 or int64"),
        ({"ids": torch.tensor([[0, 1, 2]])}, "ids must have one dimension"),
        ({"threads": 0}, "threads must be at least 1"),
    ],
)
def test_bad_input_is_named(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        call(**changes)


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("width", [1, 5, 20, 200])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_one_bad_entry_among_many_is_found_on_every_path(reduce, width, weighted, index_dtype):
    indptr, indices = csr_of([50] * 400)
    x, weight = torch.zeros(COLUMNS, width), torch.ones(len(indices)) if weighted else None
    for at, value in ((0, COLUMNS), (10_000, -1), (19_999, 2**31 - 1)):
        wrong = indices.to(index_dtype, copy=True)
        wrong[at] = value
        with pytest.raises(ValueError, match="out of range"):
            aggregate(x, indptr, wrong, reduce=reduce, weight=weight, threads=2)
        ids = torch.arange(COLUMNS)
        ids[indices[at]] = value
        with pytest.raises(ValueError, match="out of range"):
            aggregate(x, indptr, indices.to(index_dtype), reduce=reduce, weight=weight, ids=ids, threads=2)
    for at, value in ((1, -1), (200, 20_001), (399, 0)):
        wrong = indptr.clone()
        wrong[at] = value
        with pytest.raises(ValueError, match="indptr"):
            aggregate(x, wrong, indices.to(index_dtype), reduce=reduce, weight=weight, threads=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_large_output_past_the_caches_is_the_same(dtype, threads):
    rows = (80 << 20) // (64 * torch.empty(0, dtype=dtype).element_size())
    x = torch.randn(1000, 64).to(dtype)
    indices = torch.randint(1000, (rows,), dtype=torch.int32)
    out = hr.kernels.aggregate(x, torch.arange(rows + 1), indices, threads=threads)
    assert torch.equal(out, x[indices])


def test_a_reverse_of_another_graph_is_refused():
    other = hr.Graph.from_edges([0, 1], [1, 0], 7).reverse()
    with pytest.raises(ValueError, match="reverse has 2 entries"):
        call(x=torch.randn(3, 4), reverse=other)


# ---- fuzzing: wrong arguments in another process, on memory that ends where the array ends

PAGE = mmap.PAGESIZE
_kept = []


def guarded(array):
    """A copy of `array` that ends at a page nobody may touch: one byte too far is a crash, and not a silent read."""
    pages = -(-max(array.nbytes, 1) // PAGE)
    memory = mmap.mmap(-1, (pages + 1) * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert mprotect(address + pages * PAGE, PAGE, 0) == 0
    copy = np.frombuffer(memory, np.uint8, array.nbytes, pages * PAGE - array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    _kept.append((memory, copy))  # a mapping that is freed could be reused, and hide a late write
    if len(_kept) > 2_000:
        del _kept[:1_000]
    return copy


VALUES = st.one_of(st.integers(-2, 7), st.sampled_from([-(2**63), -(2**31), 2**31, 2**32 + 1, 2**62, 2**63 - 1]))
TYPES = st.sampled_from(["i1", "u1", "i2", "i4", "i8", "u4", "u8", "f2", "f4", "f8", "?", "c8"])
SHAPES = st.one_of(
    st.lists(st.integers(0, 6), min_size=1, max_size=1), st.lists(st.integers(0, 5), min_size=2, max_size=3), st.just([])
)


@st.composite
def any_array(draw, good):
    """`good`, or most often something else: other values, another shape, another type, another memory order, None."""
    kind = draw(st.sampled_from(["good"] * 4 + ["values", "shape", "type", "any", "strided", "none", "read-only"]))
    if kind == "none":
        return None
    array = np.array(good)
    if kind == "values" and array.size:
        array = array.copy()
        at = draw(st.integers(0, array.size - 1))
        value = draw(VALUES)
        if array.dtype.kind in "iu":
            limits = np.iinfo(array.dtype)
            value = min(max(value, int(limits.min)), int(limits.max))
        array.reshape(-1)[at] = value
    elif kind == "shape":
        array = np.resize(array, draw(SHAPES)) if array.size else np.zeros(draw(SHAPES), array.dtype)
    elif kind == "type":
        array = array.astype(draw(TYPES))
    elif kind == "any":
        array = np.ones(draw(SHAPES), draw(TYPES))
    if array.ndim == 0:  # as a tensor: a 0-d numpy array is a known crash of `gather`, with a test of its own
        return torch.tensor(array.item()) if array.dtype.kind != "c" else torch.tensor(1j)
    if kind == "strided" and array.size:
        return np.stack([array, array], -1)[..., 0]
    array = guarded(array)
    if kind == "read-only":
        array.setflags(write=False)
    return array


def good_csr(draw, columns):
    degrees = draw(st.lists(st.integers(0, 4), max_size=5))
    indptr = np.r_[0, np.cumsum(degrees)].astype(np.int64)
    entries = st.lists(st.integers(0, columns - 1), min_size=sum(degrees), max_size=sum(degrees))
    indices = np.array(draw(entries), draw(st.sampled_from(["i4", "i8"])))
    return indptr, indices


def fuzz_call(draw, name):
    """The arguments of one call: right ones, each of them possibly spoilt."""
    columns, width, threads = draw(st.integers(1, 5)), draw(st.integers(0, 19)), draw(st.sampled_from([1, 2, 3, 0, -1]))
    spoil = lambda good: draw(any_array(good))  # noqa: E731
    maybe = lambda good: None if draw(st.booleans()) else spoil(good)  # noqa: E731
    indptr, indices = good_csr(draw, columns)
    rows, entries = len(indptr) - 1, len(indices)
    kind = draw(st.sampled_from(["f4", "f8", "f2"]))
    wide = "f8" if kind == "f8" else "f4"
    x, out = np.ones((columns, width), kind), np.zeros((rows, width), kind)
    ids = np.arange(columns)[::-1].astype(draw(st.sampled_from(["i4", "i8"])))
    if name == "gather":
        return (spoil(x), spoil(ids), spoil(x), threads), {}
    if name == "aggregate":
        keywords = {
            "ids": maybe(ids),
            "weight": maybe(np.ones(entries, wide)),
            "position": maybe(np.arange(entries)),
            "scale": maybe(np.ones(columns, wide)),
            "where": maybe(np.zeros((rows, width), np.int32)),
            "threads": threads,
        }
        reduce = draw(st.sampled_from(["sum", "mean", "max", "min"]))
        return (spoil(x), spoil(indptr), spoil(indices), spoil(out), reduce), keywords
    if name == "max_gradient":
        t_indptr, t_indices, position = _native.transpose_csr(indptr, indices, columns, positions=True, threads=1)
        where = np.zeros((rows, width), np.int32)
        grads = (spoil(out), spoil(t_indptr), spoil(t_indices), spoil(position), spoil(indptr), spoil(where), spoil(x))
        return grads, {"weight": maybe(np.ones(entries, wide)), "threads": threads}
    if name == "weight_gradient":
        keywords = {
            "ids": maybe(ids),
            "row_scale": maybe(np.ones(rows, wide)),
            "where": maybe(np.zeros((rows, width), np.int32)),
            "threads": threads,
        }
        return (spoil(x), spoil(indptr), spoil(indices), spoil(out), spoil(np.zeros(entries, wide))), keywords
    if name == "id_range":
        return (spoil(ids), threads), {}
    if name == "check_csr":
        return (spoil(indptr), spoil(indices), draw(st.integers(-3, 9)), threads), {}
    if name == "expand_csr":
        return (spoil(indptr), spoil(indices), spoil(np.zeros((2, entries), np.int64)), threads), {}
    if name == "transpose_csr":  # a negative number of columns is a known crash, with a test of its own
        return (spoil(indptr), spoil(indices), draw(st.integers(0, 9))), {"positions": draw(st.booleans()), "threads": threads}
    if name == "build_csr":
        keywords = {flag: draw(st.booleans()) for flag in ("wide_index", "undirected", "deduplicate", "positions")}
        keywords |= {"self_loops": draw(st.sampled_from(["keep", "add", "drop", "no"])), "threads": threads}
        return (spoil(ids), spoil(ids[::-1].copy()), draw(st.integers(-2, 9))), keywords
    if name == "thin_edges":
        square, to = good_csr(draw, max(columns, 1))
        return (spoil(square), spoil(to), draw(st.integers(-2, 30)), spoil(np.arange(len(square) - 1)), max(threads, 1)), {}
    if name == "noisy_rows":
        center, label = np.ones((columns, width), np.float32), np.arange(columns)
        return (draw(st.integers(-1, 2**64)), spoil(center), spoil(label), spoil(center), max(threads, 1)), {}
    assert name == "random_words"
    return (
        draw(st.integers(-1, 2**64)),
        draw(st.integers(-1, 2**32)),
        draw(st.integers(-1, 2**32)),
        draw(st.integers(-3, 9)),
        threads,
    ), {}


FUZZED = [
    *["gather", "aggregate", "max_gradient", "weight_gradient"],
    *["id_range", "check_csr", "expand_csr", "transpose_csr", "build_csr", "thin_edges", "noisy_rows", "random_words"],
]
CLEAN = (ValueError, TypeError, IndexError, MemoryError, OverflowError)


def fuzz(name):
    tally = {"accepted": 0, "refused": 0}

    @settings(derandomize=True, deadline=None, database=None, max_examples=150, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def one(data):
        arguments, keywords = fuzz_call(data.draw, name)
        try:
            getattr(_native, name)(*arguments, **keywords)
            tally["accepted"] += 1
        except CLEAN:
            tally["refused"] += 1

    one()
    assert min(tally.values()) >= 5, f"{name}: {tally}: the fuzzing is one-sided"


@pytest.mark.slow  # tests/faults/fuzz_native.py makes such calls of every function
@pytest.mark.parametrize("names", [FUZZED[:4], FUZZED[4:]], ids=["kernels", "graphs"])
def test_wrong_arguments_never_crash(names):
    done = run_python(__file__, *names)
    assert done.returncode == 0, done.stderr[-2_000:]


def test_valid_calls_touch_nothing_outside_their_arrays():
    done = run_python(__file__, "valid")
    assert done.returncode == 0, done.stderr[-2_000:]


def valid_calls():
    for dtype in ("f4", "f8", "f2"):
        for width in [*range(1, 20), 47, 64, 100, 127, 128, 129, 143, 144, 145, 160, 602]:
            indptr, indices = (guarded(a.numpy()) for a in csr_of([3, 0, 30, 1, 2], columns=7))
            x, out = guarded(np.ones((7, width), dtype)), guarded(np.full((5, width), np.nan, dtype))
            where, wide = guarded(np.zeros((5, width), np.int32)), "f8" if dtype == "f8" else "f4"
            weight = guarded(np.ones(len(indices), wide))
            for reduce in REDUCES:
                options = {"ids": None, "position": None, "scale": None, "threads": 1}
                _native.aggregate(x, indptr, indices, out, reduce, weight=weight, where=where, **options)
                _native.aggregate(x, indptr, indices, out, reduce, weight=None, where=where, **options)
            t = [guarded(a) for a in _native.transpose_csr(indptr, indices, 7, positions=True, threads=1)]
            _native.max_gradient(out, *t, indptr, where, guarded(x), weight=weight, threads=1)
            dots = guarded(np.zeros(len(indices), wide))
            _native.weight_gradient(x, indptr, indices, out, dots, ids=None, row_scale=None, where=where, threads=1)
            _native.weight_gradient(x, indptr, indices, out, dots, ids=None, row_scale=None, where=None, threads=1)
            _native.gather(x, guarded(np.arange(7)), guarded(x), 1)


DIGEST = """
import hashlib, sys, torch, headrace as hr
from headrace import _native
from headrace.kernels import aggregate
graph = hr.generate.community(1000, 12000, features=0, seed=2).graph
digest = hashlib.sha256()
add = lambda tensor: digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
torch.manual_seed(0)
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
    for width in (3, 16, 47, 130):
        for reduce in ("sum", "mean", "max"):
            x = torch.randn(1000, width).to(dtype).requires_grad_()
            weight = torch.rand(12000, dtype=torch.float64 if dtype == torch.float64 else torch.float32, requires_grad=True)
            for out in (aggregate(x, graph.indptr, graph.indices, reduce=reduce),
                        aggregate(x, graph.indptr, graph.indices, reduce=reduce, weight=weight)):
                add(out)
            out.backward(torch.randn(1000, width).to(dtype))
            add(x.grad), add(weight.grad)
for replace in (False, True):
    sample = hr.sample.NeighborSampler(graph, [15, 20, 3], seed=1, replace=replace).sample(torch.arange(300))
    add(sample.nodes), add(sample.indices)
print(_native.level, digest.hexdigest())
"""


@pytest.mark.skipif(_native.level == "baseline", reason="needs a processor with AVX2: this one runs the baseline only")
def test_every_instruction_set_gives_the_same_bits():
    assert_same_digest_on_every_level("-c", DIGEST)


WRONG = {
    "gather with 0-d ids": "n.gather(np.zeros((4, 2)), np.array(1), np.zeros((1, 2)), 1)",
    "transpose with -1 columns": (
        "del_me = n.transpose_csr(np.zeros(1, np.int64), np.zeros(0, np.int32), -1, positions=True, threads=1); del del_me"
    ),
    "pool with a negative limit": "pool = n.Pool.create(-1); a = pool.empty(100); del a",
    "candidates with falling weights": (
        "n.candidate_edges(np.linspace(1, 0, 11), np.array([0, 10]), np.zeros(10, np.int32), block=5, within_block=0.4, "
        "within_class=0.4, mean_degree=3.0, seed=0, round=0, wanted=30.0, undirected=True, wide=False, threads=1)"
    ),
    "a million threads": "n.power_law_weights(0, 3.0, 1.0, 10, 10**6)",
    "-1 threads": "n.noisy_rows(0, np.ones((1, 1), np.float32), np.zeros(1, np.int64), np.ones((1, 1), np.float32), -1)",
}


def test_these_wrong_arguments_do_not_crash_either():
    calls = [f"print({name!r})\ntry:\n    {code}\nexcept (ValueError, MemoryError): pass\n" for name, code in WRONG.items()]
    done = run_python("-c", "import numpy as np\nfrom headrace import _native as n\n" + "".join(calls))
    assert done.returncode == 0, done.stdout.splitlines()[-1:]  # the last that was begun


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        valid_calls() if argument == "valid" else fuzz(argument)
