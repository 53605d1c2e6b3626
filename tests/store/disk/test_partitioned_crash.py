"""Kills, full disks, damaged files: nothing is corrupted, and errors say what is wrong."""

import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from headrace.pipeline import orders
from headrace.store import Partitioned, TrainedArray
from partition_cases import everything, rows_of, states_on_disk, train_in_memory, train_partitioned, update


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Partitioned.create(tmp_path / "rows", 40, 3, partitions=4, init=(0.1, 5), seed=3)
    return tmp_path / "rows"


def _reference(dtype: torch.dtype = torch.float32) -> TrainedArray:
    return TrainedArray.create(40, 3, init=(0.1, 5), seed=3, dtype=dtype)


def test_a_kill_at_any_moment_returns_to_the_last_checkpoint(tmp_path: Path) -> None:
    path, reference, drawn = tmp_path / "rows", _reference(torch.bfloat16), random.Random(1)
    Partitioned.create(path, 40, 3, partitions=4, init=(0.1, 5), seed=3, dtype=torch.bfloat16, checksums=True)
    with Partitioned.open(path, capacity=2) as store:
        store.checkpoint({"pairs": []})
    shared = Path(__file__).parents[2]
    script = shared / "partition_child.py"
    server = subprocess.Popen(
        [sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(shared), *sys.path])},
    )
    assert server.stdin is not None
    assert server.stdout is not None
    seen: list[list[int]] = []
    left_behind = 0
    with server:
        for kill in range(24):
            server.stdin.write(f"{path} {kill}\n")
            server.stdin.flush()
            child = int(server.stdout.readline())
            time.sleep(drawn.uniform(0.0, 0.25))
            os.kill(child, signal.SIGKILL)
            assert server.stdout.readline() == "ended\n"
            left_behind += len(list(path.iterdir())) > 5
            with Partitioned.open(path, capacity=4) as store:
                assert isinstance(store.extra, dict)
                pairs = store.extra["pairs"]
                assert pairs[: len(seen)] == seen
                for number in range(len(seen), len(pairs)):
                    update(reference, number, *(rows_of(p, 10, 40) for p in pairs[number]), 1)
                seen = pairs
                assert sorted(f.name.split(".")[0] for f in path.iterdir()) == ["meta", *["partition"] * 4]
                assert torch.equal(everything(store), reference.rows.float())
        server.stdin.close()
    assert torch.equal(states_on_disk(path, 2), reference.state)
    assert seen  # work was done, and
    assert left_behind  # some of it was lost


def test_without_a_checkpoint_nothing_lasts(path: Path) -> None:
    with Partitioned.open(path, capacity=2) as store:
        train_partitioned(store, orders.beta(4, 2))
        assert len(list(path.glob("partition.*"))) > 4  # new versions beside the old: up to twice the space
        assert len(list(path.glob("partition.*"))) <= 8
    with Partitioned.open(path, capacity=2) as store:
        assert torch.equal(everything(store), _reference().rows)
        assert len(list(path.glob("partition.*"))) == 4
        assert store.extra is None


def test_checkpoints_keep_what_they_are_given(path: Path) -> None:
    for extra in ({"epoch": 3}, b"\0relation parameters\xff", None, b"", {}):
        with Partitioned.open(path, capacity=2) as store:
            store.checkpoint(extra)
            assert store.extra == extra
        with Partitioned.open(path, capacity=2) as store:
            assert store.extra == extra
    assert len(list(path.iterdir())) == 5
    with Partitioned.open(path, capacity=2) as store:
        with pytest.raises(TypeError):
            store.checkpoint({"tensor": torch.zeros(1)})
        assert store.extra == {}
        train_partitioned(store, orders.beta(4, 2))
        store.checkpoint({"after": 1})
    with Partitioned.open(path, capacity=2) as store:
        assert store.extra == {"after": 1}


def test_a_checkpoint_within_a_walk(path: Path) -> None:
    reference, number = _reference(), 0
    with Partitioned.open(path, capacity=2) as store, store.walk(orders.beta(4, 2)) as walk:
        for step in walk:
            for i, j in step.buckets:
                with walk.hold((i, j)):
                    update(store, number, store.rows_of(i), store.rows_of(j), 1)
                number += 1
            if step.number == 2:
                store.checkpoint({"number": number})
    number = 0
    for group in orders.beta(4, 2).buckets[:3]:
        for i, j in group:
            update(reference, number, rows_of(i, 10, 40), rows_of(j, 10, 40), 1)
            number += 1
    with Partitioned.open(path, capacity=2) as store:
        assert store.extra == {"number": number}
        assert torch.equal(everything(store), reference.rows)


