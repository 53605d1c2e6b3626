"""`attend_time` against its plain-torch reference, gradients included, and its bits by threads and instruction set."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from child import assert_same_digest_on_every_level
from headrace import _native
from headrace.kernels import attend_time, attend_time_reference

DIGEST = """
import hashlib, torch
from headrace import _native
from headrace.kernels import attend_time, gru_gates
torch.manual_seed(0)
digest = hashlib.sha256()
indptr = torch.tensor([0, 3, 3, 43, 110])
indices, dt = torch.randint(0, 9, (110,)), torch.randint(0, 10**7, (110,))
dt[5] = 10**12
for dtype in (torch.float32, torch.float64):
    leaves = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in ((4, 3, 70), (9, 30), (35,), (35,))]
    query, x, weight, bias = leaves
    edge_x = torch.randn(110, 5, dtype=dtype)
    out = attend_time(query, indptr, indices, dt, x=x, time_weight=weight, time_bias=bias, edge_x=edge_x, slope=0.2, dropout=0.3)
    for tensor in (out, *torch.autograd.grad(out.square().sum(), leaves)):
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    leaves = [torch.randn(50, width, dtype=dtype, requires_grad=True) for width in (141, 141, 47)]
    out = gru_gates(*leaves)
    for tensor in (out, *torch.autograd.grad(out.square().sum(), leaves)):
        digest.update(tensor.detach().numpy().tobytes())
print(_native.level, digest.hexdigest())
"""
TYPES = {torch.float64: 1e-12, torch.float32: 3e-5}
DEGREES = [3, 0, 7, 1, 40, 2, 33, 32, 0]  # empty rows, an isolated last one, and rows of one tile and of two


def case(degrees=DEGREES, columns=12, heads=2, channels=8, edge=0, times=6, dtype=torch.float64, longest=None, table=0, seed=0):
    """Leaves, and the other arguments: a CSR with multi-edges, time differences, and edge features by entry or of a table."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    longest = longest or (1000 if dtype == torch.float64 else 3)  # in fp32 an angle of 1000 is known to 4 digits behind the point
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    count = int(indptr[-1])
    indices = torch.randint(0, max(columns, 1), (count,), generator=generator, dtype=torch.int32)
    dt = torch.randint(0, longest, (count,), generator=generator)
    leaves = {
        "query": randn(len(degrees), heads, channels + edge + times) / 3,
        "x": randn(columns, channels),
        "time_weight": randn(times),
        "time_bias": randn(times),
    }
    more = {}
    if edge:
        more["edge_x"] = randn(table or count, edge)
    if table:
        more["edge_id"] = torch.randint(0, table, (count,), generator=generator)
    return leaves, (indptr, indices, dt), more


def outputs_and_gradients(function, leaves, entries, more, dtype=None, **options):
    leaves = {name: leaf.detach().to(dtype or leaf.dtype).requires_grad_() for name, leaf in leaves.items()}
    more = {name: value.to(dtype) if dtype and name == "edge_x" else value for name, value in more.items()}
    named = dict(leaves)
    out = function(named.pop("query"), *entries, **named, **more, **options)
    out.backward(torch.linspace(-1, 1, out.numel(), dtype=torch.float64).to(out.dtype).view_as(out))
    return {"out": out.detach(), **{name: leaf.grad for name, leaf in leaves.items()}}


