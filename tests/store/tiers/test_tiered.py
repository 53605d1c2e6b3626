"""`Tiered`: one gather over memory and disk, writes that stay, and orders that change while it lives."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.store import BufferPool, FileRows, Store, Tiered
from interpreted import run_interpreted

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.float64, torch.int64, torch.bool, torch.complex64]
SHAPES = [(), (1,), (47,), (100,), (602,), (2, 3), (0,)]


def rows_of(shape, dtype=torch.float32, seed=0):
    values = torch.from_numpy(np.random.default_rng(seed).integers(0, 60, shape))
    return values.to(dtype)


def on_disk(path, x):
    np.save(path, (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy())
    return path


def store_of(x, path, *, device=0.25, host=0.25, order=None, **keywords):
    return Tiered(x, device="cpu", device_cache=device, host=host, disk=on_disk(path, x), order=order, **keywords)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_equal_indexing_in_every_tier(tmp_path, dtype, shape):
    x = rows_of((40, *shape), dtype)
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, 40, 90))
    for order in (None, torch.randperm(40)):
        store = store_of(x, tmp_path / "x.npy", order=order, threads=2)
        assert isinstance(store, Store)
        assert (store.shape, store.dtype, len(store)) == (x.shape, dtype, 40)
        for some in (ids, ids.int(), torch.arange(40), torch.zeros(0, dtype=torch.int64), torch.tensor([39]), torch.tensor([0, 0])):
            assert torch.equal(store.gather(some), x[some.long()])


@settings(derandomize=True, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 30),
    device=st.floats(0, 1),
    host=st.one_of(st.just("rest"), st.floats(0, 1)),
    ids=st.lists(st.integers(0, 29), max_size=50),
    seed=st.integers(0, 1000),
)
def test_any_split_gives_the_same_rows(tmp_path, rows, device, host, ids, seed):
    x = rows_of((rows, 3), seed=seed)
    ids = torch.tensor([i % rows for i in ids], dtype=torch.int64)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(rows))
    store = store_of(x, tmp_path / "x.npy", device=device, host=host, order=order)
    assert torch.equal(store.gather(ids), x[ids])
    use = store.use()
    assert sum(t.rows for t in use.tiers) == rows
    assert use.hits == len(ids)
    assert torch.equal(store.gather(ids), x[ids])
    store.refill(order.flip(0))
    assert torch.equal(store.gather(ids), x[ids])


def test_hot_rows_are_those_first_in_order_and_uses_are_counted(tmp_path):
    x = rows_of((10, 4))
    store = store_of(x, tmp_path / "x.npy", device=0.2, host=0.3, order=torch.tensor([7, 2, 9]))  # then 0, 1, 3, 4, ...
    store.gather(torch.tensor([7, 2, 2, 9, 1, 0, 4, 5]))
    device, host, disk = store.use().tiers
    assert [(t.name, t.rows, t.bytes, t.hits, t.moved) for t in (device, host, disk)] == [
        ("device", 2, 32, 3, 48),
        ("host", 3, 48, 3, 48),
        ("disk", 5, 80, 2, 32),
    ]
    assert store.use().hit_rate == 3 / 8
    assert disk.seconds > 0
    assert device.seconds is None
    text = store.describe()
    assert "10 rows of (4,) torch.float32" in text
    assert "x.npy" in text
    assert repr(store) == "Tiered((10, 4), torch.float32: 2 on cpu, 3 in host memory, 5 on disk)"
    assert Tiered(x, device="cpu").use().hit_rate == 0


@pytest.mark.parametrize(
    ("device", "host", "expected"),
    [
        ("64", "rest", (4, 6)),
        (64, 32, (4, 2)),
        ("1KiB", "rest", (10, 0)),
        (0, "100B", (0, 6)),
        (0.0, 1.0, (0, 10)),
        (1.0, 0, (10, 0)),
        (0, 0, (0, 0)),
        ("79", 0, (4, 0)),
    ],
)
def test_budgets_are_bytes_or_shares(tmp_path, device, host, expected):
    store = store_of(rows_of((10, 4)), tmp_path / "x.npy", device=device, host=host)
    assert tuple(t.rows for t in store.use().tiers) == (*expected, 10 - sum(expected))
    assert torch.equal(store.gather(torch.arange(10)), rows_of((10, 4)))


def test_a_memory_map_is_its_own_disk_tier_and_only_hot_rows_are_read(tmp_path):
    x = rows_of((1000, 5))
    mapped = np.load(on_disk(tmp_path / "x.npy", x), mmap_mode="r")
    for rows in (mapped, FileRows(tmp_path / "x.npy", threads=2)):
        store = Tiered(rows, device="cpu", device_cache=0.1, host=0, order=torch.arange(1000).flip(0))
        assert torch.equal(store.gather(torch.tensor([999, 0, 500, 500])), x[[999, 0, 500, 500]])
        assert [t.hits for t in store.use().tiers] == [1, 0, 3]
    part = Tiered(mapped[100:], device="cpu")  # a part of a map is an array like any other
    assert torch.equal(part.gather(torch.tensor([0])), x[[100]])


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64, np.complex128])
def test_types_torch_computes_little_with(tmp_path, dtype, mapped):
    array = np.arange(60).reshape(20, 3).astype(dtype)
    np.save(tmp_path / "x.npy", array)
    store = Tiered(FileRows(tmp_path / "x.npy", mapped=mapped), device="cpu", device_cache=0.3, host=0.3)
    for _ in range(2):
        assert np.array_equal(store.gather(torch.arange(19, -1, -1)).numpy(), array[::-1])
        store.refill(torch.randperm(20))


def test_numpy_rows_and_plain_lists_of_ids():
    array = np.arange(12.0).reshape(4, 3)
    store = Tiered(array, device="cpu", device_cache=0.5)
    assert store.gather([3, 0]).tolist() == array[[3, 0]].tolist()
    assert store.gather(np.array([1], np.uint8)).tolist() == array[[1]].tolist()


def test_outputs_come_from_the_caller_or_the_pool(tmp_path):
    x, pool = rows_of((10, 4)), BufferPool()
    store = store_of(x, tmp_path / "x.npy", pool=pool)
    for _ in range(3):
        assert torch.equal(store.gather(torch.arange(10)), x)
    assert pool.use().hits == 2
    out = torch.full((3, 4), float("nan"))
    assert store.gather(torch.tensor([9, 0, 4]), out=out) is out
    assert torch.equal(out, x[[9, 0, 4]])
    for wrong in (torch.empty(2, 4), torch.empty(3, 4).double(), torch.empty(3, 8)[:, ::2]):
        with pytest.raises(ValueError, match=r"out must be contiguous, torch.float32, of shape .* on cpu"):
            store.gather(torch.tensor([9, 0, 4]), out=wrong)


def test_many_threads_gather_at_once(tmp_path):
    x = rows_of((500, 7))
    store = store_of(x, tmp_path / "x.npy", order=torch.randperm(500), threads=1)
    wrong = []

    def work(seed):
        for i in range(20):
            ids = torch.from_numpy(np.random.default_rng((seed, i)).integers(0, 500, 100))
            if not torch.equal(store.gather(ids), x[ids]):
                wrong.append(seed)

    workers = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong
    assert store.use().hits == 4 * 20 * 100


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != torch.bool], ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)], ids=str)
def test_added_rows_are_where_they_were(tmp_path, dtype, shape):
    x = rows_of((20, *shape), dtype)
    mapped = np.load(on_disk(tmp_path / "x.npy", x), mmap_mode="r+")
    rows = FileRows.of_map(mapped, dtype=dtype)
    store = Tiered(rows, device="cpu", device_cache=0.3, host=0.3, order=torch.randperm(20))
    ids, expected = torch.tensor([3, 19, 3, 0, 7, 3, 11, 12]), x.clone()
    delta = rows_of((8, *shape), dtype, seed=2) % 4 if not dtype.is_complex else rows_of((8, *shape), dtype, seed=2)
    expected.index_add_(0, ids, delta)
    store.add_(ids, delta)
    store.add_(torch.zeros(0, dtype=torch.int32), delta[:0])
    assert torch.equal(store.gather(torch.arange(20)), expected)
    for _ in range(3):  # through memory and back to the file
        store.refill(torch.randperm(20))
        assert torch.equal(store.gather(torch.arange(20)), expected)


def test_adding_is_deterministic_and_in_order():
    x, ids, delta = torch.randn(50, 33), torch.randint(0, 50, (4_000,)), torch.randn(4_000, 33)
    found = []
    for threads in (1, 2, 5):
        store = Tiered(x, device="cpu", threads=threads)
        store.add_(ids, delta)
        found.append(store.gather(torch.arange(50)))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert torch.allclose(found[0], x.index_add(0, ids, delta), atol=1e-4)
    assert not torch.equal(found[0], x)


def test_no_rows_at_all():
    store = Tiered(torch.zeros(0, 3), device="cpu")
    assert store.gather(torch.zeros(0, dtype=torch.int64)).shape == (0, 3)
    assert store.refill(torch.zeros(0, dtype=torch.int64)) == 0
    with pytest.raises(IndexError, match="for 0 rows"):
        store.gather(torch.tensor([0]))


def test_rows_are_copies_of_what_was_given():
    x = rows_of((6, 2))
    store = Tiered(x, device="cpu")
    store.add_(torch.tensor([0]), torch.ones(1, 2))
    assert torch.equal(x, rows_of((6, 2)))


def test_a_read_only_file_refuses_what_it_would_lose(tmp_path):
    x = rows_of((10, 2))
    store = store_of(x, tmp_path / "x.npy", device=0.3, host=0.2)
    before = store.gather(torch.arange(10))
    with pytest.raises(ValueError, match=r"x.npy are read-only"):
        store.add_(torch.tensor([0, 9]), torch.ones(2, 2))  # 9 is on disk
    assert torch.equal(store.gather(torch.arange(10)), before)
    store.add_(torch.tensor([0]), torch.ones(1, 2))
    assert store.refill(torch.tensor([1, 9, 2, 0])) == 2  # 9 comes to the device, and 0 goes to host memory
    with pytest.raises(ValueError, match=r"x.npy are read-only"):
        store.refill(torch.tensor([5, 6, 7, 8, 9]))  # 0 was changed and would have to go
    before[0] += 1
    assert torch.equal(store.gather(torch.arange(10)), before)


def test_refill_changes_what_is_hot_and_nothing_else(tmp_path):
    x = rows_of((100, 3))
    store = store_of(x, tmp_path / "x.npy", device=0.1, host=0.2)
    hot = torch.arange(60, 70)
    store.gather(hot)
    assert store.use().tiers[2].hits == 10
    assert store.refill(hot) > 0
    assert store.refill(hot) == 0
    store.gather(hot)
    assert store.use().tiers[0].hits == 10
    assert store.use().hit_rate == 0.5
    assert torch.equal(store.gather(torch.arange(100)), x)
    assert [t.rows for t in store.use().tiers] == [10, 20, 70]


@pytest.mark.parametrize("ids", [[10], [-1], [0, 2**40]])
def test_ids_out_of_range_are_an_index_error(tmp_path, ids):
    store = store_of(rows_of((10, 2)), tmp_path / "x.npy")
    for check in (True, False):
        with pytest.raises(IndexError, match="for 10 rows"):
            store.gather(torch.tensor(ids), check=check)
    with pytest.raises(IndexError, match="for 10 rows"):
        store.add_(torch.tensor(ids), torch.zeros(len(ids), 2))
    with pytest.raises(IndexError, match="for 10 rows"):
        store.refill(torch.tensor(ids))


@pytest.mark.parametrize(
    ("keywords", "complaint"),
    [
        ({"device_cache": "much"}, "device_cache: 'much' is not a size"),
        ({"device_cache": 1.5}, "device_cache=1.5 must be a share"),
        ({"device_cache": -1}, "device_cache must not be negative"),
        ({"device_cache": True}, "device_cache must be bytes"),
        ({"host": None}, "host must be bytes"),
        ({"device_cache": 0, "host": 8}, "hold 1 of 4 rows, and there is no file for the others"),
        ({"order": torch.tensor([0, 0])}, "order names 2 ids, but only 1 different"),
        ({"device": "meta"}, "device must be 'cpu' or 'cuda', not 'meta'"),
    ],
)
def test_bad_settings_are_named(keywords, complaint):
    with pytest.raises(ValueError, match=complaint):
        Tiered(torch.zeros(4, 2), **{"device": "cpu", **keywords})


def test_other_bad_input_is_named(tmp_path):
    x = torch.zeros(4, 2)
    with pytest.raises(ValueError, match="it is a single number"):
        Tiered(torch.tensor(1.0), device="cpu")
    with pytest.raises(ValueError, match=r"disk holds \(3, 2\) of torch.float32, rows are \(4, 2\)"):
        Tiered(x, device="cpu", device_cache=0, host=0, disk=on_disk(tmp_path / "x.npy", x[:3]))
    with pytest.raises(ValueError, match=r"holds float64, not torch.float32"):
        Tiered(x, device="cpu", device_cache=0, host=0, disk=on_disk(tmp_path / "x.npy", x.double()))
    with pytest.raises(ValueError, match=r"delta must be torch.float32, of shape \(1, 2\)"):
        Tiered(x, device="cpu").add_(torch.tensor([0]), torch.zeros(1, 3))
    with pytest.raises(ValueError, match=r"rows are of torch.bool, which does not add up"):
        Tiered(x.bool(), device="cpu").add_(torch.tensor([0]), torch.ones(1, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="ids must hold integers"):
        Tiered(x, device="cpu").gather(torch.tensor([0.5]))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="device='cuda', but torch sees no GPU"):
        Tiered(torch.zeros(4, 2), device="cuda")
    assert Tiered(torch.zeros(4, 2)).device.type == "cpu"


ON_A_GPU = """
import sys, numpy as np, torch
import headrace.store.tiers.gpu_memory as gpu_memory
from headrace.store import ArrayStore, FileRows, Tiered
from headrace.store.tiers.changes import in_order
from headrace.store.tiers.counts import row_stride