def test_checkpoints_while_batches_are_in_flight_are_of_whole_adds(path: Path) -> None:
    """All rows of an add have the same sum, in memory and in every checkpoint."""
    whole = torch.arange(40)
    with Partitioned.open(path, capacity=4) as store, store.walk(orders.beta(4, 4)) as walk:
        next(iter(walk))
        held, stop = walk.hold(range(4)), threading.Event()

        def work() -> None:
            while not stop.is_set():
                store.add_(whole, torch.zeros(40, 3), torch.ones(40, 1))

        thread = threading.Thread(target=work)
        thread.start()
        for turn in range(5):
            store.checkpoint({"turn": turn})
            shutil.copytree(path, path.with_name(f"copy{turn}"))
        stop.set()
        thread.join()
        held.release()
    sums = [states_on_disk(path.with_name(f"copy{turn}"), 4).unique().tolist() for turn in range(5)]
    assert all(len(found) == 1 for found in sums)
    assert sums == sorted(sums)


@pytest.fixture
def small_files() -> Iterator[Callable[[int | None], None]]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, before if size is None else (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("direct", ["auto", False])
def test_files_that_may_not_grow(tmp_path: Path, small_files: Callable[[int | None], None], direct: object) -> None:
    small_files(8192)
    with pytest.raises(OSError, match="file size limit is reached"):
        Partitioned.create(tmp_path / "rows", 4000, 3, partitions=4, direct=direct)
    assert not (tmp_path / "rows").exists()
    small_files(None)
    Partitioned.create(tmp_path / "rows", 4000, 3, partitions=4, init=(0.1, 5))
    with Partitioned.open(tmp_path / "rows", capacity=2, direct=direct) as store:
        small_files(8192)
        with pytest.raises(OSError, match="file size limit is reached: free some space and begin again"):
            train_partitioned(store, orders.beta(4, 2))
        with pytest.raises(OSError, match="file size limit"):
            store.checkpoint()
        with pytest.raises(OSError, match="file size limit"):
            store.gather(torch.tensor([0]))
        small_files(None)
    with Partitioned.open(tmp_path / "rows", capacity=2) as store:
        assert torch.equal(everything(store), TrainedArray.create(4000, 3, init=(0.1, 5)).rows)


def test_a_checkpoint_on_a_full_disk_can_be_repeated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    reference = _reference()
    with Partitioned.open(path, capacity=4) as store:
        train_partitioned(store, orders.beta(4, 4))
        train_in_memory(reference, orders.beta(4, 4), 4)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", full)
            with pytest.raises(OSError, match="the disk is full") as caught:
                store.checkpoint({"try": 1})
            assert caught.value.errno == errno.ENOSPC
            assert store.extra is None
        train_partitioned(store, orders.beta(4, 4), first=500)
        train_in_memory(reference, orders.beta(4, 4), 4, first=500)
        store.checkpoint({"try": 2})
    with Partitioned.open(path, capacity=2) as store:
        assert store.extra == {"try": 2}
        assert torch.equal(everything(store), reference.rows)


def test_too_little_space_is_said_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="bytes free and the rows need"):
        Partitioned.create(tmp_path / "rows", 1 << 40, 100, partitions=16)


