"""The partitioned store does what rows in memory do, moves the bytes that the formula says, and never waits without need."""

import threading
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline import orders
from headrace.pipeline.orders import Order
from headrace.store import BufferPool, Partitioned, TrainedArray, TrainedRows
from partition_cases import everything, rows_of, states_on_disk, train_in_memory, train_partitioned, update


def _pair(path: Path, rows: int, width: int, partitions: int, **options: object) -> TrainedArray:
    """A new store on disk, and the same rows in memory."""
    state = options.pop("state", 1)
    Partitioned.create(path, rows, width, partitions=partitions, state=state, init=(0.1, 5), seed=3, **options)
    return TrainedArray.create(rows, width, state=state, init=(0.1, 5), seed=3, dtype=options.get("dtype", torch.float32))


@pytest.mark.parametrize(
    ("name", "partitions", "capacity"), [("beta", 8, 2), ("comet", 8, 4), ("best", 8, 4), ("hilbert", 4, 2), ("best", 6, 6)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_rows_in_memory(tmp_path: Path, name: str, partitions: int, capacity: int, dtype: torch.dtype) -> None:
    reference = _pair(tmp_path / "rows", 203, 13, partitions, dtype=dtype, state=13 if name == "best" else 1)
    order = orders.ORDERS[name](partitions, capacity)
    with Partitioned.open(tmp_path / "rows", capacity=capacity, spare=1) as store:
        assert isinstance(store, TrainedRows)
        for epoch in range(2):
            if epoch:
                order = order.starting_with(store.resident, seed=epoch)
            train_partitioned(store, order, first=1000 * epoch)
            train_in_memory(reference, order, partitions, first=1000 * epoch)
            assert torch.equal(everything(store), reference.rows.float())
        store.checkpoint()
    with Partitioned.open(tmp_path / "rows", capacity=capacity) as store:
        assert torch.equal(everything(store), reference.rows.float())
    assert torch.equal(states_on_disk(tmp_path / "rows", 1), reference.state)


@pytest.mark.parametrize("direct", [True, False, "auto"])
@pytest.mark.parametrize("spare", [0, 1, 3])
def test_bytes_of_an_epoch_are_those_of_the_formula(tmp_path: Path, direct: object, spare: int) -> None:
    partitions, capacity = 8, 4
    _pair(tmp_path / "rows", 8 * 700, 11, partitions, direct=direct)
    order = orders.best(partitions, capacity)
    with Partitioned.open(tmp_path / "rows", capacity=capacity, spare=spare, direct=direct) as store:
        assert store.direct == (direct is not False)
        size = store.partition_bytes
        assert 0 <= size - 700 * (11 * 4 + 4) < 4096 + 64
        train_partitioned(store, order)
        first = store.use()
        assert (first.loads, first.write_backs) == (capacity + order.swaps, order.swaps)
        for epoch in range(1, 4):
            before = store.use()
            train_partitioned(store, order.starting_with(store.resident, seed=epoch))
            epoch_use = store.use() - before
            assert epoch_use.bytes_read + epoch_use.bytes_written == 2 * order.swaps * size
            assert epoch_use.loads == epoch_use.write_backs == order.swaps
            assert epoch_use.read_seconds > 0
            assert epoch_use.write_seconds > 0
            assert epoch_use.stall_seconds >= 0
        assert store.use().slot_bytes == min(capacity + spare, partitions) * size
        assert store.use().peak_bytes <= store.use().slot_bytes
        store.checkpoint()
        assert store.use().checkpoint_bytes == capacity * size
        before = store.use()
        store.checkpoint()  # nothing changed
        assert (store.use() - before).checkpoint_writes == 0
    assert sum(f.stat().st_size for f in (tmp_path / "rows").glob("partition.*")) == partitions * size


def test_what_did_not_change_is_not_written(tmp_path: Path) -> None:
    _pair(tmp_path / "rows", 64, 4, 8)
    with Partitioned.open(tmp_path / "rows", capacity=2) as store:
        with store.walk(orders.beta(8, 2)) as walk:
            for step in walk:
                with walk.hold(step.state):
                    store.gather(torch.tensor([step.state[0] * 8]))
        assert store.use().write_backs == 0
        assert store.use().loads == 2 + orders.beta(8, 2).swaps


def test_all_partitions_resident_load_once(tmp_path: Path) -> None:
    _pair(tmp_path / "rows", 64, 4, 4)
    with Partitioned.open(tmp_path / "rows", capacity=4, spare=2) as store:
        for _ in range(3):
            train_partitioned(store, orders.beta(4, 4))
        assert (store.use().loads, store.use().write_backs) == (4, 0)
        assert store.use().slot_bytes == 4 * store.partition_bytes


@pytest.mark.parametrize(("rows", "partitions"), [(5, 4), (9, 6), (1, 3), (0, 2), (100, 1)])
def test_last_partitions_may_be_short_or_empty(tmp_path: Path, rows: int, partitions: int) -> None:
    reference = _pair(tmp_path / "rows", rows, 3, partitions)
    order = orders.beta(partitions, min(2, partitions))
    with Partitioned.open(tmp_path / "rows", capacity=min(2, partitions)) as store:
        assert [i for p in range(partitions) for i in store.rows_of(p)] == list(range(rows))
        train_partitioned(store, order)
        train_in_memory(reference, order, partitions)
        found = everything(store) if rows else torch.empty(0, 3)
        assert torch.equal(found, reference.rows)
        assert store.nbytes == rows * 16


def test_rows_that_are_not_resident_are_named(tmp_path: Path) -> None:
    _pair(tmp_path / "rows", 40, 3, 4)
    with Partitioned.open(tmp_path / "rows", capacity=2) as store:
        with pytest.raises(IndexError, match="partition 3 are not resident"):
            store.gather(torch.tensor([35]))
        with store.walk(orders.beta(4, 2)) as walk:
            next(iter(walk))
            with walk.hold((0, 1)):
                assert store.gather(torch.tensor([0, 15], dtype=torch.int32))[0].shape == (2, 3)
                with pytest.raises(IndexError, match="partition 2 are not resident"):
                    store.gather(torch.tensor([0, 25, 35]))
                with pytest.raises(IndexError, match="partition 3 are not resident"):
                    store.add_(torch.tensor([35]), torch.zeros(1, 3), torch.zeros(1, 1))
                for ids in ([40], [-1]):
                    with pytest.raises(IndexError, match="for 40 rows"):
                        store.gather(torch.tensor(ids))
            with pytest.raises(ValueError, match="partition 3 is not in the state of this step"):
                walk.hold((0, 3))
        assert store.gather(torch.tensor([], dtype=torch.int64))[0].shape == (0, 3)


def test_orders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    _pair(tmp_path / "rows", 40, 3, 4)
    with Partitioned.open(tmp_path / "rows", capacity=2) as store:
        with pytest.raises(ValueError, match="for 8 partitions, the store has 4"):
            store.walk(orders.beta(8, 2))
        with pytest.raises(ValueError, match="at most 2 different partitions"):
            store.walk(orders.beta(4, 3))
        with pytest.raises(ValueError, match="step 0 needs a partition"):
            store.walk(Order(4, ((0, 1),), (((0, 2),),)))
        with store.walk(orders.beta(4, 2)):
            with pytest.raises(RuntimeError, match="while a walk"), store.walk(orders.beta(4, 2)):
                pass
            with pytest.raises(RuntimeError, match="while a walk"):
                next(store.scan())
        walk = store.walk(orders.beta(4, 2))
        with pytest.raises(RuntimeError, match="inside `with"):
            next(iter(walk))
    for wrong in ({"capacity": 5}, {"capacity": 0}, {"capacity": 2, "spare": -1}, {"capacity": 2, "direct": "no"}):
        with pytest.raises(ValueError, match=r"must be|must not"):
            Partitioned.open(tmp_path / "rows", **wrong)


def test_a_bucket_waits_only_for_its_own_partitions(tmp_path: Path) -> None:
    """Reads of partition 2 are held up: buckets without it go on."""
    _pair(tmp_path / "rows", 40, 3, 4)
    with Partitioned.open(tmp_path / "rows", capacity=3, spare=1) as store:
        gate = threading.Event()
        load, slots = store._moves.slots.load, store._moves.slots

        def slow(file: object, slot: int) -> None:
            if ".2." in file.path.name:  # type: ignore[attr-defined]
                gate.wait(10)
            load(file, slot)  # type: ignore[arg-type]

        slots.load = slow  # type: ignore[method-assign]
        order = Order(4, ((0, 1, 3), (0, 1, 2)), (((0, 1),), ((0, 1), (0, 2))))
        with store.walk(order) as walk:
            for step in walk:
                with walk.hold((0, 1)):  # never waits for 2, though the step began
                    update(store, step.number, store.rows_of(0), store.rows_of(1), 1)
                if step.number == 1:
                    assert not gate.is_set()
                    gate.set()
                    with walk.hold((0, 2)):
                        store.gather(torch.tensor([25]))
        assert store.resident == (0, 1, 2)


def test_a_partition_leaves_when_nobody_holds_it(tmp_path: Path) -> None:
    _pair(tmp_path / "rows", 40, 3, 4)
    with Partitioned.open(tmp_path / "rows", capacity=2, spare=1) as store:
        order = Order(4, ((0, 1), (0, 2), (2, 3)), ((), (), ()))
        with store.walk(order) as walk:
            steps = iter(walk)
            next(steps)
            held = walk.hold((0, 1))
            next(steps)
            with walk.hold((0, 2)):  # takes the spare slot, partition 1 is still held
                store.add_(torch.tensor([15]), torch.ones(1, 3), torch.ones(1, 1))
            assert store.use().write_backs == 0
            held.release()
            held.release()  # a second time does nothing
            next(steps)
            with walk.hold((2, 3)), pytest.raises(IndexError, match="partition 1"):
                store.gather(torch.tensor([15]))
            assert store.use().write_backs == 1
        assert store.resident == (2, 3)
        assert everything(store)[15].sum() - TrainedArray.create(40, 3, init=(0.1, 5)).rows[15].sum() == pytest.approx(3, abs=1e-5)


def test_a_partition_that_is_held_when_it_is_needed_again_is_not_loaded(tmp_path: Path) -> None:
    _pair(tmp_path / "rows", 40, 3, 4)
    with Partitioned.open(tmp_path / "rows", capacity=2, spare=2) as store:
        with store.walk(Order(4, ((0, 1), (0, 2), (0, 1), (0, 3)), ((),) * 4)) as walk:
            steps = iter(walk)
            next(steps)
            held = walk.hold((0, 1))
            next(steps)
            walk.hold((2,)).release()
            next(steps)
            with walk.hold((0, 1)):
                held.release()
            next(steps)
            walk.hold((0, 3)).release()
        assert store.use().loads == 4  # 0, 1, 2, 3


def test_steps_may_be_passed_by_and_walks_broken_off(tmp_path: Path) -> None:
    reference = _pair(tmp_path / "rows", 160, 3, 8)
    with Partitioned.open(tmp_path / "rows", capacity=2, spare=2) as store:
        with store.walk(orders.beta(8, 2)) as walk:
            for _ in walk:
                pass
        assert everything(store).equal(reference.rows)
        for stop in (0, 1, 5, 11):
            with store.walk(orders.beta(8, 2)) as walk:
                for step in walk:
                    if step.number == stop:
                        break
            assert store.resident == step.state
            ids = torch.tensor([store.resident[0] * 20, store.resident[1] * 20])
            assert store.gather(ids)[0].equal(reference.rows[ids])
        with pytest.raises(KeyError), store.walk(orders.beta(8, 2)) as walk:
            for _ in walk:
                raise KeyError("of the caller")
        train_partitioned(store, orders.beta(8, 2))
        train_in_memory(reference, orders.beta(8, 2), 8)
        assert everything(store).equal(reference.rows)


@pytest.mark.parametrize(("readers", "writers", "spare"), [(1, 1, 1), (2, 2, 2)])
def test_batches_in_flight_in_many_threads(tmp_path: Path, readers: int, writers: int, spare: int) -> None:
    """Sums of whole numbers are exact in any order, so none may be missing."""
    Partitioned.create(tmp_path / "rows", 400, 6, partitions=8, init=lambda a, b: torch.zeros(b - a, 6))
    order, waiting = orders.best(8, 4), threading.Semaphore(6)
    expected, failures = torch.zeros(400), []
    with Partitioned.open(tmp_path / "rows", capacity=4, spare=spare, readers=readers, writers=writers) as store:

        def work(held: object, ids: torch.Tensor) -> None:
            try:
                store.gather(ids)
                time.sleep(0.002)
                store.add_(ids, torch.ones(len(ids), 6), torch.ones(len(ids), 1))
            except BaseException as error:
                failures.append(error)
            finally:
                held.release()  # type: ignore[attr-defined]
                waiting.release()

        threads = []
        for epoch in range(2):
            with store.walk(order.starting_with(store.resident, epoch) if epoch else order) as walk:
                for step in walk:
                    for i, j in step.buckets:
                        waiting.acquire()
                        held = walk.hold((i, j))
                        ids = torch.cat([torch.arange(store.rows_of(p).start, store.rows_of(p).stop) for p in {i, j}])
                        expected[ids] += 1
                        threads.append(threading.Thread(target=work, args=(held, ids)))
                        threads[-1].start()
                for thread in threads:
                    thread.join()
        assert not failures
        assert everything(store).equal(expected.unsqueeze(1).expand(-1, 6))
        assert store.use().loads == 4 + 2 * order.swaps
        store.checkpoint()
    assert states_on_disk(tmp_path / "rows", 2).flatten().equal(expected)


def test_scan_is_in_pieces_and_sees_changes(tmp_path: Path) -> None:
    reference = _pair(tmp_path / "rows", 500, 7, 3)
    with Partitioned.open(tmp_path / "rows", capacity=2) as store:
        train_partitioned(store, orders.beta(3, 2))
        train_in_memory(reference, orders.beta(3, 2), 3)
        found = list(store.scan(rows=60))
        assert [begin for begin, _ in found] == [*range(0, 167, 60), *range(167, 334, 60), *range(334, 500, 60)]
        assert torch.cat([rows for _, rows in found]).equal(reference.rows)
        with pytest.raises(ValueError, match="rows must be at least 1"):
            next(store.scan(rows=0))
        scan = store.scan()
        next(scan)
        scan.close()
        train_partitioned(store, orders.beta(3, 2))  # a scan that was left does not stand in the way


def test_gathers_use_memory_of_a_pool_again(tmp_path: Path) -> None:
    reference, pool = _pair(tmp_path / "rows", 400, 30, 2), BufferPool()
    with Partitioned.open(tmp_path / "rows", capacity=2, pool=pool) as store:
        with store.walk(orders.beta(2, 2)) as walk:
            next(iter(walk))
            with walk.hold((0, 1)):
                for _ in range(3):
                    assert store.gather(torch.arange(400))[0].equal(reference.rows)
        assert pool.use().hits == 4  # rows and states, the first time aside


def test_closing_leaves_no_threads(tmp_path: Path) -> None:
    _pair(tmp_path / "rows", 40, 3, 4)
    before = threading.active_count()
    store = Partitioned.open(tmp_path / "rows", capacity=2, readers=2, writers=2)
    assert threading.active_count() == before + 4
    with pytest.raises(BlockingIOError, match="is open elsewhere"):
        Partitioned.open(tmp_path / "rows", capacity=2)
    with pytest.raises(KeyboardInterrupt), store, store.walk(orders.beta(4, 2)) as walk:
        for _ in walk:
            raise KeyboardInterrupt
    assert threading.active_count() == before
    store.close()
    for use in (lambda: store.gather(torch.tensor([0])), store.checkpoint, lambda: next(store.scan())):
        with pytest.raises(RuntimeError, match="closed"):
            use()
    forgotten = Partitioned.open(tmp_path / "rows", capacity=2)
    del forgotten
    assert threading.active_count() == before


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_work_equals_rows_in_memory(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Random states, holds, adds, checkpoints and reopenings."""
    path = tmp_path_factory.mktemp("any") / "rows"
    partitions = data.draw(st.integers(2, 6))
    capacity = data.draw(st.integers(1, partitions))
    rows, width, state = data.draw(st.integers(0, 60)), data.draw(st.integers(1, 9)), data.draw(st.integers(0, 2))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    reference = _pair(path, rows, width, partitions, dtype=dtype, state=state, checksums=data.draw(st.booleans()))
    spare, direct = data.draw(st.integers(0, 2)), data.draw(st.booleans())
    per, number = -(-rows // partitions), 0
    for _ in range(data.draw(st.integers(1, 3))):
        with Partitioned.open(path, capacity=capacity, spare=spare, direct="auto" if direct else False) as store:
            for _ in range(data.draw(st.integers(0, 2))):
                states = tuple(
                    tuple(data.draw(st.permutations(range(partitions)))[:capacity]) for _ in range(data.draw(st.integers(1, 4)))
                )
                with store.walk(Order(partitions, states, ((),) * len(states))) as walk:
                    for step in walk:
                        for _ in range(data.draw(st.integers(0, 2))):
                            number += 1
                            i, j = data.draw(st.sampled_from(step.state)), data.draw(st.sampled_from(step.state))
                            with walk.hold((i, j)):
                                update(store, number, store.rows_of(i), store.rows_of(j), state)
                            update(reference, number, rows_of(i, per, rows), rows_of(j, per, rows), state)
                        if data.draw(st.integers(0, 4)) == 0:
                            store.checkpoint()
            assert torch.equal(everything(store) if rows else torch.empty(0, width), reference.rows.float())
            store.checkpoint({"number": number})
        with Partitioned.open(path, capacity=1) as store:
            assert store.extra == {"number": number}
    assert torch.equal(states_on_disk(path, 1), reference.state)
