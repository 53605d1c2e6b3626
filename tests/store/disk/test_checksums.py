"""What is read back from a store is what was written, or an error names the file."""

import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headrace import _native
from headrace.pipeline import orders
from headrace.store import Partitioned
from headrace.store.disk.checksums import PartitionChecksum
from headrace.store.disk.files import Layout
from partition_cases import everything, train_partitioned

MASK = (1 << 64) - 1
P1, P2, P3, P4 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63


def mixed(x: int) -> int:
    x = (x ^ x >> 33) * P2 & MASK
    x = (x ^ x >> 29) * P3 & MASK
    return x ^ x >> 32


def plain_checksum(data: bytes) -> int:
    """The checksum of native/checksum.cpp in plain numbers."""
    keys = [mixed((i + 1) * P1 & MASK) for i in range(24)]
    lanes = [mixed(P4 + i & MASK) for i in range(8)]
    padded = data + bytes(64 - len(data) % 64)
    for number in range(len(padded) // 64):
        at = number % 16
        words = struct.unpack_from("<8Q", padded, 64 * number)
        for i, word in enumerate(words):
            keyed = word ^ keys[at + i]
            lanes[i ^ 1] = lanes[i ^ 1] + word & MASK
            lanes[i] = lanes[i] + (keyed & 0xFFFFFFFF) * (keyed >> 32) & MASK
        if at == 15:
            lanes = [(lane ^ lane >> 47 ^ keys[16 + i]) * 0x9E3779B1 & MASK for i, lane in enumerate(lanes)]
    total = len(data) * P1 & MASK
    for lane in lanes:
        turned = lane * P2 & MASK
        turned = (turned << 31 | turned >> 33) & MASK
        total = ((total ^ turned * P1 & MASK) * P1 + P4) & MASK
    return mixed(total)


def checksum_of(data: bytes, *cuts: int) -> int:
    checksum, begin = _native.Checksum(), 0
    for end in (*cuts, len(data)):
        checksum.update(data[begin:end])
        begin = end
    return checksum.digest()


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000, 1023, 1024, 1025, 4096, 10000])
def test_the_checksum_is_that_of_plain_numbers_however_the_bytes_come(size: int) -> None:
    drawn = random.Random(size)
    data = drawn.randbytes(size)
    assert checksum_of(data) == plain_checksum(data)
    for _ in range(20):
        cuts = sorted(drawn.randint(0, size) for _ in range(drawn.randint(1, 5)))
        assert checksum_of(data, *cuts) == plain_checksum(data)


def test_the_checksum_is_the_same_with_the_smallest_instruction_set() -> None:
    code = "import random; from headrace import _native; c = _native.Checksum(); c.update(random.Random(5).randbytes(9999)); "
    code += "print(_native.level, c.digest())"
    told = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "HEADRACE_LEVEL": "baseline"}, capture_output=True, text=True, check=True
    ).stdout.split()
    assert told[0] == "baseline"
    assert int(told[1]) == plain_checksum(random.Random(5).randbytes(9999))


