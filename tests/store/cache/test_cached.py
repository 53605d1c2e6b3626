"""`Cached`: the same rows as the store it wraps, whatever fits, whoever else is at it."""

import dataclasses
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.store import ArrayStore, BaseStore, BufferPool, Cached, CacheUse, Store

POLICIES = ["sieve", "lru", "clock", "s3fifo", "planned"]


class Watched(ArrayStore):
    """Remembers what it was asked for; fails or waits when told to."""

    def __init__(self, rows):
        super().__init__(rows, threads=1)
        self.calls, self.fail, self.delay = [], False, 0.0

    def gather(self, ids, *, out=None):
        self.calls.append(ids.tolist())
        time.sleep(self.delay)
        if self.fail:
            raise OSError("the disk is gone")
        return super().gather(ids, out=out)


@pytest.fixture
def rows():
    return torch.arange(60.0).view(20, 3)


def run(store, batches):
    """Gathers all batches, planned if need be."""
    if store.policy == "planned":
        store.plan(batches)
    return [store.gather(batch) for batch in batches]


def test_it_is_a_store(rows):
    store = Cached(ArrayStore(rows), 0.5, threads=1)
    assert isinstance(store, Store)
    assert (len(store), store.shape, store.dtype, store.device.type) == (20, (20, 3), torch.float32, "cpu")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (47,), (100,), (602,), (2, 3), (0,)], ids=str)
def test_gather_equals_indexing(policy, dtype, shape):
    table = torch.randint(0, 100, (40, *shape)).to(dtype)
    store = Cached(ArrayStore(table, threads=1), 0.3, policy=policy, threads=2)
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 40, (size,), generator=draw) for size in (5, 0, 30, 1, 12, 40)]
    batches.insert(2, batches[0].int())
    for batch, found in zip(batches, run(store, batches), strict=True):
        assert found.dtype == dtype
        assert torch.equal(found, table[batch.long()])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("capacity", [0, 12, 11, 36, "0.5KiB", 1 << 40, 0.0, 1.0])
def test_any_capacity_serves_any_request(rows, policy, capacity):
    store = Cached(ArrayStore(rows, threads=1), capacity, policy=policy, threads=1)
    batches = [torch.arange(20), torch.tensor([3, 3, 3, 4]), torch.arange(19, -1, -1), torch.arange(20).repeat(3)]
    for batch, found in zip(batches, run(store, batches), strict=True):
        assert torch.equal(found, rows[batch])
    use = store.use()
    assert use.rows_held <= use.capacity_rows <= 20
    assert use.hits + use.misses == use.requests == sum(map(len, batches))


def test_capacity_is_bytes_or_a_share_of_the_rows(rows):
    for capacity, expected in ((36, 3), (47, 3), (0, 0), ("60B", 5), ("1GiB", 20), (0.25, 5), (1.0, 20)):
        assert Cached(ArrayStore(rows), capacity).capacity_rows == expected
    for capacity in (-1, 1.5, -0.1, "many", float("nan")):
        with pytest.raises(ValueError, match=r"capacity|size"):
            Cached(ArrayStore(rows), capacity)
    for capacity in (True, None):
        with pytest.raises(TypeError, match="capacity must be bytes"):
            Cached(ArrayStore(rows), capacity)


def test_misses_are_fetched_once_and_in_one_call(rows):
    wrapped = Watched(rows)
    store = Cached(wrapped, 0.5, threads=1)
    store.gather(torch.tensor([4, 9, 4, 4, 1]))
    store.gather(torch.tensor([1, 2, 9, 2]))
    store.gather(torch.tensor([4, 1]))
    assert wrapped.calls == [[4, 9, 1], [2]]
    assert store.use().bytes_moved == 4 * 12


