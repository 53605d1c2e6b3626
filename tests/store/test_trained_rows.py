"""Trained rows in memory, against plain torch; stochastic rounding."""

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernels import round_to_bfloat16
from headrace.kernels._round.round import _draws as draws
from headrace.store import TrainedArray, TrainedRows
from headrace.store.disk.files import Layout
from headrace.store.disk.slots import slot_views
from headrace.store.row_table import DeviceTable, HostTable, RowShape
from headrace.store.trained import initial_rows


def _reference(rows: torch.Tensor, state: torch.Tensor) -> DeviceTable:
    shape = RowShape(len(rows), len(rows), rows.shape[1], state.shape[1], rows.dtype)
    return DeviceTable(shape, rows.clone().unsqueeze(0), state.clone().unsqueeze(0), torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 47, 100, 602])
@pytest.mark.parametrize("threads", [1, 3])
def test_gather_and_add_equal_plain_torch(width: int, dtype: torch.dtype, threads: int) -> None:
    rows, state = torch.randn(300, width).to(dtype), torch.rand(300, 1 if width % 2 else width)
    reference, store = _reference(rows, state), TrainedArray(rows.clone(), state.clone(), seed=7, threads=threads)
    assert isinstance(store, TrainedRows)
    for call in range(3):
        ids = torch.randperm(300)[: 150 + call].to(torch.int32 if call % 2 else torch.int64)
        deltas = 0.01 * torch.randn(len(ids), width), torch.rand(len(ids), state.shape[1])
        reference.add(ids, *deltas, seed=7, call=call)
        store.add_(ids, *deltas)
        again = torch.randint(300, (500,))  # repeated ids
        for mine, theirs in zip(store.gather(again), reference.gather(again), strict=True):
            assert mine.dtype == torch.float32
            assert torch.equal(mine, theirs)
    assert torch.equal(store.rows, reference.rows[0])
    assert not torch.equal(store.rows, rows)
    assert store.nbytes == rows.nbytes + state.nbytes


def test_empty_ids_and_no_rows() -> None:
    store = TrainedArray.create(5, 3, state=0)
    rows, state = store.gather(torch.tensor([], dtype=torch.int64))
    assert rows.shape == (0, 3)
    assert state.shape == (0, 0)
    store.add_(torch.tensor([], dtype=torch.int32), torch.empty(0, 3), torch.empty(0, 0))
    nothing = TrainedArray.create(0, 4)
    assert nothing.gather(torch.tensor([], dtype=torch.int64))[0].shape == (0, 4)
    with pytest.raises(IndexError, match="out of range"):
        nothing.gather(torch.tensor([0]))


def test_wrong_ids_and_shapes_are_named() -> None:
    store = TrainedArray.create(5, 3)
    for ids in ([5], [-1], [0, 1 << 40]):
        with pytest.raises(IndexError, match="for 5 rows"):
            store.gather(torch.tensor(ids))
        with pytest.raises(IndexError, match="for 5 rows"):
            store.add_(torch.tensor(ids), torch.zeros(len(ids), 3), torch.zeros(len(ids), 1))
    with pytest.raises(ValueError, match=r"delta_rows of shape \(1, 3\)"):
        store.add_(torch.tensor([0]), torch.zeros(1, 2), torch.zeros(1, 1))
    with pytest.raises(ValueError, match="integers"):
        store.gather(torch.tensor([0.5]))
    with pytest.raises(ValueError, match=r"torch.float32 or torch.bfloat16, not torch.float64"):
        TrainedArray.create(5, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="must be matrices of equal length"):
        TrainedArray(torch.zeros(3, 2), torch.zeros(4, 1))


