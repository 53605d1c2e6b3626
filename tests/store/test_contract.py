"""Every store keeps one contract: shape, dtype, device, gather, scan and, where rows can be written, add_ and put_."""

import numpy as np
import pytest
import torch

from headrace.pipeline import orders
from headrace.store import (
    ArrayStore,
    BaseStore,
    Cached,
    FileRows,
    Partitioned,
    SharedRows,
    Store,
    Tiered,
    TrainedArray,
    TrainedRows,
    WritableStore,
)

ROWS = torch.randint(-50, 50, (23, 3), generator=torch.Generator().manual_seed(0)).float()  # sums are exact in any order


class Doubled(BaseStore):
    """A user's store: as little as one can define."""

    shape, dtype = ROWS.shape, ROWS.dtype

    def gather(self, ids, *, out=None, check=True):
        return torch.mul(ROWS[ids], 1, out=out)


def stores(folder):
    def file(name):
        np.save(folder / name, ROWS.numpy())
        return FileRows(folder / name, writable=True)

    order = torch.tensor([7, 3, 22])
    yield "array", ArrayStore(ROWS.clone())
    yield "file", file("rows.npy")
    yield "mapped", FileRows(file("mapped.npy").path, mapped=True, writable=True)
    yield "tiers in memory", Tiered(ROWS.clone(), device="cpu", device_cache=0.3)
    yield "ordered tiers", Tiered(ROWS.clone(), device="cpu", device_cache=0.3, order=order)
    yield "tiers and a file", Tiered(file("tiers.npy"), device="cpu", device_cache=0.2, host=0.2, order=order)
    yield "a file alone", Tiered(file("alone.npy"), device="cpu", device_cache=0, host=0)
    yield "cached", Cached(ArrayStore(ROWS.clone()), 0.4)
    yield "cached file", Cached(file("cached.npy"), 0.4)
    yield "shared", SharedRows.create(ROWS, pin=False)


NAMES = ["array", "file", "mapped", "tiers in memory", "ordered tiers", "tiers and a file", "a file alone"]
NAMES += ["cached", "cached file", "shared"]


@pytest.fixture(params=NAMES)
def store(request, tmp_path):
    return dict(stores(tmp_path))[request.param]


def scanned(store, **bound):
    pieces = list(store.scan(**bound))
    begins = [begin for begin, _ in pieces]
    assert begins == list(np.cumsum([0, *(len(piece) for _, piece in pieces[:-1])]))
    return torch.cat([piece for _, piece in pieces])


def test_a_store_says_what_it_is(store):
    assert isinstance(store, Store)
    assert isinstance(store, WritableStore)
    assert (store.shape, store.dtype, store.device, len(store)) == (ROWS.shape, ROWS.dtype, torch.device("cpu"), 23)
    assert store.table is None or torch.equal(store.table, ROWS)


def test_tensors_and_arrays_are_no_stores():
    assert not isinstance(ROWS, Store)
    assert not isinstance(ROWS.numpy(), Store)


@pytest.mark.parametrize("rows", [None, 1, 7, 100])
def test_a_scan_gives_all_rows_in_order(store, rows):
    assert torch.equal(scanned(store, rows=rows), ROWS)
    assert all(len(piece) <= (rows or 23) for _, piece in store.scan(rows=rows))
    with pytest.raises(ValueError, match="rows must be at least 1, not 0"):
        next(iter(store.scan(rows=0)))


def test_written_rows_are_gathered_and_scanned(store):
    expected, ids = ROWS.clone(), torch.tensor([22, 0, 7, 11])
    store.gather(ids)
    store.put_(ids, torch.arange(12.0).view(4, 3))
    expected[ids] = torch.arange(12.0).view(4, 3)
    store.add_(torch.tensor([3, 7, 3]), torch.ones(3, 3))
    expected.index_add_(0, torch.tensor([3, 7, 3]), torch.ones(3, 3))
    assert torch.equal(store.gather(torch.arange(23)), expected)
    assert torch.equal(scanned(store, rows=5), expected)


def test_bad_writes_are_refused_and_change_nothing(store):
    with pytest.raises(IndexError, match=r"ids from 0 to 23 for 23 rows: ids\[1\] is 23, which is out of range"):
        store.put_(torch.tensor([0, 23]), torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"rows must be torch.float32, of shape \(2, 3\); it is torch.float32, \(1, 3\)"):
        store.put_(torch.tensor([0, 1]), torch.ones(1, 3))
    with pytest.raises(ValueError, match=r"rows must be torch.float32, .*; it is torch.float64"):
        store.put_(torch.tensor([0, 1]), torch.ones(2, 3).double())
    assert torch.equal(store.gather(torch.arange(23)), ROWS)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.int16, torch.complex64])
