"""`FileRows`: rows of an .npy file by id, read by threads or through a map."""

import os

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import _native
from headrace.store import BufferPool, FileRows, Store

TYPES = [np.float32, np.float64, np.float16, np.int8, np.uint16, np.int64, np.bool_, np.complex64]


def saved(path, shape, dtype=np.float32, seed=0):
    array = np.random.default_rng(seed).integers(0, 100, shape).astype(dtype)
    np.save(path, array)
    return array


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.__name__)
@pytest.mark.parametrize("shape", [(50,), (50, 1), (50, 47), (50, 100), (50, 602), (50, 2, 3), (50, 0)], ids=str)
def test_rows_equal_indexing(tmp_path, mapped, dtype, shape):
    array = saved(tmp_path / "x.npy", shape, dtype)
    store = FileRows(tmp_path / "x.npy", mapped=mapped)
    assert isinstance(store, Store)
    assert store.shape == shape
    for ids in ([], [49], [0, 1, 2, 3], [7, 7, 7], np.random.default_rng(1).integers(0, 50, 300)):
        for kind in (torch.int64, torch.int32):
            out = store.gather(torch.as_tensor(ids).to(kind))
            assert out.shape == (len(ids), *shape[1:])
            assert torch.equal(out, torch.from_numpy(array[np.asarray(ids, dtype=np.int64)]))


@settings(derandomize=True, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 60), st.integers(1, 9), st.lists(st.integers(0, 59), max_size=200), st.sampled_from([1, 3, 16]))
def test_any_ids_any_places_any_threads(tmp_path, rows, width, ids, threads):
    array = saved(tmp_path / "x.npy", (rows, width))
    ids = torch.tensor([i % rows for i in ids], dtype=torch.int64)
    store = FileRows(tmp_path / "x.npy", threads=threads)
    assert torch.equal(store.gather(ids), torch.from_numpy(array)[ids])
    places = torch.from_numpy(np.random.default_rng(len(ids)).permutation(len(ids) + 3)[: len(ids)])
    out = torch.full((len(ids) + 3, width), -1.0)
    store.read(ids, out, positions=places)
    assert torch.equal(out[places], torch.from_numpy(array)[ids])
    assert int((out == -1).all(dim=1).sum()) == 3


def test_long_runs_are_split_and_whole(tmp_path):
    array = saved(tmp_path / "x.npy", (40_000, 16))  # 2.5 MB: several calls, and more rows than one call has pieces for
    store = FileRows(tmp_path / "x.npy", threads=4)
    every = torch.arange(40_000)
    assert torch.equal(store.gather(every), torch.from_numpy(array))
    assert torch.equal(store.gather(every.flip(0)), torch.from_numpy(array).flip(0))
    mixed = torch.from_numpy(np.random.default_rng(0).permutation(40_000))
    assert torch.equal(store.gather(mixed), torch.from_numpy(array)[mixed])


def test_bfloat16_is_kept_as_bits(tmp_path):
    x = torch.randn(9, 5).bfloat16()
    np.save(tmp_path / "x.npy", x.view(torch.int16).numpy())
    store = FileRows(tmp_path / "x.npy", dtype=torch.bfloat16)
    assert torch.equal(store.gather(torch.tensor([8, 2])), x[[8, 2]])


def test_rows_past_two_to_the_31_bytes(tmp_path):
    rows = (1 << 31) + 64
    with open(tmp_path / "x.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|i1", "fortran_order": False, "shape": (rows, 2)})
        begin = file.tell()
        for i, row in enumerate((5, (1 << 31) - 1, rows - 1)):
            file.seek(begin + 2 * row)
            file.write(bytes([i + 1, i + 2]))
    assert FileRows(tmp_path / "x.npy").gather(torch.tensor([rows - 1, 5, (1 << 31) - 1])).tolist() == [[3, 4], [1, 2], [2, 3]]


def test_buffers_come_from_the_pool_or_the_caller(tmp_path):
    array, pool = saved(tmp_path / "x.npy", (6, 3)), BufferPool()
    store = FileRows(tmp_path / "x.npy", pool=pool)
    for _ in range(3):
        assert torch.equal(store.gather(torch.tensor([5, 1])), torch.from_numpy(array[[5, 1]]))
    assert pool.use().hits == 2
    out = torch.empty(1, 3)
    assert store.gather(torch.tensor([2]), out=out) is out
    with pytest.raises(ValueError, match="out must be contiguous"):
        store.gather(torch.tensor([2]), out=torch.empty(2, 3))


