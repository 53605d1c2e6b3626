"""`kept_memory`: freed memory stays with the process while somebody is in the block, and no result changes."""

import subprocess
import sys
import threading

import pytest
import torch

from child import run_python
from headrace import _native
from headrace.store import heap, kept_memory, returned_memory


@pytest.fixture(autouse=True)
def _ends_with_nobody_inside():
    assert heap._holders == 0
    yield
    assert heap._holders == 0


def work():
    """A few steps of a small model, with tensors of megabytes: what they gave."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(256, 256)
    x = torch.randn(4_000, 256)
    for _ in range(3):
        layer.zero_grad()
        loss = layer(x).relu().square().mean()
        loss.backward()
    return loss.item(), layer.weight.grad


def assert_same(ours, truth):
    assert ours[0] == truth[0]
    assert torch.equal(ours[1], truth[1])


def test_results_inside_are_those_outside():
    truth = work()
    with kept_memory():
        assert_same(work(), truth)
        assert_same(work(), truth)
    assert_same(work(), truth)


def test_the_heap_is_told_once_by_the_first_and_the_last(monkeypatch):
    told = []
    monkeypatch.setattr(_native, "keep_freed_memory", told.append)
    with kept_memory():
        with kept_memory(), kept_memory():
            assert heap._holders == 3
            assert told == [True]
        assert heap._holders == 1
        assert told == [True]
    assert told == [True, False]
    with kept_memory():
        assert told == [True, False, True]
    assert told == [True, False] * 2


def test_an_error_passes_and_leaves_the_block(monkeypatch):
    told = []
    monkeypatch.setattr(_native, "keep_freed_memory", told.append)
    with pytest.raises(ZeroDivisionError), kept_memory(), kept_memory():
        _ = 1 // 0
    assert heap._holders == 0
    assert told == [True, False]


def test_a_generator_that_is_thrown_away_leaves_the_block():
    def steps():
        with kept_memory():
            yield from range(10)

    running = steps()
    assert next(running) == 0
    assert heap._holders == 1
    running.close()
    assert heap._holders == 0


def test_it_decorates_a_function():
    @kept_memory()
    def holders():
        return heap._holders

    assert [holders(), holders()] == [1, 1]


def test_threads_count_together():
    truth, wrong = work(), []
    inside, leave = threading.Barrier(5), threading.Event()

    def run():
        with kept_memory():
            inside.wait()
            leave.wait()
        for _ in range(60):
            with kept_memory():
                if heap._holders < 1:
                    wrong.append(heap._holders)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    inside.wait()
    assert heap._holders == 4
    leave.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert_same(work(), truth)


RESIDENT = """
import torch
from headrace.store import kept_memory
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20
torch.ones(1 << 20).sum()
before = resident()
with kept_memory():
    tensors = [torch.ones(1 << 22) for _ in range(12)]
    used = resident() - before
    del tensors
    kept = resident() - before
    tensors = [torch.ones(1 << 22) for _ in range(12)]
    again = resident() - before
    del tensors
print(used, kept, again, resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux: memory is read from /proc, and kept by glibc alone")
def test_memory_is_kept_inside_and_goes_back_at_the_end():
    done = subprocess.run([sys.executable, "-c", RESIDENT], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2_000:]
    used, kept, again, after = map(int, done.stdout.split())
    assert used >= 180  # twelve times 16 MiB
    assert kept >= 150
    assert again <= used + 40
    assert after <= 60


def test_nothing_is_kept_where_memory_is_returned(monkeypatch):
    told = []
    monkeypatch.setattr(_native, "keep_freed_memory", told.append)
    with kept_memory():
        with returned_memory(), returned_memory(), kept_memory():
            assert told == [True, False]
        assert told[-1] is True
    assert told[-1] is False
    with returned_memory():
        with kept_memory():
            assert True not in told[4:]
        assert told[-1] is False
    assert heap._frugal == 0


THREADS = """
import resource, threading
import headrace, torch
from headrace.store import kept_memory

torch.set_num_threads(1)

def steps():
    for _ in range(60):
        torch.ones(6 << 20).add(1.0)  # 24 MiB each

def faults_of_a_thread():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=steps)
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with kept_memory():
    first, later = faults_of_a_thread(), faults_of_a_thread()
print(first, later)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults, and the heap is glibc's")
def test_threads_share_the_heap_that_is_kept():
    # Without huge pages every page is a fault that is counted: two tensors have 12,288, sixty times.
    shared = sum(map(int, run_python("-c", THREADS, THP_MEM_ALLOC_ENABLE="0").stdout.split()))
    alone = sum(map(int, run_python("-c", THREADS, THP_MEM_ALLOC_ENABLE="0", MALLOC_ARENA_MAX="8").stdout.split()))
    assert shared < alone / 2


def test_who_set_the_number_of_heaps_keeps_it():
    count = "import importlib, headrace; headrace._native.share_one_heap = lambda: print('shared'); importlib.reload(headrace)"
    assert run_python("-c", count).stdout == "shared\n"
    assert run_python("-c", count, MALLOC_ARENA_MAX="4").stdout == ""