def test_use_counts_and_reset_starts_again(rows):
    store = Cached(ArrayStore(rows), 24, policy="lru", threads=1)
    store.gather(torch.tensor([0, 1, 0, 2]))  # 2 finds both slots in use
    store.gather(torch.tensor([3, 1]))  # 3 makes 0 go: 1 is in use, though it comes later
    use = store.use()
    assert dataclasses.replace(use, seconds=None) == CacheUse("lru", 2, 2, 6, 2, 4, 1, 1, 48, None)
    assert use.hit_rate == 2 / 6
    assert min(use.seconds.policy, use.seconds.fetch, use.seconds.copy) > 0
    store.reset()
    assert (store.use().requests, store.use().seconds.fetch, store.use().rows_held, store.use().hit_rate) == (0, 0, 2, 0)
    assert torch.equal(store.gather(torch.tensor([1])), rows[1:2])
    assert store.use().hits == 1


def test_out_and_pool(rows):
    pool = BufferPool()
    store = Cached(ArrayStore(rows), 0.5, pool=pool, threads=1)
    out = torch.empty(3, 3)
    for _ in range(2):
        assert store.gather(torch.tensor([5, 1, 5]), out=out) is out
        assert torch.equal(out, rows[[5, 1, 5]])
    for _ in range(3):
        store.gather([1, 2, 3])
    assert pool.use().in_use == 0
    assert pool.use().hits > 0
    for bad in (torch.empty(2, 3), torch.empty(3, 3, dtype=torch.float64), torch.empty(3, 6)[:, ::2]):
        with pytest.raises(ValueError, match="out must be contiguous"):
            store.gather(torch.tensor([5, 1, 5]), out=bad)


@pytest.mark.parametrize("policy", POLICIES)
def test_ids_out_of_range_are_named_and_leave_the_cache_alone(rows, policy):
    store = Cached(ArrayStore(rows), 0.5, policy=policy)
    for bad in (-1, 20):
        with pytest.raises(IndexError, match=rf"ids\[1\] is {bad}, which is out of range"):
            store.gather(torch.tensor([0, bad]))
    with pytest.raises(ValueError, match="integers"):
        store.gather(torch.tensor([0.5]))
    assert store.use().rows_held == 0


def test_options_that_are_not_there_are_named(rows):
    with pytest.raises(ValueError, match="policy must be one of sieve, lru"):
        Cached(ArrayStore(rows), 1, policy="fifo")
    with pytest.raises(ValueError, match="lookahead must be at least 1"):
        Cached(ArrayStore(rows), 1, policy="planned", lookahead=0)
    with pytest.raises(ValueError, match="device must be"):
        Cached(ArrayStore(rows), 1, device="meta")
    with pytest.raises(ValueError, match="this cache has policy='lru'"):
        Cached(ArrayStore(rows), 1, policy="lru").plan([])


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_named(rows):
    with pytest.raises(ValueError, match="torch sees no GPU"):
        Cached(ArrayStore(rows), 1, device="cuda")


@pytest.mark.parametrize("policy", POLICIES)
def test_add_reaches_the_store_and_the_cached_copies(policy):
    rows = torch.zeros(20, 3, dtype=torch.bfloat16)
    store = Cached(ArrayStore(rows), 0.5, policy=policy, threads=1)
    ids = torch.tensor([1, 15, 1, 3])
    delta = torch.tensor([[0.1], [2.0], [256.0], [3.0]]).expand(4, 3).bfloat16()
    batches = [torch.arange(8), torch.arange(20), torch.arange(20)]
    if policy == "planned":
        store.plan(batches)
    store.gather(batches[0])
    before = store.use()
    store.add_(ids, delta)
    assert torch.equal(rows, torch.zeros_like(rows).index_add_(0, ids, delta))
    assert torch.equal(store.gather(batches[1]), rows)
    assert torch.equal(store.gather(batches[2]), rows)
    assert store.use().requests == before.requests + 40
    with pytest.raises(IndexError, match=r"\[0\] is 20"):
        store.add_(torch.tensor([20]), delta[:1])
    with pytest.raises(ValueError, match=r"delta must be .*of shape"):
        store.add_(ids, delta[:1])