def test_every_bit_and_every_place_counts() -> None:
    data = bytearray(random.Random(3).randbytes(1100))
    sums = {checksum_of(bytes(data)), checksum_of(bytes(data) + b"\0"), checksum_of(bytes(data[:-1]))}
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        sums.add(checksum_of(bytes(data)))
        data[bit // 8] ^= 1 << bit % 8
    for stripe in range(1, 17):
        moved = data[64 * stripe : 64 * stripe + 64] + data[64 : 64 * stripe] + data[:64] + data[64 * stripe + 64 :]
        sums.add(checksum_of(bytes(moved)))
    assert len(sums) == 3 + 8 * len(data) + 16


def test_a_thread_takes_the_same_checksums() -> None:
    layout, data = Layout.of(100, 7, 3, torch.float32, 2, 4096), random.Random(1).randbytes(4096)
    sums = set()
    for ahead in (False, True):
        with PartitionChecksum(layout, ahead=ahead) as checksum:
            for begin in range(0, 4096, 100):
                checksum.update(memoryview(data)[begin : begin + 100])
            sums.add(checksum.sums())
    assert sums == {(checksum_of(data[: layout.state_offset]), checksum_of(data[layout.state_offset :]))}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of three partitions whose last one is short, with rows, states and padding."""
    Partitioned.create(tmp_path / "rows", 38, 3, partitions=3, state=2)
    with Partitioned.open(tmp_path / "rows", capacity=2) as store:
        train_partitioned(store, orders.beta(3, 2))
        store.checkpoint(b"extra")
    return tmp_path / "rows"


def flipped(file: Path, byte: int) -> None:
    data = bytearray(file.read_bytes())
    data[byte] ^= 0x10
    file.write_bytes(data)


@pytest.mark.parametrize("partition", [0, 2])
@pytest.mark.parametrize("byte", [0, 150, 160, 250, 400, 4095])
def test_a_flipped_bit_of_a_partition_is_found_when_it_is_loaded(path: Path, partition: int, byte: int) -> None:
    file = next(path.glob(f"partition.{partition}.*"))
    flipped(file, byte)
    with (
        Partitioned.open(path, capacity=2) as store,
        pytest.raises(OSError, match=rf"{file.name} is damaged: its checksum .*; restore the directory from a copy"),
    ):
        train_partitioned(store, orders.beta(3, 2))


@pytest.mark.parametrize("partition", [0, 2])
@pytest.mark.parametrize("rows", [None, 1, 5])
def test_a_flipped_bit_of_rows_is_found_when_they_are_scanned(path: Path, partition: int, rows: int | None) -> None:
    with Partitioned.open(path, capacity=1) as store:
        assert sum(len(piece) for _, piece in store.scan(rows=rows)) == 38
    for byte in (0, 70, 119, 155):
        file = next(path.glob(f"partition.{partition}.*"))
        flipped(file, byte)
        with Partitioned.open(path, capacity=1) as store, pytest.raises(OSError, match=rf"{file.name} is damaged"):
            for _ in store.scan(rows=rows):
                pass
        flipped(file, byte)


def test_scans_of_resident_partitions_see_what_changed_since(path: Path) -> None:
    with Partitioned.open(path, capacity=2) as store:
        before = everything(store)
        train_partitioned(store, orders.beta(3, 2), first=500)
        assert not torch.equal(everything(store), before)


def test_two_partitions_in_each_other_s_place_are_found(path: Path) -> None:
    one, two = (next(path.glob(f"partition.{number}.*")) for number in (0, 1))
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)
    with Partitioned.open(path, capacity=1) as store, pytest.raises(OSError, match="is damaged"):
        everything(store)


def test_the_extra_file_and_meta_json_have_checksums(path: Path) -> None:
    extra = next(path.glob("extra.*"))
    flipped(extra, 2)
    with pytest.raises(ValueError, match=rf"{extra.name} is damaged: its checksum"):
        Partitioned.open(path, capacity=1)
    extra.write_bytes(b"ext")
    with pytest.raises(ValueError, match=rf"{extra.name} is damaged: its checksum"):
        Partitioned.open(path, capacity=1)
    extra.write_bytes(b"extra")
    meta = path / "meta.json"
    meta.write_text(meta.read_text().replace('"calls": ', '"calls": 1'))
    with pytest.raises(ValueError, match=r"meta.json is damaged: its checksum is wrong"):
        Partitioned.open(path, capacity=1)


def test_a_store_from_before_there_were_checksums_is_read(path: Path) -> None:
    with Partitioned.open(path, capacity=1) as store:
        before = everything(store)
    meta = json.loads((path / "meta.json").read_text())
    for name in ("crc32", "sums", "extra_crc32"):
        del meta[name]
    (path / "meta.json").write_text(json.dumps({**meta, "checksums": None}))
    with Partitioned.open(path, capacity=2) as store:
        assert torch.equal(everything(store), before)
        train_partitioned(store, orders.beta(3, 2), first=500)
        store.checkpoint(b"more")
    with Partitioned.open(path, capacity=2) as store:
        assert store.extra == b"more"
