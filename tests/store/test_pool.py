"""`BufferPool`: memory comes back when the last view of it dies, and never before."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.store import BufferPool, PoolUse

MB = 1 << 20


def address(tensor):
    return tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.int64, torch.bool, torch.complex64],
    ids=str,
)
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4), [6, 1], torch.Size([4])], ids=str)
def test_tensors_are_what_was_asked_for(dtype, shape):
    x = BufferPool().empty(shape, dtype)
    assert x.shape == torch.Size(shape)
    assert x.dtype == dtype
    assert x.is_contiguous()
    assert x.data_ptr() % 64 == 0
    x.fill_(1)
    assert (x == 1).all()


def test_large_buffers_are_whole():
    pool = BufferPool()
    x = pool.empty((3 * MB + 5,), torch.uint8)
    x.fill_(7)
    assert int(x.sum(dtype=torch.int64)) == 7 * (3 * MB + 5)
    assert x.data_ptr() % 64 == 0


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0)])
def test_empty_tensors_take_nothing(shape):
    pool = BufferPool()
    assert pool.empty(shape).shape == shape
    assert pool.use() == PoolUse(limit=1 << 30, idle=0, in_use=0, peak=0, hits=0, misses=0)


def test_a_scalar_is_a_tensor_too():
    assert BufferPool().empty(()).shape == ()


def test_memory_comes_back_when_the_tensor_dies():
    pool = BufferPool()
    x = pool.empty((1_000, 8))
    where = address(x)
    assert pool.use().in_use >= 32_000
    assert pool.use().idle == 0
    del x
    assert pool.use().in_use == 0
    assert pool.use().idle >= 32_000
    y = pool.empty((990, 8))
    assert address(y) == where
    assert (pool.use().hits, pool.use().misses) == (1, 1)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[3:5],
        lambda x: x.view(-1)[-1],
        lambda x: x.T,
        lambda x: x.view(torch.int32),
        lambda x: x.numpy(),
        lambda x: x.numpy()[::7, 1],
        lambda x: memoryview(x.numpy()),
        lambda x: x.detach(),
        lambda x: x.unbind()[2],
        lambda x: torch.from_dlpack(x),
        lambda x: np.from_dlpack(x),
        lambda x: x.untyped_storage(),
    ],
)
def test_memory_stays_while_any_view_lives(view):
    pool = BufferPool()
    x = pool.empty((100, 8))
    kept = view(x)
    before = pool.use()
    del x
    gc.collect()
    assert pool.use() == before
    other = pool.empty((100, 8))
    assert pool.use().misses == 2  # not the memory of the living view
    del other, kept
    gc.collect()
    assert pool.use().in_use == 0


def test_memory_stays_while_autograd_needs_it():
    pool = BufferPool()
    x = pool.empty((50, 4)).fill_(2)
    weight = torch.ones(50, 4, requires_grad=True)
    loss = (weight * x).sum()
    del x
    poison = pool.empty((50, 4)).fill_(float("nan"))
    loss.backward()
    assert weight.grad.eq(2).all()
    del poison, loss
    gc.collect()
    assert pool.use().in_use == 0


def test_memory_kept_by_another_thread_stays():
    pool = BufferPool()
    ready, release, values = threading.Event(), threading.Event(), []

    def keep(tensor_box):
        view = tensor_box.pop()[10:20]
        ready.set()
        release.wait(10)
        values.append(view.clone())

    box = [pool.empty((100,), torch.int64).fill_(5)]
    thread = threading.Thread(target=keep, args=(box,))
    thread.start()
    assert ready.wait(10)
    gc.collect()
    assert pool.use().in_use > 0
    pool.empty((100,), torch.int64).fill_(-1)
    release.set()
    thread.join()
    del thread
    gc.collect()
    assert values[0].eq(5).all()
    assert pool.use().in_use == 0


def test_tensors_outlive_their_pool():
    pool = BufferPool()
    x = pool.empty((1_000,)).fill_(3)
    del pool
    gc.collect()
    assert x.eq(3).all()


def test_idle_memory_never_passes_the_limit():
    pool = BufferPool(limit=100_000)
    held = [pool.empty((2_000,)) for _ in range(40)]  # 320 kB, all in use
    assert pool.use().in_use >= 320_000
    while held:
        held.pop()
        assert pool.use().idle <= 100_000
    assert pool.use().in_use == 0
    assert pool.use().idle > 80_000
    assert pool.use().peak >= 320_000


def test_a_limit_of_nothing_keeps_nothing():
    pool = BufferPool(limit=0)
    del (x := [pool.empty((10,))])[0]
    assert x == []
    assert pool.use().idle == 0
    pool.empty((10,))
    assert pool.use().hits == 0


def test_the_oldest_idle_buffers_go_first():
    pool = BufferPool(limit=3 * 4096)
    a, b, c, d = (pool.empty((4096,), torch.uint8) for _ in range(4))
    order = [address(t) for t in (a, b, c, d)]
    del a, b, c, d
    again = [pool.empty((4096,), torch.uint8) for _ in range(3)]
    assert pool.use().hits == 3
    assert sorted(address(t) for t in again) == sorted(order[1:])


def test_a_buffer_that_is_far_too_large_is_not_wasted():
    pool = BufferPool()
    del (box := [pool.empty((MB,))])[0]
    small = pool.empty((100,))
    assert box == []
    assert pool.use().hits == 0
    assert small.untyped_storage().nbytes() == 400


def test_clear_gives_idle_memory_back_and_leaves_what_is_in_use():
    pool = BufferPool()
    kept = pool.empty((1_000,)).fill_(4)
    pool.empty((50_000,))
    assert pool.use().idle >= 200_000
    in_use = pool.use().in_use
    pool.clear()
    assert pool.use().idle == 0
    assert pool.use().in_use == in_use
    assert kept.eq(4).all()


def test_rounding_wastes_at_most_an_eighth():
    pool = BufferPool()
    for size in (1, 63, 64, 65, 1_000, 1_025, 10_000, 99_999, 1_000_001):
        x = pool.empty((size,), torch.uint8)
        assert size <= pool.use().in_use <= max(size * 9 / 8 + 1, size + 64)
        del x


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(1, 6_000)),
            st.tuples(st.just("drop"), st.integers(0, 100)),
            st.tuples(st.just("shrink"), st.integers(0, 100)),  # keep only a view
            st.tuples(st.just("clear"), st.just(0)),
        ),
        max_size=60,
    ),
    st.integers(0, 20_000),
)
def test_living_buffers_never_share_memory(actions, limit):
    pool, alive = BufferPool(limit=limit), []
    for step, (action, value) in enumerate(actions):
        if action == "take":
            alive.append((pool.empty((value,), torch.int32).fill_(step), step))
        elif action == "clear":
            pool.clear()
        elif alive and action == "drop":
            alive.pop(value % len(alive))
        elif alive:
            tensor, mark = alive.pop(value % len(alive))
            alive.append((tensor[len(tensor) // 2 :], mark))
            del tensor
        assert all(tensor.eq(mark).all() for tensor, mark in alive)
        use = pool.use()
        assert use.idle <= limit
        assert use.in_use >= sum(tensor.nbytes for tensor, _ in alive)
        assert (use.in_use == 0) == (not alive)
        assert use.peak >= use.in_use + use.idle
    taken = sum(action == "take" for action, _ in actions)
    assert pool.use().hits + pool.use().misses == taken


def test_many_threads_share_a_pool():
    pool = BufferPool(limit=MB)

    def work(thread):
        random = np.random.default_rng(thread)
        held = []
        for step in range(400):
            mark = thread * 1_000 + step
            held.append((pool.empty((int(random.integers(1, 3_000)),), torch.int32).fill_(mark), mark))
            if len(held) > 5:
                tensor, mark = held.pop(int(random.integers(0, 6)))
                if not tensor.eq(mark).all():
                    return False
                del tensor
        return all(tensor.eq(mark).all() for tensor, mark in held)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(8)))
    gc.collect()
    use = pool.use()
    assert use.in_use == 0
    assert use.hits + use.misses == 8 * 400
    assert use.hits > use.misses


def test_tensors_may_die_in_another_thread():
    pool = BufferPool()
    with ThreadPoolExecutor(4) as threads:
        for _ in range(50):
            boxes = [[pool.empty((500,))] for _ in range(8)]
            list(threads.map(list.clear, boxes))
    assert pool.use().in_use == 0
    assert pool.use().misses <= 8


def test_wrong_sizes_are_errors():
    with pytest.raises(ValueError, match="limit must not be negative, got -1"):
        BufferPool(limit=-1)
    with pytest.raises(ValueError, match="negative"):
        BufferPool().empty((-1, 4))
    with pytest.raises(MemoryError):
        BufferPool().empty((1 << 60,))