def test_rows_that_cannot_be_written_are_said_to_be(rows):
    class Plain(BaseStore):
        shape, dtype = rows.shape, rows.dtype

        def gather(self, ids, *, out=None, check=True):
            return torch.index_select(rows, 0, ids, out=out)

    with pytest.raises(ValueError, match="Plain has no add_"):
        Cached(Plain(), 1.0).add_(torch.tensor([0]), torch.ones(1, 3))
    store = Cached(Plain(), 1.0)
    assert torch.equal(store.gather([4, 5]), rows[4:6])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_fetch_that_fails_leaves_no_wrong_rows(rows, policy):
    wrapped = Watched(rows)
    store = Cached(wrapped, 0.5, policy=policy, threads=1)
    batches = [torch.arange(6), torch.arange(3, 12), torch.arange(20), torch.arange(20)]
    if policy == "planned":
        store.plan(batches)
    for number, batch in enumerate(batches):
        wrapped.fail = number == 1
        if wrapped.fail:
            with pytest.raises(OSError, match="the disk is gone"):
                store.gather(batch)
        else:
            assert torch.equal(store.gather(batch), rows[batch])


def test_a_write_whose_rows_cannot_be_read_again_drops_them():
    wrapped = Watched(torch.zeros(10, 2))
    store = Cached(wrapped, 1.0, threads=1)
    store.gather(torch.arange(10))
    wrapped.fail = True
    with pytest.raises(OSError, match="the disk is gone"):
        store.add_(torch.tensor([1, 2]), torch.ones(2, 2))
    wrapped.fail = False
    assert store.use().rows_held == 8
    assert torch.equal(store.gather(torch.arange(10)), wrapped.rows)


def test_caches_wrap_caches(rows):
    inner = Cached(ArrayStore(rows), 0.5, threads=1)
    outer = Cached(inner, 0.2, policy="lru", threads=1)
    for ids in (torch.arange(20), torch.arange(5), torch.arange(5)):
        assert torch.equal(outer.gather(ids), rows[ids])
    outer.add_(torch.tensor([0, 0]), torch.ones(2, 3))
    assert torch.equal(outer.gather(torch.arange(20)), rows)
    assert float(rows[0, 0]) == 2


def test_a_memory_map_is_cached(tmp_path):
    table = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float16, shape=(100, 5))
    table[:] = np.arange(500).reshape(100, 5)
    store = Cached(ArrayStore(np.load(tmp_path / "x.npy", mmap_mode="r"), threads=1), 0.1, threads=1)
    for _ in range(2):
        assert torch.equal(store.gather(torch.arange(50, 60)), torch.arange(250, 300).view(10, 5).half())
    assert store.use().hits == 10


@pytest.mark.parametrize("policy", ["sieve", "lru", "clock", "s3fifo"])
@pytest.mark.parametrize("capacity", [0, 40, 1200, 0.5])
def test_threads_gather_at_a_time(policy, capacity):
    table = torch.arange(4000.0).view(400, 10)
    store = Cached(ArrayStore(table, threads=1), capacity, policy=policy, threads=1)
    wrong = []

    def work(seed):
        draw = torch.Generator().manual_seed(seed)
        for _ in range(150):
            ids = (torch.rand(60, generator=draw) ** 3 * 400).long()
            if not torch.equal(store.gather(ids), table[ids]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)
    assert store.use().requests == 4 * 150 * 60


def test_gathers_see_all_of_a_write_or_nothing():
    """Every write adds one to all rows: a gather that sees two numbers saw half of one."""
    store = Cached(ArrayStore(torch.zeros(50, 4)), 0.4, policy="lru", threads=1)
    halves, stop = [], threading.Event()

    def read(seed):
        draw = torch.Generator().manual_seed(seed)
        while not stop.is_set():
            if len(store.gather(torch.randint(0, 50, (30,), generator=draw)).unique()) != 1:
                halves.append(seed)

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(100):
        store.add_(torch.arange(50), torch.ones(50, 4))
    stop.set()
    for reader in readers:
        reader.join(timeout=60)
    assert not halves
    assert torch.equal(store.gather(torch.arange(50)), torch.full((50, 4), 100.0))