def test_rows_of_any_type_can_be_put(dtype, tmp_path):
    rows, new = torch.randn(9, 5).to(dtype), torch.randn(2, 5).to(dtype)
    expected = rows.clone()
    expected[[8, 1]] = new
    for store in (
        ArrayStore(rows.clone()),
        Tiered(rows.clone(), device="cpu", device_cache=0.5),
        Cached(ArrayStore(rows.clone()), 0.5),
    ):
        store.put_(torch.tensor([8, 1]), new)
        assert torch.equal(store.gather(torch.arange(9)), expected)


def test_rows_that_were_put_survive_a_refill_to_disk(tmp_path):
    np.save(tmp_path / "x.npy", ROWS.numpy())
    store = Tiered(FileRows(tmp_path / "x.npy", writable=True), device="cpu", device_cache=0.1, host=0.1)
    store.put_(torch.tensor([0, 20]), torch.ones(2, 3))
    store.refill(torch.arange(22, -1, -1))
    expected = ROWS.clone()
    expected[[0, 20]] = 1
    assert torch.equal(store.gather(torch.arange(23)), expected)


def test_a_store_of_ones_own_needs_little():
    store = Doubled()
    assert isinstance(store, Store)
    assert not isinstance(store, WritableStore)
    assert (len(store), store.device, store.table, store.row_bytes) == (23, torch.device("cpu"), None, 12)
    assert torch.equal(scanned(store, rows=4), ROWS)
    cached = Cached(store, 0.5)
    assert torch.equal(cached.gather(torch.tensor([4, 4, 9])), ROWS[[4, 4, 9]])
    with pytest.raises(ValueError, match="Doubled has no add_ and put_"):
        cached.put_(torch.tensor([0]), torch.ones(1, 3))
    with pytest.raises(TypeError, match="gather"):
        type("Nothing", (BaseStore,), {})()


def trained(kind, folder, dtype):
    def init(begin, end):
        return ROWS[begin:end]

    if kind == "memory":
        return TrainedArray.create(23, 3, state=2, dtype=dtype, init=init)
    Partitioned.create(folder / "rows", 23, 3, state=2, dtype=dtype, partitions=4, init=init)
    return Partitioned.open(folder / "rows", capacity=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_trained_rows_keep_the_contract_with_their_state(kind, dtype, tmp_path):
    store, ids, new = trained(kind, tmp_path, dtype), torch.tensor([22, 0, 6, 11]), torch.arange(12.0).view(4, 3) / 7
    assert isinstance(store, TrainedRows)
    assert (store.shape, store.dtype, store.device) == ((23, 3), dtype, torch.device("cpu"))
    assert (store.num_rows, store.width, store.state_width) == (23, 3, 2)
    assert (store.disk is None, store.table is not None) == (kind == "memory",) * 2
    expected = ROWS.to(dtype).float()
    assert torch.equal(scanned(store, rows=5), expected)
    if kind == "disk":
        with pytest.raises(IndexError, match="not resident"):
            store.put_(ids, new, torch.ones(4, 2))
        with store.walk(orders.beta(4, 4)) as walk:
            for _ in walk:
                with walk.hold(range(4)):
                    store.put_(ids, new, torch.ones(4, 2))
    else:
        store.put_(ids, new, torch.ones(4, 2))
    expected[ids] = new.to(dtype).float()
    rows, state = store.gather(torch.arange(23))
    assert torch.equal(rows, expected)
    assert torch.equal(state.sum(1).nonzero().flatten(), ids.sort().values)
    assert torch.equal(scanned(store), expected)
    with pytest.raises(ValueError, match=r"4 ids need rows of shape \(4, 3\) and state of shape \(4, 2\), not"):
        store.put_(ids, new, torch.ones(4, 1))
    with pytest.raises(IndexError, match=r"ids\[0\] is 23"):
        store.put_(torch.tensor([23]), new[:1], torch.ones(1, 2))
    if kind == "disk":
        store.checkpoint()
        store.close()
        with Partitioned.open(tmp_path / "rows", capacity=1) as again:
            assert torch.equal(scanned(again), expected)