def test_short_reads_and_writes_are_completed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.preadv, os.pwritev
    monkeypatch.setattr(os, "preadv", lambda fd, pieces, at: read(fd, [p[: max(1, len(p) // 3)] for p in pieces], at))
    monkeypatch.setattr(os, "pwritev", lambda fd, pieces, at: write(fd, [p[: max(1, len(p) // 3)] for p in pieces], at))
    reference = _reference()
    with Partitioned.open(path, capacity=2, direct=False) as store:
        train_partitioned(store, orders.beta(4, 2))
        train_in_memory(reference, orders.beta(4, 2), 4)
        assert torch.equal(everything(store), reference.rows)


def test_direct_access_that_is_refused_is_given_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(name: object, flags: int, *rest: object, **options: object) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opened(name, flags, *rest, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "open", refuse)
    with Partitioned.open(path, capacity=2) as store:
        train_partitioned(store, orders.beta(4, 2))
        assert not store.direct
    with Partitioned.open(path, capacity=2, direct=True) as store, pytest.raises(OSError, match="use direct='auto'"):
        train_partitioned(store, orders.beta(4, 2))


def test_damaged_directories_are_refused(path: Path) -> None:
    file, meta = path / "partition.2.1.bin", path / "meta.json"
    content = json.loads(meta.read_text())
    del content["crc32"]  # of the file as it was written: without it, what is said must make sense
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"partition.2.1.bin has 4,095 bytes, meta.json says 4,096"):
        Partitioned.open(path, capacity=2)
    file.unlink()
    with pytest.raises(ValueError, match=r"partition.2.1.bin is missing"):
        Partitioned.open(path, capacity=2)
    file.write_bytes(whole)
    for wrong in (
        {"num_rows": -1},
        {"dtype": "int8"},
        {"partitions": 5},
        {"versions": "1"},
        {"versions": [1, 1, 1, "1"]},
        {"kind": "?"},
        {"align": 1},
        {"extra_file": "../x"},
    ):
        meta.write_text(json.dumps({**content, **wrong}))
        with pytest.raises(ValueError, match="damaged"):
            Partitioned.open(path, capacity=2)
    meta.write_text(json.dumps({**content, "format": 2}))
    with pytest.raises(ValueError, match="has format 2"):
        Partitioned.open(path, capacity=2)
    meta.write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        Partitioned.open(path, capacity=2)
    meta.unlink()
    with pytest.raises(FileNotFoundError, match="its creation was interrupted"):
        Partitioned.open(path, capacity=2)
    with pytest.raises(FileNotFoundError, match=r"no meta.json"):
        Partitioned.open(path.with_name("nowhere"), capacity=2)
    Partitioned.create(path, 40, 3, partitions=4, init=(0.1, 5))  # an interrupted creation may be repeated
    with pytest.raises(FileExistsError, match="exists: choose another path"):
        Partitioned.create(path, 40, 3, partitions=4)
    with Partitioned.open(path, capacity=2) as store:
        assert torch.equal(everything(store), _reference().rows)


def test_a_file_cut_short_while_it_is_open(path: Path) -> None:
    with Partitioned.open(path, capacity=2) as store:
        os.truncate(path / "partition.3.1.bin", 0)
        with pytest.raises(OSError, match=r"partition.3.1.bin ends at byte 0, where 4,096 more are due: it was cut short"):
            train_partitioned(store, orders.beta(4, 2))
    assert not [t for t in threading.enumerate() if t.name.startswith("headrace-")]


def test_checksums_find_what_changed_on_the_disk(tmp_path: Path) -> None:
    Partitioned.create(tmp_path / "rows", 40, 3, partitions=4, checksums=True)
    with Partitioned.open(tmp_path / "rows", capacity=2) as store:
        train_partitioned(store, orders.beta(4, 2))
        store.checkpoint()
        file = next((tmp_path / "rows").glob("partition.0.*"))
    data = bytearray(file.read_bytes())
    data[5] ^= 1
    file.write_bytes(data)
    with Partitioned.open(tmp_path / "rows", capacity=2) as store, pytest.raises(OSError, match=r"partition.0.* is damaged"):
        train_partitioned(store, orders.beta(4, 2))


@pytest.mark.parametrize("thread", ["load", "store"])
def test_errors_of_the_threads_reach_the_caller(path: Path, thread: str) -> None:
    with Partitioned.open(path, capacity=2) as store:

        def broken(*_: object) -> None:
            raise ZeroDivisionError("of a thread")

        setattr(store._moves.slots, thread, broken)
        with pytest.raises(RuntimeError, match="moving partitions failed: ZeroDivisionError"):
            train_partitioned(store, orders.beta(4, 2))
    assert not [t for t in threading.enumerate() if t.name.startswith("headrace-")]


def test_an_interrupt_while_waiting_leaves_no_threads(path: Path) -> None:
    """Ctrl-C in the midst of a hold whose partition does not come."""
    gate = threading.Event()
    with pytest.raises(KeyboardInterrupt), Partitioned.open(path, capacity=2) as store:
        load = store._moves.slots.load
        store._moves.slots.load = lambda file, slot: (gate.wait(5), load(file, slot))[1]  # type: ignore[method-assign]
        timers = [threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGINT)), threading.Timer(0.4, gate.set)]
        for timer in timers:
            timer.start()
        with store.walk(orders.beta(4, 2)) as walk:
            for step in walk:
                walk.hold(step.state)
    for timer in timers:
        timer.join()
    assert not [t for t in threading.enumerate() if t.name.startswith("headrace-")]