def test_initial_rows_depend_on_the_id_alone() -> None:
    whole = initial_rows((0.5, 3), 0, 4000, 30)
    parts = torch.cat([initial_rows((0.5, 3), a, b, 30, threads=2) for a, b in ((0, 17), (17, 3000), (3000, 4000))])
    assert torch.equal(whole, parts)
    assert torch.equal(TrainedArray.create(4000, 30, init=(0.5, 3)).rows, whole)
    assert abs(whole.std().item() - 0.5) < 0.01
    assert abs(whole.mean().item()) < 0.01
    assert not torch.equal(whole, initial_rows((0.5, 4), 0, 4000, 30))
    given_ = TrainedArray.create(10, 2, init=lambda begin, end: torch.arange(begin, end).float().repeat_interleave(2).view(-1, 2))
    assert given_.gather(torch.tensor([7]))[0].tolist() == [[7.0, 7.0]]
    with pytest.raises(ValueError, match=r"init\(0, 10\) must give shape \(10, 2\)"):
        TrainedArray.create(10, 2, init=lambda begin, end: torch.zeros(end - begin, 3))


def test_repeated_ids_of_an_add_are_not_lost_on_the_cpu() -> None:
    for threads in (1, 4):
        store = TrainedArray.create(100, 50, init=(0.0, 0), threads=threads)
        ids = torch.randint(100, (20_000,))
        store.add_(ids, torch.ones(len(ids), 50), torch.ones(len(ids), 1))
        assert torch.equal(store.state.flatten(), torch.bincount(ids, minlength=100).float())


def test_rounding_is_right_on_average_and_reproducible() -> None:
    value = 1 + 3 / 1024  # between 1 and 1 + 1/128
    ids = torch.arange(20_000)
    values = torch.full((20_000, 10), value)
    rounded = round_to_bfloat16(values, ids, seed=1, call=0)
    assert set(rounded.unique().tolist()) == {1.0, 1 + 1 / 128}
    assert abs(rounded.float().mean().item() - value) < 1e-4
    assert torch.equal(rounded, round_to_bfloat16(values, ids, seed=1, call=0))
    for other in ({"seed": 2, "call": 0}, {"seed": 1, "call": 1}):
        assert not torch.equal(rounded, round_to_bfloat16(values, ids, **other))
    assert torch.equal(rounded.flip(0), round_to_bfloat16(values, ids.flip(0), seed=1, call=0))
    exact = torch.randn(20, 10).bfloat16()
    assert torch.equal(round_to_bfloat16(exact.float(), ids[:20], seed=1, call=0), exact)


def test_draws_are_uniform_and_differ_between_wide_ids() -> None:
    ids = torch.tensor([1, 1 + (1 << 32), 1 << 40])
    found = draws(ids, 4001, seed=0, call=0)
    assert found.shape == (3, 4001)
    assert found.min() >= 0
    assert found.max() < 1 << 16
    assert abs(found.float().mean().item() / 65535 - 0.5) < 0.01
    assert (found[0] != found[1]).any()
    assert (found[1] != found[2]).any()


def test_small_updates_survive_in_bfloat16() -> None:
    """Rounded to nearest, 1 + 0.001 would be 1 forever."""
    store = TrainedArray.create(1, 400, state=0, dtype=torch.bfloat16, init=lambda a, b: torch.ones(b - a, 400))
    for _ in range(500):
        store.add_(torch.tensor([0]), torch.full((1, 400), 1e-3), torch.empty(1, 0))
    assert abs(store.rows.float().mean().item() - 1.5) < 0.02


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 3.38e38, 1e-40])
def test_rounding_of_odd_numbers(value: float) -> None:
    values, ids = torch.full((50, 9), value), torch.arange(50)
    expected = round_to_bfloat16(values, ids, seed=0, call=0)
    store = TrainedArray(torch.zeros(50, 9, dtype=torch.bfloat16), torch.zeros(50, 0))
    store.add_(ids, values, torch.empty(50, 0))
    assert torch.equal(store.rows.view(torch.int16), round_to_bfloat16(values + 0.0, ids, seed=0, call=0).view(torch.int16))
    if value != value:
        assert expected.isnan().all()
    elif value in (float("inf"), float("-inf"), 0.0):
        assert (expected.float() == value).all()