gpu_memory.pin_in_place = lambda *_, **__: None  # what only a driver can do
gpu_memory.GpuMemory.settle = lambda _: None
torch.manual_seed(0)
for dtype in (torch.float32, torch.bfloat16, torch.int8):
    for shape in ((), (100,), (2, 3), (0,)):
        x = torch.randint(0, 30, (40, *shape)).to(dtype)
        for order in (None, torch.randperm(40)):
            np.save(sys.argv[1], (x.view(torch.int16) if dtype == torch.bfloat16 else x).numpy())
            file = FileRows(sys.argv[1], dtype=dtype, writable=True)
            store = Tiered(file, device="cpu", device_cache=0.25, host=0.25, order=order)
            stride = row_stride(x[0].numel() * dtype.itemsize, dtype.itemsize, None)
            store._memory = gpu_memory.GpuMemory(10, 10, 40, shape, dtype, stride=stride, device=torch.device("cpu"))
            store._fill(ArrayStore(x), None if order is None else in_order(order, 40))
            ids = torch.randint(0, 40, (60,))
            assert torch.equal(store.gather(ids), x[ids]), (dtype, shape)
            where = (torch.arange(40) if order is None else torch.argsort(order))[ids]
            near, disk = int((where < 10).sum()), int((where >= 20).sum())
            assert shape == (0,) or [t.hits for t in store.use().tiers] == [near, 60 - near - disk, disk]
            delta = torch.randint(0, 3, (60, *shape)).to(dtype)
            expected = x.index_add(0, ids, delta)
            store.add_(ids, delta)
            assert torch.equal(store.gather(torch.arange(40)), expected)
            for _ in range(2):
                store.refill(torch.randperm(40))
                assert torch.equal(store.gather(torch.arange(40)), expected)
print("equal")
"""


def test_the_tiers_of_a_gpu_under_the_interpreter(tmp_path):
    run_interpreted(ON_A_GPU, str(tmp_path / "x.npy"))
