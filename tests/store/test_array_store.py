"""`ArrayStore`: rows by id, out of one array and into a pool's buffers."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from headrace.store import ArrayStore, BufferPool, Store


@pytest.fixture
def rows():
    return torch.arange(24.0).view(8, 3)


def test_it_is_a_store(rows):
    store = ArrayStore(rows)
    assert isinstance(store, Store)
    assert len(store) == 8
    assert store.shape == (8, 3)
    assert store.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool], ids=str)
@pytest.mark.parametrize("pooled", [False, True])
def test_gather_equals_indexing(rows, dtype, pooled):
    store = ArrayStore(rows.to(dtype), pool=BufferPool() if pooled else None, threads=2)
    for ids in (torch.tensor([7, 0, 7]), torch.tensor([3], dtype=torch.int32), torch.zeros(0, dtype=torch.int64)):
        out = store.gather(ids)
        assert out.dtype == dtype
        assert torch.equal(out, rows.to(dtype)[ids.long()])


def test_ids_may_be_a_list_or_numpy(rows):
    for pool in (None, BufferPool()):
        store = ArrayStore(rows, pool=pool)
        assert torch.equal(store.gather([1, 2]), rows[1:3])
        assert torch.equal(store.gather(np.array([1, 2])), rows[1:3])


def test_gather_takes_buffers_from_its_pool_and_gives_them_back(rows):
    pool = BufferPool()
    store = ArrayStore(rows, pool=pool)
    for _ in range(5):
        batch = store.gather(torch.arange(8))
        assert torch.equal(batch, rows)
        del batch
    assert (pool.use().misses, pool.use().hits) == (1, 4)
    held = [store.gather(torch.tensor([i])) for i in range(3)]
    assert [h[0, 0].item() for h in held] == [0, 3, 6]


def test_out_goes_before_the_pool(rows):
    pool = BufferPool()
    out = torch.empty(2, 3)
    assert ArrayStore(rows, pool=pool).gather(torch.tensor([5, 1]), out=out) is out
    assert torch.equal(out, rows[[5, 1]])
    assert pool.use().misses == 0


def test_numpy_and_memory_maps_are_not_copied(tmp_path):
    array = np.arange(12.0).reshape(4, 3)
    store = ArrayStore(array)
    array[2] = -1
    assert store.gather([2]).eq(-1).all()
    np.save(tmp_path / "x.npy", array)
    mapped = ArrayStore(np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert mapped.gather([3]).tolist() == [[9, 10, 11]]


def test_rows_of_several_dimensions():
    x = torch.randn(5, 2, 4)
    assert torch.equal(ArrayStore(x, pool=BufferPool()).gather([4, 4]), x[[4, 4]])


@pytest.mark.parametrize("ids", [[8], [-1], [0, 2**40]])
@pytest.mark.parametrize("pooled", [False, True])
def test_ids_out_of_range_are_an_index_error_and_cost_no_buffer(rows, ids, pooled):
    pool = BufferPool()
    store = ArrayStore(rows, pool=pool if pooled else None)
    with pytest.raises(IndexError, match="for 8 rows"):
        store.gather(torch.tensor(ids))
    assert pool.use().in_use == 0


def test_wrong_out_is_a_value_error(rows):
    with pytest.raises(ValueError, match="out must be contiguous"):
        ArrayStore(rows).gather(torch.tensor([0]), out=torch.empty(2, 3))


def test_add_counts_repeated_ids(rows):
    expected = rows.clone()
    expected[2] += 1 + 10
    expected[0] += 100
    store = ArrayStore(rows)
    store.add_(torch.tensor([2, 0, 2]), torch.tensor([[1.0], [100.0], [10.0]]).expand(3, 3))
    assert torch.equal(store.rows, expected)
    assert torch.equal(rows, expected)  # the array itself, not a copy
    store.add_([2], torch.full((1, 3), -11.0))
    store.add_(torch.tensor([0], dtype=torch.int32), torch.full((1, 3), -100.0))
    assert torch.equal(store.rows, torch.arange(24.0).view(8, 3))
    store.add_(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3))
    assert torch.equal(store.rows, torch.arange(24.0).view(8, 3))


@pytest.mark.parametrize("ids", [[8], [-1]])
def test_adding_out_of_range_is_an_error_and_changes_nothing(rows, ids):
    store = ArrayStore(rows)
    with pytest.raises((IndexError, RuntimeError)):
        store.add_(torch.tensor(ids), torch.ones(1, 3))
    assert torch.equal(store.rows, torch.arange(24.0).view(8, 3))


def test_adding_by_something_that_is_no_id_is_an_error(rows):
    with pytest.raises(ValueError, match="ids must hold integers"):
        ArrayStore(rows).add_(torch.tensor([0.5]), torch.ones(1, 3))


def test_adding_to_a_read_only_memory_map_is_an_error_and_not_a_crash(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 2), np.float32))
    code = f"""
import numpy as np, torch
from headrace.store import ArrayStore
store = ArrayStore(np.load({str(tmp_path / "x.npy")!r}, mmap_mode="r"))
try: store.add_(torch.tensor([0]), torch.ones(1, 2))
except (ValueError, RuntimeError, TypeError): pass
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