def test_adds_from_many_threads_are_all_there() -> None:
    store = TrainedArray.create(50, 8, init=(0.0, 0), threads=1)

    def work(number: int) -> None:
        for turn in range(50):
            ids = torch.randperm(50, generator=torch.Generator().manual_seed(number * 100 + turn))
            store.add_(ids, torch.ones(50, 8), torch.ones(50, 1))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (store.rows == 200).all()
    assert (store.state == 200).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(0, 20), st.integers(0, 3), st.integers(0, 60), st.booleans(), st.integers(0, 2**32))
def test_any_shape_equals_plain_torch(num_rows: int, width: int, state: int, count: int, half: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.bfloat16 if half else torch.float32
    rows, states = torch.randn(num_rows, width, generator=generator).to(dtype), torch.rand(num_rows, state, generator=generator)
    reference, store = _reference(rows, states), TrainedArray(rows.clone(), states.clone(), seed=seed)
    ids = torch.randperm(num_rows, generator=generator)[:count]
    deltas = torch.randn(len(ids), width, generator=generator), torch.rand(len(ids), state, generator=generator)
    reference.add(ids, *deltas, seed=seed, call=0)
    store.add_(ids, *deltas)
    assert torch.equal(store.rows, reference.rows[0])
    assert torch.equal(store.state, reference.states[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slots_are_the_same_by_address_and_by_view(dtype: torch.dtype) -> None:
    """What a GPU does with its slots, and the native kernel with those of the host: parts 0, 2 and 3 of 5 in slots 1, 3 and 0."""
    layout = Layout.of(73, 7, 3, dtype, 5, 4096)
    memory = torch.randint(255, (4, layout.file_bytes), dtype=torch.uint8)
    memory.view(dtype)[:] = torch.randn(4, layout.file_bytes // dtype.itemsize)
    twin, bases, slot_of = memory.clone(), torch.zeros(5, dtype=torch.int64), torch.full((5,), -1)
    for part, slot in ((0, 1), (2, 3), (3, 0)):
        bases[part], slot_of[part] = twin[slot].data_ptr(), slot
    device = DeviceTable(layout.shape, *slot_views(layout, memory), slot_of)
    host = HostTable(layout.shape, bases, torch.where(bases == 0, 0, bases + layout.state_offset), 2)
    ids = torch.cat([torch.arange(15), torch.arange(30, 60)])[torch.randperm(45)]
    deltas = torch.randn(45, 7), torch.rand(45, 3)
    assert device.add(ids, *deltas, seed=1, call=2).equal(host.add(ids, *deltas, seed=1, call=2))
    assert memory.equal(twin)
    for mine, theirs in zip(device.gather(ids), host.gather(ids), strict=True):
        assert mine.view(torch.int32).equal(theirs.view(torch.int32))
    for table in (device, host):
        with pytest.raises(IndexError, match="partition 1 are not resident"):
            table.gather(torch.tensor([0, 20, 65]))


def test_ids_past_32_bits() -> None:
    rows, state = torch.randn(1 << 13, 4), torch.rand(1 << 13, 1)
    part = (1 << 19) + 5
    bases = torch.zeros(1 << 20, 2, dtype=torch.int64)
    bases[part] = torch.tensor([rows.data_ptr(), state.data_ptr()])
    table = HostTable(RowShape(1 << 33, 1 << 13, 4, 1, torch.float32), bases[:, 0].contiguous(), bases[:, 1].contiguous(), 2)
    ids = torch.tensor([part << 13, (part << 13) + 8191, (part << 13) + 77])
    assert table.gather(ids)[0].equal(rows[[0, 8191, 77]])
    expected = rows[77] + 1
    assert table.add(ids[2:], torch.ones(1, 4), torch.ones(1, 1), seed=0, call=0).nonzero().flatten().tolist() == [part]
    assert rows[77].equal(expected)
