"""Slices of columns give the bits that all columns at once give; factors of rows; when slices are chosen."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from child import assert_same_digest_on_every_level
from headrace import _native
from headrace.kernels import aggregate_reference

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
MIB = 2**20


def wide(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


def csr_of(degrees, columns, seed=0):
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    return indptr, torch.from_numpy(np.random.default_rng(seed).integers(0, columns, int(indptr[-1]), dtype=np.int32))


def native(x, indptr, indices, reduce="sum", threads=1, **options):
    out = torch.full((len(indptr) - 1, x.shape[1]), 7, dtype=x.dtype)
    where = torch.full(out.shape, -7, dtype=torch.int32) if reduce == "max" else None
    given = {"ids": None, "weight": None, "position": None, "scale": None} | options
    _native.aggregate(x, indptr, indices, out, reduce, where=where, threads=threads, **given)
    return out


def equal_bits(a, b):
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


DEGREES = [3, 0, 1, 40, 0, 0, 7, 600, 5, 0]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("width", [1, 17, 47, 100, 129])
@pytest.mark.parametrize("variant", ["plain", "weighted", "ids", "all"])
def test_slices_give_the_bits_of_all_columns_at_once(dtype, width, variant):
    generator = torch.Generator().manual_seed(width)
    indptr, indices = csr_of(DEGREES, 50)
    options = {}
    if variant in ("weighted", "all"):
        options["weight"] = torch.rand(len(indices), generator=generator, dtype=wide(dtype))
    if variant in ("ids", "all"):
        options["ids"] = torch.randint(0, 30, (50,), generator=generator)
    if variant == "all":
        indices = indices.long()
        options["position"] = torch.randperm(len(indices), generator=generator)
        options["scale"] = torch.rand(50, generator=generator, dtype=wide(dtype))
        options["row_scale"] = torch.rand(len(DEGREES), generator=generator, dtype=wide(dtype))
    x = torch.randn(30 if "ids" in options else 50, width, generator=generator, dtype=wide(dtype)).to(dtype)
    line = 64 // x.element_size()
    for reduce in ("sum", "mean"):
        whole = native(x, indptr, indices, reduce, tile=width, **options)
        for tile, threads in ((1, 1), (line, 2), (line + 1, 1), (3 * line, 1)):
            assert equal_bits(native(x, indptr, indices, reduce, threads, tile=tile, **options), whole)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    degrees=st.lists(st.integers(0, 9), max_size=12),
    columns=st.integers(1, 9),
    width=st.integers(0, 150),
    dtype=st.sampled_from(FLOATS),
    tile=st.integers(1, 160),
    seed=st.integers(0, 1000),
)
def test_any_tile_of_any_graph_gives_the_same_bits(degrees, columns, width, dtype, tile, seed):
    indptr, indices = csr_of(degrees, columns, seed)
    x = torch.randn(columns, width, generator=torch.Generator().manual_seed(seed)).to(dtype)
    assert equal_bits(native(x, indptr, indices, tile=tile), native(x, indptr, indices, tile=max(width, 1)))


def test_slices_of_many_rows_are_the_same_for_two_threads():
    indptr, indices = csr_of(np.random.default_rng(1).integers(0, 60, 5_000).tolist(), 4_000)
    x = torch.randn(4_000, 100)
    whole = native(x, indptr, indices, threads=2)
    assert equal_bits(native(x, indptr, indices, threads=2, tile=32), whole)
    assert equal_bits(native(x, indptr, indices, threads=1, tile=32), whole)


def test_slices_of_a_range_of_rows():
    indptr, indices = csr_of(DEGREES, 50)
    x = torch.randn(50, 100)
    assert equal_bits(native(x, indptr[3:8], indices, tile=16), native(x, indptr, indices)[3:7])


def test_a_wrong_id_that_no_entry_names_does_not_matter_to_slices_either():
    indptr, indices = torch.tensor([0, 2]), torch.tensor([0, 1])
    x, ids = torch.randn(3, 64), torch.tensor([2, 0, 99])
    assert equal_bits(native(x, indptr, indices, ids=ids, tile=16), (x[2] + x[0])[None])
    with pytest.raises(ValueError, match="out of range"):
        native(x, indptr, torch.tensor([0, 2]), ids=ids, tile=16)


def test_a_wrong_index_is_refused_in_slices():
    x = torch.randn(3, 64)
    for wrong in (-1, 3):
        with pytest.raises(ValueError, match="out of range"):
            native(x, torch.tensor([0, 2]), torch.tensor([0, wrong]), tile=16)
    with pytest.raises(ValueError, match="does not rise"):
        native(x, torch.tensor([0, 2, 1, 2]), torch.tensor([0, 1]), tile=16)


def test_wrong_tiles_are_refused():
    x, indptr, indices = torch.randn(3, 64), torch.tensor([0, 2]), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="tile must be at least 1 column, or None for what suits, not 0"):
        native(x, indptr, indices, tile=0)
    with pytest.raises(ValueError, match="tile is for sum and mean"):
        native(x, indptr, indices, "max", tile=16)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("width", [1, 47, 100, 200])
def test_factors_of_rows_multiply_the_result(dtype, reduce, width):
    indptr, indices = csr_of([3, 0, 9, 1, 20], 12)
    x = torch.randint(1, 5, (12, width)).to(dtype)
    factors = torch.tensor([0.5, 2.0, -1.0, 0.25, 4.0], dtype=wide(dtype))
    truth = aggregate_reference(x.to(wide(dtype)), indptr, indices, reduce=reduce) * factors[:, None]
    ours = native(x, indptr, indices, reduce, row_scale=factors)
    # Powers of two are exact, and a mean alone is rounded: before it is multiplied here, after it there.
    torch.testing.assert_close(
        ours, truth.to(dtype), rtol=0 if reduce != "mean" else 1e-2 if x.element_size() == 2 else 1e-6, atol=0
    )


def test_factors_of_the_wrong_length_or_type_are_refused():
    x, indptr, indices = torch.randn(3, 4), torch.tensor([0, 2]), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="row_scale must have 1 elements"):
        native(x, indptr, indices, row_scale=torch.ones(2))
    with pytest.raises(ValueError, match="row_scale must be float32"):
        native(x, indptr, indices, row_scale=torch.ones(1, dtype=torch.float64))


def test_the_last_level_cache_has_a_likely_size():
    assert MIB // 4 <= _native.last_level_cache() <= 4096 * MIB


def test_no_slices_where_they_do_not_pay():
    tile = _native.column_tile
    assert tile(2_449_029, 256, 4, 32 * MIB, 50.0) == 32  # two lines at a time
    assert tile(2_449_029, 128, 2, 32 * MIB, 50.0) == 64
    assert tile(2_449_029, 64, 4, 32 * MIB, 50.0) == 32
    assert tile(2_449_029, 32, 4, 32 * MIB, 50.0) == 32  # narrow rows
    assert tile(100_000, 256, 4, 32 * MIB, 50.0) == 256  # few of them outgrow the cache
    assert tile(111_059_956, 256, 4, 32 * MIB, 50.0) == 256  # so many that a slice does not fit either
    assert tile(2_449_029, 256, 4, 32 * MIB, 2.0) == 256  # few reads of each
    assert tile(0, 0, 4, 32 * MIB, 0.0) == 0
    with pytest.raises(ValueError, match="must not be negative"):
        tile(-1, 256, 4, 32 * MIB, 50.0)


DIGEST = """
import hashlib, torch
from headrace import _native
generator = torch.Generator().manual_seed(0)
indptr = torch.tensor([0, 3, 3, 40, 300])
indices = torch.randint(0, 50, (300,), generator=generator)
digest = hashlib.sha256()
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
    factors = torch.rand(4, generator=generator, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    for width in (5, 16, 33, 64, 100, 128, 150, 260):
        x = torch.randn(50, width, generator=generator).to(dtype)
        x[7, 3], x[8, 2] = float("nan"), float("-inf")
        for reduce in ("sum", "mean", "max"):
            for tile in (None, 32) if reduce != "max" else (None,):
                out, where = torch.empty(4, width, dtype=dtype), torch.zeros(4, width, dtype=torch.int32)
                options = dict(ids=None, weight=None, position=None, scale=None, where=where, threads=1)
                _native.aggregate(x, indptr, indices, out, reduce, row_scale=factors, tile=tile, **options)
                out[out.isnan()] = 0  # which NaN it is is the processor's affair
                digest.update(out.view(torch.uint8).numpy().tobytes() + where.numpy().tobytes())
print(_native.level, digest.hexdigest())
"""


@pytest.mark.skipif(_native.level == "baseline", reason="needs a processor with AVX2: this one runs the baseline only")
def test_every_instruction_set_gives_the_same_bits():
    assert_same_digest_on_every_level("-c", DIGEST)
