"""`gather` against plain indexing: every type, every width, any number of threads, and clear errors."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import _native
from headrace.kernels import gather, gather_reference
from headrace.store import BufferPool

WIDTHS = [1, 3, 15, 16, 17, 47, 64, 100, 128, 129, 144, 145, 602]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
DTYPES = [*FLOATS, torch.int8, torch.int64, torch.bool]
OTHERS = [torch.uint8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128]


def rows_of(shape, dtype, seed=0):
    values = torch.empty(shape, dtype=torch.uint8)
    values.view(-1)[:] = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, values.numel()).astype(np.uint8))
    return (values % 2).bool() if dtype == torch.bool else values.to(dtype)


def random_ids(count, below, dtype=torch.int64, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, below, count)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES + OTHERS, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_equal_indexing(dtype, width):
    x, ids = rows_of((50, width), dtype), random_ids(200, 50)
    assert torch.equal(gather(x, ids), gather_reference(x, ids))
    assert torch.equal(gather(x, ids.int(), threads=2), gather_reference(x, ids))


@pytest.mark.parametrize("dtype", DTYPES + OTHERS, ids=str)
@pytest.mark.parametrize("shape", [(20,), (20, 0), (20, 2, 3), (20, 1, 1, 5), (0, 4)], ids=str)
def test_rows_of_any_shape(dtype, shape):
    x, ids = rows_of(shape, dtype), random_ids(30 if shape[0] else 0, max(shape[0], 1))
    out = gather(x, ids)
    assert out.shape == (len(ids), *shape[1:])
    assert out.dtype == dtype
    assert torch.equal(out, gather_reference(x, ids))


@pytest.mark.parametrize("dtype", [np.uint16, np.complex64])
def test_empty_rows_from_numpy(dtype):
    assert gather(torch.from_numpy(np.zeros((4, 0), dtype)), [3]).shape == (1, 0)


def test_every_bit_is_kept():
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(-1, 4)
    for dtype in (torch.float16, torch.bfloat16):
        x, ids = bits.view(dtype), random_ids(1_000, len(bits))
        assert torch.equal(gather(x, ids).view(torch.int16), gather_reference(bits, ids))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool], ids=str)
@pytest.mark.parametrize("width", [1, 47, 64, 100, 602])
def test_any_number_of_threads_and_streaming_stores_give_the_same_rows(dtype, width):
    x = rows_of((3_000, width), dtype)
    count = (9 << 20) // (width * x.element_size()) + 1  # past the size from which stores bypass the caches
    ids = random_ids(count, 3_000)
    expected = gather_reference(x, ids)
    for threads in (1, 2, 7):
        assert torch.equal(gather(x, ids, threads=threads), expected)


@pytest.mark.parametrize("offset", [0, 1, 4, 16])
def test_outputs_of_any_alignment(offset):
    x = torch.randn(1_000, 16)
    ids = random_ids(140_000, 1_000)  # 9 MB, rows of 64 bytes: streaming where the output is aligned
    memory = torch.full((offset + ids.numel() * 16 + 8,), float("nan"))
    out = memory[offset : offset + ids.numel() * 16].view(-1, 16)
    assert gather(x, ids, out=out) is out
    assert torch.equal(out, gather_reference(x, ids))
    assert memory[:offset].isnan().all()
    assert memory[-8:].isnan().all()


@pytest.mark.parametrize("width", WIDTHS)
def test_poisoned_output_is_fully_written(width):
    x, ids = torch.randn(40, width), random_ids(77, 40)
    out = torch.full((77, width), float("nan"))
    _native.gather(x, ids, out, 2)
    assert torch.equal(out, x[ids])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_out_is_written_in_place(dtype):
    x, ids, pool = rows_of((10, 5), dtype), random_ids(7, 10), BufferPool()
    out = pool.empty((7, 5), dtype)
    assert gather(x, ids, out=out) is out
    assert torch.equal(out, x[ids])


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.integers(1, 40), st.integers(0, 20), st.lists(st.integers(0, 39), max_size=60), st.sampled_from([1, 2, 7]))
def test_any_ids(rows, width, ids, threads):
    x, ids = torch.randn(rows, width), torch.tensor([i % rows for i in ids], dtype=torch.int64)
    assert torch.equal(gather(x, ids, threads=threads), x[ids])


def test_ids_may_be_lists_numpy_or_short_integers():
    x = torch.randn(5, 3)
    for ids in ([4, 0], np.array([4, 0]), np.array([4, 0], np.uint8), torch.tensor([4, 0], dtype=torch.int16), [4, 0, 1][:2]):
        assert torch.equal(gather(x, ids), x[[4, 0]])


def test_ids_past_two_to_the_31(tmp_path):
    rows = (1 << 31) + 64
    (tmp_path / "holes").touch()
    x = np.memmap(tmp_path / "holes", np.int8, "r+", shape=(rows, 2))
    wanted = np.array([rows - 1, 5, 1 << 31, (1 << 31) - 1])
    for i, row in enumerate(wanted):
        x[row] = (i + 1, -i - 1)
    out = gather(torch.from_numpy(x), torch.from_numpy(wanted), threads=2)
    assert out.tolist() == [[1, -1], [2, -2], [3, -3], [4, -4]]


# ---- gradients


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
def test_gradient_adds_up_repeated_ids(dtype, ids_dtype):
    x = torch.randn(6, 3, dtype=dtype, requires_grad=True)
    ids = torch.tensor([1, 1, 5, 0, 1], dtype=ids_dtype)
    scale = torch.tensor([1.0, 2, 4, 8, 16], dtype=dtype).unsqueeze(1)
    ours, truth = (torch.autograd.grad((f(x, ids) * scale).sum(), x)[0] for f in (gather, gather_reference))
    assert torch.equal(ours, truth)
    assert ours[:, 0].tolist() == [8, 19, 0, 0, 0, 4]


def test_gradcheck():
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: gather(x, torch.tensor([4, 0, 0, 2])), x)


def test_gradient_has_the_same_bits_for_any_number_of_threads():
    x, ids = torch.randn(500, 33, requires_grad=True), random_ids(60_000, 500)
    grad = torch.randn(60_000, 33)
    grads = [torch.autograd.grad(gather(x, ids, threads=t), x, grad)[0] for t in (1, 2, 7)]
    assert torch.equal(grads[0], grads[1])
    assert torch.equal(grads[0], grads[2])


def test_out_refuses_to_lose_a_gradient():
    x = torch.randn(3, 2, requires_grad=True)
    with pytest.raises(ValueError, match="out= keeps no gradient"):
        gather(x, [0], out=torch.empty(1, 2))
    with torch.no_grad():
        assert torch.equal(gather(x, [2], out=torch.empty(1, 2)), x[[2]])


def test_the_operator_is_well_formed():
    ids = torch.tensor([1, 0, 1])
    for x in (torch.randn(3, 2, requires_grad=True), torch.randn(3), torch.ones(3, 4, dtype=torch.int8)):
        torch.library.opcheck(torch.ops.headrace.gather, (x, ids, 1))


def compiled(x, ids):
    return gather(x, ids, threads=2).relu().pow(2).sum()


def test_compiled_equals_eager():
    x, ids = torch.randn(8, 4, requires_grad=True), torch.tensor([3, 3, 0])
    function = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    assert torch.equal(function(x, ids), compiled(x, ids))
    assert torch.equal(torch.autograd.grad(function(x, ids), x)[0], torch.autograd.grad(compiled(x, ids), x)[0])


def test_default_threads_can_be_compiled():
    x, ids = torch.randn(8, 4), torch.tensor([3, 3, 0])
    assert torch.equal(torch.compile(lambda x, ids: gather(x, ids), backend="aot_eager", fullgraph=True)(x, ids), x[ids])


# ---- errors


@pytest.mark.parametrize("ids", [[0, 5], [-1, 0], [2**40], [-(2**63)], [2**63 - 1]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
def test_ids_out_of_range_are_an_index_error(ids, dtype):
    x = torch.zeros(5, 2, dtype=dtype)
    for keywords in ({}, {"out": torch.zeros(len(ids), 2, dtype=dtype)}):
        with pytest.raises(IndexError, match=rf"ids from {min(ids)} to {max(ids)} for 5 rows"):
            gather(x, torch.tensor(ids), **keywords)


def test_one_bad_id_among_many_is_found_before_anything_is_written():
    x, ids = torch.randn(100, 4), random_ids(300_000, 100)
    ids[250_000] = 100
    out = torch.full((300_000, 4), float("nan"))
    with pytest.raises(IndexError):
        gather(x, ids, out=out, threads=2)
    assert out.isnan().all()


def test_no_rows_and_an_id_is_an_index_error():
    with pytest.raises(IndexError, match="for 0 rows"):
        gather(torch.zeros(0, 3), [0])


@pytest.mark.parametrize(
    ("x", "ids", "keywords", "complaint"),
    [
        (torch.tensor(1.0), [0], {}, "x must have rows"),
        (torch.zeros(4, 6)[:, :3], [0], {}, "x must be contiguous"),
        (torch.zeros(4, 6), [0.5], {}, "ids must hold integers, not torch.float32"),
        (torch.zeros(4, 6), [True], {}, "ids must hold integers, not torch.bool"),
        (torch.zeros(4, 6), [[0]], {}, r"ids must have one dimension, not shape \(1, 1\)"),
        (torch.zeros(4, 6), 0, {}, r"ids must have one dimension, not shape \(\)"),
        (torch.zeros(4, 6), [0], {"threads": 0}, "threads must be at least 1"),
        (torch.zeros(4, 6), [0], {"out": torch.zeros(2, 6)}, r"out must be contiguous, torch.float32, of shape \(1, 6\); it is"),
        (torch.zeros(4, 6), [0], {"out": torch.zeros(1, 5)}, "out must be contiguous"),
        (torch.zeros(4, 6), [0], {"out": torch.zeros(1, 6).double()}, "out must be contiguous"),
        (torch.zeros(4, 6), [0], {"out": torch.zeros(1, 12)[:, ::2]}, "out must be contiguous"),
    ],
)
def test_bad_input_is_named(x, ids, keywords, complaint):
    with pytest.raises(ValueError, match=complaint):
        gather(x, ids, **keywords)


def test_meta_tensors_are_refused_with_a_reason():
    with pytest.raises(ValueError, match="ids must be on the CPU, not on meta"):
        gather(torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64, device="meta"))
