"""Trained rows on a GPU: the same bits as on the host, through slots of GPU memory, from many threads and streams."""

import threading
from pathlib import Path

import pytest
import torch

from headrace.kernels import round_to_bfloat16
from headrace.pipeline import orders
from headrace.store import Partitioned, TrainedArray
from partition_cases import everything, states_on_disk, train_in_memory, train_partitioned

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 47, 100])
def test_rows_in_gpu_memory_equal_those_of_the_host(width: int, dtype: torch.dtype) -> None:
    near, far = (TrainedArray.create(5000, width, state=1, dtype=dtype, init=(0.1, 1), seed=9, device=d) for d in ("cuda", "cpu"))
    for _ in range(3):
        ids, state = torch.randperm(5000)[:3000], torch.rand(3000, 1)
        delta = 0.01 * torch.randn(3000, width)
        near.add_(ids.cuda(), delta.cuda(), state.cuda())
        far.add_(ids, delta, state)
        for mine, theirs in zip(near.gather(ids), far.gather(ids), strict=True):
            assert mine.is_cuda
            assert mine.cpu().equal(theirs)
    assert near.rows.cpu().equal(far.rows)
    with pytest.raises(IndexError, match="for 5000 rows"):
        near.gather(torch.tensor([5000]).cuda())


@pytest.mark.parametrize("width", [1, 8, 33, 200])
def test_rounding_draws_the_same_on_the_gpu(width: int) -> None:
    values, ids = torch.randn(1000, width), torch.randint(1 << 40, (1000,))
    values[:7, 0] = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 3.38e38, 1e-40])
    there = round_to_bfloat16(values.cuda(), ids.cuda(), seed=5, call=7)
    expected = round_to_bfloat16(values, ids, seed=5, call=7)
    assert there.cpu().view(torch.int16).equal(expected.view(torch.int16))
    assert round_to_bfloat16(values[:0].cuda(), ids[:0].cuda(), seed=5, call=7).shape == (0, width)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "capacity", "spare"), [("beta", 2, 1), ("comet", 4, 2), ("best", 4, 0)])
def test_slots_on_a_gpu_equal_rows_in_memory(tmp_path: Path, name: str, capacity: int, spare: int, dtype: torch.dtype) -> None:
    Partitioned.create(tmp_path / "rows", 2003, 47, partitions=8, init=(0.1, 5), seed=3, dtype=dtype, checksums=True)
    reference = TrainedArray.create(2003, 47, init=(0.1, 5), seed=3, dtype=dtype)
    order = orders.ORDERS[name](8, capacity)
    with Partitioned.open(tmp_path / "rows", capacity=capacity, spare=spare, device="cuda") as store:
        for epoch in range(2):
            if epoch:
                order = order.starting_with(store.resident, seed=epoch)
            before = store.use()
            train_partitioned(_OnGpu(store), order, first=1000 * epoch)  # type: ignore[arg-type]
            train_in_memory(reference, order, 8, first=1000 * epoch)
            assert everything(store).equal(reference.rows.float())
        assert (store.use() - before).bytes_read == order.swaps * store.partition_bytes
        assert (store.use() - before).bytes_written == order.swaps * store.partition_bytes
        with pytest.raises(IndexError, match="are not resident"):
            store.gather(torch.arange(2003).cuda())
        store.checkpoint()
    assert states_on_disk(tmp_path / "rows", 1).equal(reference.state)


class _OnGpu:
    """A store whose answers are moved to the host, where the work of the cases is done."""

    def __init__(self, store: Partitioned) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def gather(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, state = self._store.gather(ids.cuda())
        assert rows.is_cuda
        return rows.cpu(), state.cpu()


def test_partitions_larger_than_a_piece(tmp_path: Path) -> None:
    """Files of 40 MiB pass through pinned pieces of 16."""
    Partitioned.create(tmp_path / "rows", 3 * 100_000, 104, partitions=3, init=(0.1, 5))
    reference = TrainedArray.create(3 * 100_000, 104, init=(0.1, 5))
    with Partitioned.open(tmp_path / "rows", capacity=2, spare=1, device="cuda") as store:
        assert store.partition_bytes > 40 << 20
        train_partitioned(_OnGpu(store), orders.beta(3, 2))  # type: ignore[arg-type]
        train_in_memory(reference, orders.beta(3, 2), 3)
        assert everything(store).equal(reference.rows)
        store.checkpoint()
    assert states_on_disk(tmp_path / "rows", 2).equal(reference.state)


def test_batches_in_flight_on_streams_of_their_own(tmp_path: Path) -> None:
    """Whole numbers add up exactly in any order: none may be lost, and no slot may be reused too early."""
    Partitioned.create(tmp_path / "rows", 8 * 20_000, 32, partitions=8, init=lambda a, b: torch.zeros(b - a, 32))
    order, waiting, failures = orders.best(8, 4), threading.Semaphore(6), []
    expected = torch.zeros(8 * 20_000)
    with Partitioned.open(tmp_path / "rows", capacity=4, spare=2, device="cuda") as store:

        def work(held: object, ids: torch.Tensor) -> None:
            try:
                with torch.cuda.stream(torch.cuda.Stream()):
                    near = ids.cuda()
                    rows, state = store.gather(near)
                    store.add_(near, torch.ones_like(rows), torch.ones_like(state))
            except BaseException as error:
                failures.append(error)
            finally:
                held.release()  # type: ignore[attr-defined]
                waiting.release()

        threads = []
        with store.walk(order) as walk:
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
        assert everything(store).equal(expected.unsqueeze(1).expand(-1, 32))
        store.checkpoint()
    assert states_on_disk(tmp_path / "rows", 2).flatten().equal(expected)
