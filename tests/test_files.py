"""One way to replace a file: whole, or not at all. One lock for those who write."""

import os
import re
import signal

import pytest

from forked import FORK, Child
from headrace._files import Lock, replaced, write_whole
from headrace._memory import peak_memory, process_memory, resident_memory


@pytest.mark.parametrize("contended", [False, True])
def test_a_block_that_fails_leaves_the_old_file_alone(tmp_path, contended):
    write_whole(tmp_path / "file", "before", contended=contended)
    with pytest.raises(KeyError), replaced(tmp_path / "file", contended=contended) as aside:
        aside.write_text("half of")
        raise KeyError
    assert (tmp_path / "file").read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_writers_of_one_file_do_not_share_the_file_beside_it(tmp_path, monkeypatch):
    with replaced(tmp_path / "file", contended=True) as ours:
        monkeypatch.setattr(os, "getpid", lambda: 1)
        with replaced(tmp_path / "file", contended=True) as theirs:
            assert theirs != ours
            theirs.write_text("theirs")
        ours.write_text("ours")
    assert (tmp_path / "file").read_text() == "ours"
    assert len(list(tmp_path.iterdir())) == 1


def test_memory_of_the_process_grows_with_what_it_holds():
    before = resident_memory()
    held = bytearray(os.urandom(1)) * (64 << 20)
    assert resident_memory() - before > 48 << 20
    assert peak_memory() >= resident_memory()
    assert process_memory()["peak"] >= len(held)


def test_a_pipe_or_a_device_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is a device or a pipe"):
        write_whole(tmp_path / "pipe", "more")
    assert [(file.name, file.is_fifo()) for file in tmp_path.iterdir()] == [("pipe", True)]


def lock(path, **options):
    return Lock(path, busy=f"{path} is in use", remedy="wait", **options)


def test_who_holds_a_lock_is_named(tmp_path):
    with lock(tmp_path / "lock"):
        with pytest.raises(BlockingIOError) as refused:
            lock(tmp_path / "lock")
        told = r"lock is in use by process (\d+) on (.+) since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d: wait"
        match = re.fullmatch(f"{re.escape(str(tmp_path))}/{told}", str(refused.value))
        assert match
        assert match[1] == str(os.getpid())
    lock(tmp_path / "lock").close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["lock", ""])  # a file, and the folder itself
def test_a_killed_process_frees_its_lock(tmp_path, name):
    taken = FORK.Event()

    def hold():
        with lock(tmp_path / name):
            taken.set()
            signal.pause()

    child = Child(hold)
    assert taken.wait(30)
    with pytest.raises(BlockingIOError):
        lock(tmp_path / name)
    child.kill()
    lock(tmp_path / name).close()


def test_a_forked_child_does_not_keep_its_parents_lock(tmp_path):
    held = lock(tmp_path / "lock")
    child = Child(signal.pause)
    held.close()
    lock(tmp_path / "lock").close()
    child.kill()


def test_many_processes_hold_a_lock_one_at_a_time(tmp_path):
    number = tmp_path / "number"
    number.write_text("0")

    def count():
        for _ in range(25):
            with lock(tmp_path / "lock", seconds=60):
                number.write_text(str(int(number.read_text()) + 1))

    for child in [Child(count) for _ in range(4)]:
        child.result()
    assert number.read_text() == "100"
    assert [file.name for file in tmp_path.iterdir()] == ["number"]


def test_a_lock_whose_file_was_removed_leaves_the_next_one_alone(tmp_path):
    first = lock(tmp_path / "lock")
    (tmp_path / "lock").unlink()
    with lock(tmp_path / "lock"):
        first.close()
        with pytest.raises(BlockingIOError):
            lock(tmp_path / "lock")