def test_a_write_waits_for_gathers_under_way_and_later_ones_for_it():
    """A row read before the write and kept after it would be the old one for good."""
    reads, go = [], threading.Event()

    class Slow(ArrayStore):
        def gather(self, ids, *, out=None):
            found = super().gather(ids, out=out)
            reads.append(ids.tolist())
            go.wait(10)
            return found

    rows = torch.zeros(6, 2)
    store = Cached(Slow(rows, threads=1), 1.0, threads=1)

    def start(run, *arguments):
        thread = threading.Thread(target=run, args=arguments)
        thread.start()
        thread.join(timeout=0.1)
        assert thread.is_alive()
        return thread

    threads = [
        start(store.gather, torch.tensor([1, 2])),
        start(store.add_, torch.tensor([2, 3]), torch.ones(2, 2)),
        start(store.gather, torch.tensor([3, 4])),
    ]
    assert reads == [[1, 2]]
    assert not rows.any()
    go.set()
    for thread in threads:
        thread.join(timeout=10)
    assert torch.equal(store.gather(torch.arange(6)), rows)
    assert float(rows.sum()) == 4


def test_fetches_overlap():
    """Four gathers of 0.2 s each take less than two, though they share rows that none has yet."""
    wrapped = Watched(torch.arange(80.0).view(40, 2))
    store = Cached(wrapped, 0.5, threads=1)
    wrapped.delay = 0.2
    found = [None] * 4

    def work(i):
        found[i] = store.gather(torch.arange(i, i + 10))

    begin = time.perf_counter()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.perf_counter() - begin < 0.6
    for i in range(4):
        assert torch.equal(found[i], wrapped.rows[i : i + 10])


def test_a_plan_is_consumed_as_it_is_needed(rows):
    drawn = 0

    def batches():
        nonlocal drawn
        for i in range(100):
            drawn += 1
            yield torch.tensor([i % 20, (i + 1) % 20])

    store = Cached(ArrayStore(rows), 0.2, policy="planned", lookahead=5, threads=1)
    store.plan(batches())
    assert drawn == 0
    for i in range(100):
        store.gather(torch.tensor([i % 20, (i + 1) % 20]))
        assert drawn == min(i + 6, 100)
    with pytest.raises(ValueError, match="gather 100 is not in the plan, which has 100 batches"):
        store.gather(torch.tensor([0]))


@pytest.mark.parametrize("lookahead", [1, 64])
def test_a_gather_that_differs_from_the_plan_is_named_and_may_be_tried_again(rows, lookahead):
    store = Cached(ArrayStore(rows), 0.2, policy="planned", lookahead=lookahead, threads=1)
    with pytest.raises(ValueError, match="call plan"):
        store.gather(torch.tensor([0]))
    batches = [torch.tensor([1, 2]), torch.tensor([2, 3, 4]), torch.tensor([5])]
    store.plan(batches)
    store.gather(batches[0])
    for wrong in ([2, 3, 5], [2, 3], [2, 3, 4, 5]):
        with pytest.raises(ValueError, match="batch 1 of the plan differs from the ids to gather, first at position"):
            store.gather(torch.tensor(wrong))
    for batch in batches[1:]:
        assert torch.equal(store.gather(batch), rows[batch])
    store.plan([torch.tensor([1]), torch.tensor([99])])
    with pytest.raises(IndexError, match=r"batches\[1\]\[0\] is 99"):
        store.gather(torch.tensor([1]))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(POLICIES),
    st.integers(0, 14),
    st.lists(st.lists(st.integers(0, 11), max_size=20), max_size=12),
    st.integers(1, 4),
)
def test_rows_are_right_and_counts_add_up(policy, capacity, batches, lookahead):
    rows = torch.arange(24, dtype=torch.int16).view(12, 2)
    store = Cached(ArrayStore(rows, threads=1), 4 * capacity, policy=policy, lookahead=lookahead, threads=1)
    tensors = [torch.tensor(batch, dtype=torch.int64) for batch in batches]
    for batch, found in zip(tensors, run(store, tensors), strict=True):
        assert torch.equal(found, rows[batch])
    use = store.use()
    assert use.requests == sum(map(len, batches))
    assert use.rows_held == use.bytes_moved // 4 - use.bypassed - use.evictions
    assert use.rows_held <= min(capacity, 12)