def assert_same(leaves, entries, more, tolerance=None, **options):
    dtype = leaves["x"].dtype
    found = outputs_and_gradients(attend_time, leaves, entries, more, **options)
    options.pop("threads", None)
    truth = outputs_and_gradients(attend_time_reference, leaves, entries, more, torch.float64, **options)
    for name, expected in truth.items():
        assert found[name].dtype == dtype
        scale = max(float(expected.abs().max()), 1.0) if expected.numel() else 1.0
        close = (tolerance or TYPES[dtype]) * scale
        torch.testing.assert_close(found[name].double(), expected, rtol=0, atol=close, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("channels", [1, 47, 100])
@pytest.mark.parametrize("edge", [0, 5])
@pytest.mark.parametrize("slope", [1.0, 0.2])
def test_rows_and_gradients_equal_the_reference(heads, channels, edge, slope):
    assert_same(*case(heads=heads, channels=channels, edge=edge), slope=slope)
    assert_same(*case(heads=heads, channels=channels, edge=edge, dtype=torch.float32), slope=slope)


@pytest.mark.parametrize(("channels", "edge", "times"), [(0, 0, 5), (0, 4, 0), (9, 0, 0), (3, 172, 1), (5, 1, 100), (602, 2, 17)])
def test_parts_may_be_missing_narrow_or_wide(channels, edge, times):
    assert_same(*case(channels=channels, edge=edge, times=times, table=20 if edge else 0), slope=0.2, dropout=0.25, seed=3)


@pytest.mark.parametrize("heads", [1, 4, 5, 9])
def test_dropout_equals_the_reference(heads):
    assert_same(*case(heads=heads), dropout=0.4, seed=2**40 + 1)
    assert_same(*case(heads=heads), dropout=0.4, seed=2**40 + 1, slope=0.2, threads=1)


def test_gradcheck():
    leaves, entries, more = case([2, 0, 3, 1], 5, channels=3, edge=2, times=2, longest=5)
    names = list(leaves)

    def run(query, *values):
        return attend_time(query, *entries, **dict(zip(names[1:], values, strict=True)), **more, slope=0.2, dropout=0.3, seed=4)

    assert torch.autograd.gradcheck(run, [leaf.requires_grad_() for leaf in leaves.values()])


@pytest.mark.parametrize("dtype", TYPES)
def test_a_hub(dtype):
    leaves, entries, more = case([2, 100_000, 3], 50, channels=16, edge=3, times=8, dtype=dtype)
    assert_same(leaves, entries, more, 1e-10 if dtype == torch.float64 else 3e-4, dropout=0.1, seed=1)


def test_a_column_that_all_rows_name():
    leaves, (indptr, indices, dt), more = case([5] * 400, 3, channels=47)
    assert_same(leaves, (indptr, torch.zeros_like(indices), dt), more, 1e-10)


def test_graphs_without_rows_entries_or_columns():
    assert_same(*case([], 3))
    assert_same(*case([0, 0], 3, edge=2))
    assert_same(*case([0], 0))


@pytest.mark.parametrize("dtype", TYPES)
def test_huge_differences_are_cast_after_the_subtraction(dtype):
    """Times past 2**53, whose differences of a few seconds a cast before the subtraction would lose."""
    leaves, (indptr, indices, _), more = case(dtype=dtype)
    now = torch.full((len(indices),), 2**62 + 1)
    before = now - torch.arange(len(indices))
    assert_same(leaves, (indptr, indices, now - before), more)


def test_angles_of_any_size_are_those_of_torch():
    """Up to 2**31 by vectors, beyond by the C library: with one entry to a row the sums are the cosines themselves."""
    generator = torch.Generator().manual_seed(0)
    for dtype, tolerance in {torch.float32: 3e-7, torch.float64: 2e-15}.items():
        sizes = 10.0 ** torch.linspace(-8, 18, 4_001, dtype=torch.float64)
        dt = (sizes * torch.randn(len(sizes), generator=generator, dtype=torch.float64)).to(dtype)
        count = len(dt)
        out = attend_time(
            torch.zeros(count, 1, 3, dtype=dtype),
            torch.arange(count + 1),
            torch.zeros(count, dtype=torch.int64),
            dt,
            x=torch.zeros(1, 0, dtype=dtype),
            time_weight=torch.tensor([1.0, 0.3, 0.0], dtype=dtype),
            time_bias=torch.tensor([0.0, 1.5, 0.0], dtype=dtype),
        )[:, 0]
        angles = torch.stack([dt, dt * torch.tensor(0.3, dtype=dtype) + 1.5, torch.zeros_like(dt)], 1)
        torch.testing.assert_close(out.double(), angles.double().cos(), rtol=0, atol=tolerance)


def test_times_that_are_no_numbers_stay_in_their_rows():
    leaves, (indptr, indices, dt), more = case([2, 3], 4)
    dt = dt.double()
    dt[1] = float("nan")
    out = attend_time(leaves.pop("query"), indptr, indices, dt, **leaves, **more)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()


def test_entries_behind_the_last_row_change_nothing():
    leaves, (indptr, indices, dt), more = case(edge=2, table=9)
    exact = outputs_and_gradients(attend_time, leaves, (indptr, indices, dt), more, slope=0.2)
    room = torch.full((30,), 3)
    entries = indptr, torch.cat([indices, room.int()]), torch.cat([dt, room])
    padded = outputs_and_gradients(attend_time, leaves, entries, {**more, "edge_id": torch.cat([more["edge_id"], room])}, slope=0.2)
    assert all(torch.equal(padded[name], value) for name, value in exact.items())


def test_any_number_of_threads_gives_the_same_bits():
    leaves, entries, more = case([11, 0, 400, 3] * 100, 90, channels=47, edge=3, times=100, dtype=torch.float32)
    runs = [outputs_and_gradients(attend_time, leaves, entries, more, dropout=0.1, threads=threads) for threads in (1, 2, 5)]
    assert all(torch.equal(runs[0][name], run[name]) for run in runs for name in run)


def test_every_instruction_set_gives_the_same_bits_of_gru_gates_too():
    assert_same_digest_on_every_level("-c", DIGEST)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 70), max_size=8),
    st.integers(1, 6),
    st.integers(0, 40),
    st.integers(0, 20),
    st.integers(1, 40),
    st.booleans(),
    st.sampled_from([0.0, 0.5]),
)
def test_any_shape_equals_the_reference(degrees, heads, channels, edge, times, leaky, dropout):
    leaves, entries, more = case(degrees, 7, heads, channels, edge, times)
    assert_same(leaves, entries, more, slope=0.2 if leaky else 1.0, dropout=dropout)


