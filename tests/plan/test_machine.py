"""What a machine is known by, and that a probe finds it."""

import dataclasses
import json

import pytest
import torch

from headrace.plan import Machine, probe
from machines import CACHE, round_machine


@pytest.fixture(scope="module")
def here() -> Machine:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    found = probe(repeats=1)
    assert torch.equal(torch.rand(1), expected), "a probe leaves the random numbers alone"
    return found


def test_reads_lie_between_what_was_measured():
    machine = round_machine()
    assert machine.read_seconds(64, table_bytes=100) == pytest.approx(4e-9)
    assert machine.read_seconds(64, table_bytes=64 * CACHE) == pytest.approx(16e-9)
    assert machine.read_seconds(64, table_bytes=1 << 40) == pytest.approx(16e-9)
    assert 4e-9 < machine.read_seconds(64, table_bytes=8 * CACHE) < 16e-9
    assert machine.read_seconds(4096, table_bytes=100) == pytest.approx(256e-9)  # beyond the widest that was measured
    assert machine.read_seconds(1, table_bytes=100) == pytest.approx(1e-9)


def test_rows_of_less_than_a_vector_may_be_slower_than_one():
    machine = round_machine()
    slow = tuple(dataclasses.replace(r, seconds=1e-6) if r.row_bytes == 16 else r for r in machine.reads)
    uneven = dataclasses.replace(machine, reads=slow)
    assert uneven.read_seconds(1000, table_bytes=100) == uneven.read_seconds(4, table_bytes=100) == 1e-6
    assert uneven.read_seconds(1024, table_bytes=100) == pytest.approx(64e-9)


def test_a_miss_is_no_cheaper_than_a_hit():
    machine = round_machine()
    reads = tuple(dataclasses.replace(r, seconds=1e-9) for r in machine.reads)
    flat = dataclasses.replace(machine, reads=reads)
    assert flat.miss_seconds(64) == flat.hit_seconds(64, table_bytes=CACHE)
    assert machine.miss_seconds(64) > machine.hit_seconds(64, table_bytes=CACHE)


def test_a_machine_without_measurements_says_so():
    empty = dataclasses.replace(round_machine(), reads=(), products=())
    with pytest.raises(ValueError, match=r"no measured row reads: make it with probe"):
        empty.read_seconds(64, table_bytes=100)
    with pytest.raises(ValueError, match="no measured products"):
        empty.product_rate(64)


def test_it_is_saved_and_loaded(tmp_path):
    machine = round_machine()
    machine.save(tmp_path / "new" / "machine.json")
    assert Machine.load(tmp_path / "new" / "machine.json") == machine
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["machine.json"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"device": "cpu"}', "null"])
def test_a_file_that_is_no_machine_is_refused(tmp_path, text):
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(ValueError, match="measured"):
        Machine.load(tmp_path / "m.json")


def test_a_probe_finds_plausible_figures(here):
    assert here.device == "cpu"
    assert here.threads >= 1
    assert 1 << 16 <= here.cache_bytes <= 1 << 32
    assert 1e8 < here.stream_rate < 1e13
    assert 1e-9 < here.call_seconds < 1e-2
    assert 1e-9 < here.sum_seconds < 1e-2
    assert here.step_overhead() > 0
    assert here.own_rate(torch.bfloat16) > 1e7
    assert here.attend_factor >= 1
    for read in here.reads:
        assert 1e-11 < read.seconds < 1e-4
    for made in here.products:
        assert 1e7 < made.forward < 1e16
        assert 1e7 < made.gradient < 1e16
    assert here.product_rate(100, dtype=torch.bfloat16) > 0
    json.dumps(here.as_dict())


def test_a_probe_measures_each_type_in_and_out_of_the_cache(here):
    for dtype in ("float32", "bfloat16"):
        tables = {read.table_bytes for read in here.reads if read.dtype == dtype}
        assert len(tables) == 3
        assert min(tables) < here.cache_bytes < max(tables) or here.cache_bytes > 512 << 20


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="device must be 'cpu' or 'cuda'"):
        probe("mps")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="torch sees no GPU"):
            probe("cuda")
