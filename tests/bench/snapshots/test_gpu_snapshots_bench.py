"""The benchmark of two streams: its step is the same however it is run, and intervals of kernels are read from a profile."""

from dataclasses import replace

import pytest
import torch

from headrace.bench import BENCHES
from headrace.bench.snapshots.intervals import Kernel, Multiprocessor, beside, held, kernels, programs_of_sm
from headrace.bench.snapshots.on_gpu import GpuSnapshotSetting
from headrace.bench.snapshots.step import Case, check_same, large_sequence

KERNEL = Kernel("sum_kernel", 0.0, 1.0, programs=100, threads=32, registers=40, shared=0)


def at(begin, end):
    return replace(KERNEL, begin=begin, end=end)


@pytest.mark.parametrize("model", ["tgcn", "gclstm"])
def test_ours_and_the_peer_have_one_loss_and_gradients(model):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    case = Case.of(large_sequence(50, 200, 3, torch.device("cpu")), model, window=2)
    one, two, peer = case.launched(None, count=1)(), case.launched(None)(), case.peer(model)()
    check_same(two, one, "two lanes")
    check_same(peer, one, "the peer")
    assert float(one[0]) > 0.1
    with pytest.raises(RuntimeError, match="the peer: results differ by"):
        check_same((peer[0], [part * 1.01 for part in peer[1]]), one, "the peer")


def test_it_runs_on_a_cpu_too():
    rows = BENCHES["gpu-snapshots"].run(
        GpuSnapshotSetting(device="cpu", scale=0.0005, repeats=1, models=("tgcn",), window=2, against=("torch",))
    )
    (row,) = rows
    assert row.metric == "a step, two lanes, one after the other"
    assert row.peers.keys() == {"one lane"}
    assert row.limit > 0


def test_a_gpu_that_is_not_there_is_named():
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    with pytest.raises(ValueError, match="torch sees none here"):
        BENCHES["gpu-snapshots"].run(BENCHES["gpu-snapshots"].setting())


def test_bytes_of_sums_and_operations_of_products_are_counted():
    case = Case.of(large_sequence(50, 200, 2, torch.device("cpu")), "tgcn", window=1)
    assert case.sums() == 2 * (4 * 200 * 128 + 4 * 50 * 128 + 4 * 200)  # two groups of one snapshot
    assert case.operations() == 2 * 2 * 50 * (2 * 128 * 768 + 3 * 256 * 768)


def test_kernels_are_read_from_a_trace():
    told = {"stream": 7, "grid": [10, 2, 1], "block": [64, 1, 1], "registers per thread": 48, "shared memory": 1024}
    events = [
        {"cat": "kernel", "name": "ampere_sgemm_128x64_tn", "ts": 3.0, "dur": 2.0, "args": told},
        {"cat": "cpu_op", "name": "aten::mm", "ts": 0.0, "dur": 9.0, "args": {}},
        {"cat": "kernel", "name": "sum_kernel", "ts": 1.0, "dur": 4.0, "args": told},
    ]
    first, second = kernels(events)
    assert (first.sums, first.multiplies, second.sums, second.multiplies) == (True, False, False, True)
    assert (first.programs, first.threads, first.warps, first.registers, first.shared) == (20, 64, 2, 48, 1024)
    assert beside([first], [second]) == pytest.approx(0.5)


def test_time_beside_is_counted_once():
    assert beside([at(0, 4)], [at(1, 2), at(1.5, 3), at(10, 11)]) == pytest.approx(0.5)
    assert beside([at(0, 1), at(0.5, 2)], [at(0, 2)]) == 1.0
    assert beside([], [at(0, 1)]) == beside([at(0, 1)], []) == 0.0


@pytest.mark.parametrize(
    ("changed", "fit"),
    [({}, 32), ({"threads": 256}, 6), ({"registers": 255}, 8), ({"shared": 100_000}, 2), ({"threads": 1024, "registers": 32}, 2)],
)
def test_what_fits_an_sm_follows_from_what_a_program_holds(changed, fit):
    assert programs_of_sm(replace(KERNEL, **changed)) == fit


def test_few_programs_hold_few_warps():
    assert held(replace(KERNEL, programs=10**6), 2) == 0.5
    assert held(replace(KERNEL, programs=16), 2) == 16 / 128
    assert held(replace(KERNEL, programs=10**6), 1, Multiprocessor(programs=16)) == 0.25