def test_torch_takes_it_for_an_op_and_compiles_it():
    leaves, entries, more = case(edge=2, channels=5)
    query, x, weight, bias = (leaf.requires_grad_() for leaf in leaves.values())
    by_head = query.detach().transpose(0, 1).contiguous().requires_grad_()
    indptr, indices, dt = entries
    op = torch.ops.headrace.attend_time.default
    torch.library.opcheck(op, (by_head, indptr, indices, dt.double(), x, weight, bias, more["edge_x"], None, 0.2, 0.0, 7, 1))

    def layer(query):
        return attend_time(2 * query, *entries, x=x, time_weight=weight, time_bias=bias, **more)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(layer(query), compiled(query))
    assert torch.equal(*(torch.autograd.grad(run(query).sum(), query)[0] for run in (layer, compiled)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": torch.tensor([0, 12, 1], dtype=torch.int32)}, "indices holds values from 0 to 12"),
        ({"indices": torch.tensor([0, -1, 1], dtype=torch.int32)}, "indices holds values from -1 to 1"),
        ({"edge_id": torch.tensor([0, 4, 1])}, "edge_id holds values from 0 to 4"),
        ({"edge_id": torch.tensor([0, 1])}, "edge_id must be int32 or int64, one per entry: 3"),
        ({"indptr": torch.tensor([0, 4, 3])}, "does not rise"),
        ({"indptr": torch.tensor([0, 2, 4])}, "end with at most the number of indices"),
        ({"dt": torch.tensor([0, 4])}, "dt must be int64, float32 or float64, one per entry: 3"),
        ({"query": torch.zeros(2, 2, 15).double()}, r"here \(2, heads, 16\)"),
        ({"x": torch.zeros(12, 8)}, "edge_x must be"),
        ({"time_bias": torch.zeros(3).double()}, "of one width"),
        ({"slope": 0.0}, "slope must be above 0"),
        ({"dropout": 1.0}, "dropout must be at least 0"),
        ({"seed": -1}, "seed must be from 0"),
    ],
)
def test_bad_arguments_are_named(change, message):
    leaves, (indptr, indices, dt), more = case([2, 1], edge=2, table=4)
    arguments = {**leaves, "indptr": indptr, "indices": indices, "dt": dt, **more, **change}
    with pytest.raises(ValueError, match=message):
        attend_time(**arguments)


def test_edge_features_that_want_a_gradient_are_refused():
    leaves, entries, more = case([2, 1], edge=2)
    more["edge_x"].requires_grad_()
    with pytest.raises(ValueError, match="gets no gradient"):
        attend_time(leaves.pop("query"), *entries, **leaves, **more)


def test_native_calls_check_what_they_are_given():
    leaves, (indptr, indices, dt), _ = case([2, 1])
    query, x, weight, bias = leaves.values()
    query = query.transpose(0, 1).contiguous()
    outputs = {"out": torch.empty_like(query), "score": torch.empty(3, 2).double(), "peak": torch.empty(2, 2, 2).double()}
    how = {"slope": 1.0, "dropout": 0.0, "seed": 0, "threads": 1}
    arguments = [query, indptr, indices, dt.double(), x, weight, bias, None, None]
    _native.attend_time(*arguments, **outputs, **how)
    with pytest.raises(ValueError, match="score has the wrong shape"):
        _native.attend_time(*arguments, **{**outputs, "score": torch.empty(2, 2).double()}, **how)
    with pytest.raises(ValueError, match="overlaps"):
        _native.attend_time(*arguments, **{**outputs, "out": query}, **how)
    with pytest.raises(ValueError, match="slope must be above 0"):
        _native.attend_time(*arguments, **outputs, **{**how, "slope": 0.0})