@pytest.mark.parametrize("ids", [[6], [-1], [0, 2**40]])
@pytest.mark.parametrize("mapped", [False, True])
def test_ids_out_of_range_are_an_index_error(tmp_path, ids, mapped):
    saved(tmp_path / "x.npy", (6, 3))
    with pytest.raises(IndexError, match="for 6 rows"):
        FileRows(tmp_path / "x.npy", mapped=mapped).gather(torch.tensor(ids))


def test_the_native_reader_checks_what_it_follows(tmp_path):
    saved(tmp_path / "x.npy", (6, 3))
    fd, out = os.open(tmp_path / "x.npy", os.O_RDONLY), torch.empty(2, 12, dtype=torch.uint8)
    for ids, positions, complaint in (([6], None, "id out"), ([0], [2], "position out"), ([0, 1, 2], None, "too few")):
        places = None if positions is None else torch.tensor(positions)
        with pytest.raises(ValueError, match=complaint):
            _native.read_rows(fd, 128, 6, 12, torch.tensor(ids), out, positions=places, threads=1)
    with pytest.raises(ValueError, match="rows of 11 bytes"):
        _native.read_rows(fd, 128, 6, 11, torch.tensor([0]), out, positions=None, threads=1)
    os.close(fd)


def test_a_file_cut_short_is_an_error_that_names_it(tmp_path):
    saved(tmp_path / "x.npy", (100, 3))
    store = FileRows(tmp_path / "x.npy", threads=3)
    os.truncate(tmp_path / "x.npy", 128 + 50 * 12 + 5)
    assert store.gather(torch.tensor([49])).shape == (1, 3)
    with pytest.raises(OSError, match=r"x.npy: row 50 lies behind the end of the file"):
        store.gather(torch.tensor([50]))
    with pytest.raises(OSError, match=r"x.npy: row \d+ lies behind the end of the file"):
        store.gather(torch.arange(100))
    with pytest.raises(ValueError, match="is cut short"):
        FileRows(tmp_path / "x.npy")


def test_a_closed_file_is_an_error(tmp_path):
    saved(tmp_path / "x.npy", (4, 3))
    store = FileRows(tmp_path / "x.npy")
    store.close()
    with pytest.raises(OSError, match="row 1 cannot be read"):
        store.gather(torch.tensor([1]))


def test_files_that_hold_no_rows_are_refused(tmp_path):
    np.save(tmp_path / "number.npy", np.float32(1))
    np.save(tmp_path / "columns.npy", np.asfortranarray(np.zeros((3, 2))))
    np.save(tmp_path / "text.npy", np.array(["a"]))
    (tmp_path / "noise.npy").write_bytes(b"noise, and more of it")
    for name, complaint in (
        ("number", "holds a single number"),
        ("columns", "is in Fortran order"),
        ("text", "torch has no type for"),
        ("noise", "is no .npy file"),
    ):
        with pytest.raises(ValueError, match=complaint):
            FileRows(tmp_path / f"{name}.npy")
    saved(tmp_path / "x.npy", (4, 3))
    with pytest.raises(ValueError, match=r"holds float32, not torch.int8"):
        FileRows(tmp_path / "x.npy", dtype=torch.int8)


def test_adding_needs_a_writable_file_and_changes_it(tmp_path):
    array = saved(tmp_path / "x.npy", (6, 3))
    with pytest.raises(ValueError, match="are read-only: open them with writable=True"):
        FileRows(tmp_path / "x.npy").add_(torch.tensor([0]), torch.ones(1, 3))
    store = FileRows(tmp_path / "x.npy", writable=True)
    store.add_(torch.tensor([4, 0, 4]), torch.tensor([[1.0], [2.0], [3.0]]).expand(3, 3))
    array[4] += 4
    array[0] += 2
    assert torch.equal(store.gather(torch.arange(6)), torch.from_numpy(array))
    store.flush()
    assert np.array_equal(np.load(tmp_path / "x.npy"), array)


def test_a_memory_map_is_read_from_its_file(tmp_path):
    array = saved(tmp_path / "x.npy", (6, 3))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    store = FileRows.of_map(mapped)
    assert torch.equal(store.gather(torch.tensor([5, 0])), torch.from_numpy(array[[5, 0]]))
    assert not store.writable
    assert FileRows.of_map(np.load(tmp_path / "x.npy", mmap_mode="r+")).writable
    raw = np.memmap(tmp_path / "raw", np.int16, "w+", shape=(4, 2), offset=6)
    raw[:] = np.arange(8).reshape(4, 2)
    raw.flush()
    assert FileRows.of_map(raw).gather(torch.tensor([3])).tolist() == [[6, 7]]
    for part in (mapped[1:], array):
        with pytest.raises(ValueError, match="no whole memory map"):
            FileRows.of_map(part)
