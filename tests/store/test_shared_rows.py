"""`SharedRows`: one copy, seen by all processes, removed when nobody is left."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.store import SharedRows, Store
from rank_threads import on_every_rank

FOLDER = Path("/dev/shm")
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="needs POSIX shared memory in /dev/shm")


def file_of(name):
    return FOLDER / f"headrace-rows-{name}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.bool], ids=str)
@pytest.mark.parametrize("shape", [(7, 47), (5,), (3, 2, 2), (0, 4), (4, 0)], ids=str)
def test_what_is_opened_equals_what_was_created(dtype, shape):
    rows = (torch.randn(shape) * 9).to(dtype)
    with SharedRows.create(rows) as made, SharedRows.open(made.name) as seen:
        assert isinstance(seen, Store)
        assert seen.rows.dtype == dtype
        assert torch.equal(seen.rows, rows)
        assert seen.rows.data_ptr() % 4096 == 0
        if len(rows):
            assert torch.equal(seen.gather(torch.tensor([len(rows) - 1, 0])), rows[[-1, 0]])


def test_writes_are_seen_by_all():
    with SharedRows.create(torch.zeros(4, 2)) as made, SharedRows.open(made.name) as seen:
        seen.add_(torch.tensor([1, 1]), torch.ones(2, 2))
        assert made.rows[1].tolist() == [2, 2]


def test_rows_of_a_memory_map_larger_than_one_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.store.shared._CHUNK", 1000)
    rows = np.random.default_rng(0).normal(size=(321, 5)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    with SharedRows.create(np.load(tmp_path / "rows.npy", mmap_mode="r")) as made:
        assert np.array_equal(made.rows.numpy(), rows)


def test_rows_built_in_place_appear_when_they_are_complete():
    def fill(rows):
        assert rows.eq(0).all()
        with pytest.raises(FileNotFoundError, match="still being written"):
            SharedRows.open("test-built")
        rows.copy_(torch.arange(6).view(3, 2))

    with SharedRows.build((3, 2), torch.int64, fill, name="test-built"), SharedRows.open("test-built") as seen:
        assert seen.rows.tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ZeroDivisionError):
        SharedRows.build((3, 2), torch.int64, lambda rows: 1 / 0, name="test-built")
    assert not file_of("test-built").exists()


def test_the_name_goes_with_its_creator_and_open_views_stay():
    made = SharedRows.create(torch.arange(3.0).view(3, 1), name="test-goes")
    seen = SharedRows.open("test-goes")
    rows = made.rows
    made.close()
    made.close()
    assert not file_of("test-goes").exists()
    assert seen.rows.tolist() == rows.tolist() == [[0], [1], [2]]
    with pytest.raises(FileNotFoundError, match="'test-goes' is not there"):
        SharedRows.open("test-goes")
    with pytest.raises(ValueError, match="closed"):
        pickle.dumps(made)
    seen.close()


def test_a_forgotten_object_removes_its_name():
    name = SharedRows.create(torch.ones(1, 1)).name
    assert not file_of(name).exists()


def read_in_child(shared, queue):
    queue.put((shared.rows.sum().item(), os.getpid(), shared.name))


def test_it_passes_to_another_process_by_name():
    with SharedRows.create(torch.ones(10, 3)) as made:
        assert len(pickle.dumps(made)) < 500
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        child = context.Process(target=read_in_child, args=(made, queue))
        child.start()
        total, process, name = queue.get(timeout=60)
        child.join(60)
        assert (total, name) == (30.0, made.name)
        assert process != os.getpid()
        assert file_of(made.name).exists()


PROGRAM = """
import sys, torch
from headrace.store import SharedRows
rows = SharedRows.create(torch.ones(4, 4), name="test-killed")
print("ready", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_creator_left_is_removed_by_the_next_and_living_ones_stay():
    living = SharedRows.create(torch.ones(2, 2), name="test-living")
    creator = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert creator.stdout.readline() == b"ready\n"
    assert "test-killed" not in SharedRows.sweep()
    with pytest.raises(FileExistsError, match="'test-killed' exist and are in use"):
        SharedRows.create(torch.ones(1, 1), name="test-killed")
    reader = SharedRows.open("test-killed")
    os.kill(creator.pid, signal.SIGKILL)
    creator.communicate()
    assert file_of("test-killed").exists()
    assert "test-killed" not in SharedRows.sweep()  # a reader is left
    reader.close()
    again = SharedRows.create(torch.zeros(1, 1), name="test-killed")
    assert again.rows.tolist() == [[0]]
    assert file_of("test-living").exists()
    again.close()
    living.close()


def test_too_little_room_is_said_with_sizes():
    space = os.statvfs(FOLDER)
    width = space.f_blocks * space.f_frsize // 4 + 1
    with pytest.raises(OSError, match=r"/dev/shm is too small: the rows need [\d,]+ bytes, [\d,]+ of [\d,]+ are free"):
        SharedRows.build((2, width), torch.float32, torch.Tensor.zero_, name="test-huge")
    assert not file_of("test-huge").exists()


def test_an_unfinished_file_is_not_opened():
    from headrace.store.shared import _reserve

    file = _reserve("test-half", 8192)
    try:
        with pytest.raises(FileNotFoundError, match="still being written"):
            SharedRows.open("test-half", wait=0.05)
    finally:
        os.close(file)
    assert "test-half" in SharedRows.sweep()


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match="name must be"):
        SharedRows.create(torch.ones(1, 1), name="../up")
    with pytest.raises(ValueError, match="single number"):
        SharedRows.create(torch.tensor(1.0))
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="pin=True needs a GPU"):
            SharedRows.create(torch.ones(1, 1), name="test-pin", pin=True)
        assert not file_of("test-pin").exists()


def test_without_a_name_rows_stay_for_those_who_have_them_open():
    rows = SharedRows.create(torch.arange(6.0).view(3, 2), name="test-unlinked")
    other = SharedRows.open("test-unlinked")
    other.unlink()  # it is not its own
    assert file_of("test-unlinked").exists()
    rows.unlink()
    rows.unlink()
    assert not file_of("test-unlinked").exists()
    other.rows[0] = 7
    assert torch.equal(rows.gather(torch.tensor([0, 2])), torch.tensor([[7.0, 7.0], [4.0, 5.0]]))
    with pytest.raises(FileNotFoundError):
        SharedRows.open("test-unlinked")
    rows.close()
    other.close()


def test_ranks_of_a_machine_share_one_copy_of_the_first():
    def work(ranks):
        ranks.machines = ["a", "b", "a", "b"]
        rows = SharedRows.of_machine(ranks, torch.full((2, 3), float(ranks.rank)))
        assert not file_of(rows.name).exists()
        ranks.barrier()
        if ranks.rank > 1:
            rows.rows[1] += 10
        ranks.barrier()
        return rows.gather(torch.tensor([0, 1]))[:, 0].tolist()

    assert on_every_rank(4, work) == [[0, 10], [1, 11], [0, 10], [1, 11]]


def test_a_rank_that_cannot_share_rows_is_named_to_all():
    def work(ranks):
        return SharedRows.of_machine(ranks, torch.tensor(1.0) if ranks.rank == 0 else torch.ones(2, 2))

    errors = on_every_rank(2, work)
    assert "single number" in str(errors[0])
    assert "rank 0 failed, so rows cannot be shared: ValueError" in str(errors[1])
