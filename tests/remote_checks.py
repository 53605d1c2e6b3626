"""What every rank of three checks of `Remote`, in one go, since starting processes costs more than all checks together.

Run by `test_remote.py` as `remote_checks.py RANK FOLDER`; writes a JSON file of check -> "" or traceback.
"""

import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from checks import message, run_checks
from headrace.store import ArrayStore, Remote, Store, TableOwners, WritableStore, hash_owners, probability_owners

RANKS = 3
FOLDER = Path(sys.argv[2]) if __name__ == "__main__" else Path()


def rows_of(nodes, width, dtype, seed=0):
    return (torch.randn(nodes, width, generator=torch.Generator().manual_seed(seed)) * 50).to(dtype)


def some_ids(nodes, count, *, rank, batch=0, dtype=torch.int64):
    generator = torch.Generator().manual_seed(1000 * rank + batch)
    return torch.randint(nodes, (count,), generator=generator).to(dtype)


def same(a, b):
    return a.dtype == b.dtype and torch.equal(a.float(), b.float())


def check_gather_equals_indexing(rank):
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int8):
        for width in (1, 47, 602):
            rows = rows_of(101, width, dtype)
            store = Remote(rows, hash_owners(101, RANKS, seed=width))
            assert isinstance(store, Store)
            assert (store.shape, store.dtype, len(store)) == ((101, width), dtype, 101)
            for batch, ids_dtype in enumerate((torch.int64, torch.int32)):
                ids = some_ids(101, 250 if rank else 3, rank=rank, batch=batch, dtype=ids_dtype)
                assert same(store.gather(ids), rows[ids.long()])
            store.close()


def check_rows_of_other_shapes(rank):
    for shape in ((20,), (20, 0), (20, 2, 3), (0, 4), (1, 4)):
        rows = torch.arange(float(torch.Size(shape).numel())).view(shape)
        store = Remote(rows, hash_owners(len(rows), RANKS))
        ids = torch.arange(len(rows)).flip(0)
        assert torch.equal(store.gather(ids), rows.flip(0)), shape
        store.close()


def check_empty_ids_repeated_ids_and_outputs(rank):
    rows = rows_of(50, 8, torch.float32)
    store = Remote(rows, hash_owners(50, RANKS))
    assert store.gather([]).shape == (0, 8)
    assert store.gather(torch.empty(0, dtype=torch.int64) if rank == 1 else torch.full((9,), 7)).shape == (0 if rank == 1 else 9, 8)
    out = torch.full((4, 8), torch.nan)
    ids = torch.tensor([3, 3, 49, 0])
    assert store.gather(ids, out=out) is out
    assert torch.equal(out, rows[ids])
    assert torch.equal(store.gather(np.array([5, 6], dtype=np.int32)), rows[5:7])
    store.close()


def check_bytes_on_the_wire_equal_the_formula(rank):
    width, nodes, batches = 47, 200, 4
    rows = rows_of(nodes, width, torch.float16)
    owners = hash_owners(nodes, RANKS)
    hot = torch.arange(20)
    store = Remote(rows, owners, replicate=hot)
    calls = []
    original = dist.all_to_all_single
    dist.all_to_all_single = lambda *a, **k: (calls.append(1), original(*a, **k))[1]
    for batch in range(batches):
        ids = some_ids(nodes, 60 + rank, rank=rank, batch=batch)
        assert torch.equal(store.gather(ids), rows[ids])
    dist.all_to_all_single = original
    assert len(calls) == 3 * batches
    asked = torch.zeros(RANKS, RANKS, dtype=torch.int64)  # by the first of the second
    hits = [0, 0]
    for asker in range(RANKS):
        for batch in range(batches):
            ids = some_ids(nodes, 60 + asker, rank=asker, batch=batch)
            owner = owners.locate(ids)[0]
            away = ids[(owner != asker) & (ids >= 20)]
            asked[asker] += torch.bincount(owners.locate(away)[0], minlength=RANKS)
            if asker == rank:
                hits[0] += int((owner == rank).sum())
                hits[1] += int(((owner != rank) & (ids < 20)).sum())
    use = store.use()
    sent, received = int(asked[rank].sum()), int(asked[:, rank].sum())
    assert (use.local, use.replica, use.remote) == (*hits, sent)
    assert use.requests == batches * (60 + rank) == use.local + use.replica + use.remote
    assert use.ids_sent == sent * 4
    assert use.ids_received == received * 4
    assert use.rows_sent == received * width * 2
    assert use.rows_received == sent * width * 2
    assert use.counts_sent == use.counts_received == batches * 8 * (RANKS - 1)
    assert use.bytes_sent == sent * 4 + received * width * 2 + batches * 8 * (RANKS - 1)
    assert (use.exchanges, use.peak) == (batches, 1)
    assert use.waited > 0
    store.close()


def check_own_rows_travel_nowhere(rank):
    rows = rows_of(60, 5, torch.float32)
    owners = hash_owners(60, RANKS)
    store = Remote(rows, owners)
    mine = owners.ids_of(rank)
    assert torch.equal(store.gather(mine), rows[mine])
    use = store.use()
    assert (use.local, use.remote, use.ids_sent, use.rows_received) == (len(mine), 0, 0, 0)
    store.close()


def check_from_local_with_a_store_and_fetched_replicas(rank):
    wanted = torch.rand(RANKS, 90, generator=torch.Generator().manual_seed(3))
    owners = probability_owners(wanted, budget_rows=40)
    rows = rows_of(90, 6, torch.float32)
    store = Remote.from_local(ArrayStore(rows[owners.ids_of(rank)]), owners)
    assert store.use().requests == store.use().exchanges == 0
    ids = torch.arange(90)
    assert torch.equal(store.gather(ids), rows)
    use = store.use()
    assert (use.local, use.replica, use.remote) == (30, 10, 50)
    store.close()


def check_memory_map_of_all_rows(rank):
    path = FOLDER / "rows.npy"
    if rank == 0:
        np.save(path, rows_of(40, 3, torch.float32).numpy())
    dist.barrier()
    store = Remote(np.load(path, mmap_mode="r"), hash_owners(40, RANKS))
    assert torch.equal(store.gather(torch.arange(40)), rows_of(40, 3, torch.float32))
    assert store.local.writable
    store.close()


def check_prefetch_runs_ahead_in_order(rank):
    rows = rows_of(300, 16, torch.float32)
    store = Remote(rows, hash_owners(300, RANKS), ahead=3)
    batches = [some_ids(300, 40 * (rank + 1), rank=rank, batch=b) for b in range(12)]
    handles = [store.prefetch(ids) for ids in batches[:3]]
    gradient = torch.ones(4)
    for at, ids in enumerate(batches):
        dist.all_reduce(gradient)  # the trainer's own collective, between exchanges that are under way
        if at + 3 < len(batches):
            handles.append(store.prefetch(batches[at + 3]))
        assert torch.equal(handles[at].wait(), rows[ids])
        assert handles[at].done
        assert torch.equal(handles[at].wait(), rows[ids])
    assert float(gradient[0]) == 3.0 ** len(batches)
    assert 2 <= store.use().peak <= 3 + 2
    store.close()


def check_uneven_tails_do_not_hang(rank):
    rows = rows_of(80, 4, torch.float32)
    store = Remote(rows, hash_owners(80, RANKS))
    for epoch in range(2):  # after all have finished, a new epoch may begin
        number = (5, 0, 2)[(rank + epoch) % RANKS]
        batches = [some_ids(80, 11, rank=rank, batch=b) for b in range(number)]
        seen = 0
        for ids, found in store.stream(iter(batches)):
            assert torch.equal(found, rows[ids])
            seen += 1
        assert seen == number
        assert store.use().exchanges == (epoch + 1) * 6  # the most batches, and one in which all say that they have finished
    if rank == 0:
        store.add_(torch.tensor([1, 1]), torch.ones(2, 4))
    store.finish()
    assert torch.equal(store.gather([1]), rows[1:2] + 2)
    store.close()


def expected_sum(rows, additions):
    """The same on one rank: all deltas, in rank order and then in the order given."""
    ids, deltas = (torch.cat(parts) for parts in zip(*additions, strict=True))
    out = rows.clone()
    if rows.dtype != torch.float32:
        return out.index_add_(0, ids, deltas)
    for id_, delta in zip(ids.tolist(), deltas, strict=True):
        out[id_] += delta
    return out


def check_add_is_in_rank_order_and_keeps_copies_equal(rank):
    for dtype, hot in ((torch.float32, None), (torch.float32, torch.arange(0, 30, 3)), (torch.bfloat16, torch.arange(5))):
        rows = rows_of(30, 7, dtype)
        store = Remote(rows, hash_owners(30, RANKS), replicate=hot)
        expected = rows
        for batch in range(2):
            additions = []
            for adder in range(RANKS):
                ids = some_ids(30, (0, 50, 21)[adder], rank=adder, batch=batch)
                additions.append((ids, rows_of(len(ids), 7, dtype, seed=adder + 7 * batch) / 3))
            store.add_(*additions[rank])
            expected = expected_sum(expected, additions)
            assert same(store.gather(torch.arange(30)), expected)
        assert store.use().added == 2 * (0, 50, 21)[rank]
        store.close()


def check_rows_that_are_put_are_those_of_the_last_rank(rank):
    for dtype, hot in ((torch.float32, None), (torch.bool, torch.arange(0, 30, 3))):
        rows = rows_of(30, 7, torch.float32).to(dtype)
        store = Remote(rows, hash_owners(30, RANKS), replicate=hot)
        assert isinstance(store, WritableStore)
        expected, written = rows.clone(), []
        for writer in range(RANKS):
            ids = torch.unique(some_ids(30, (0, 9, 21)[writer], rank=writer))
            written.append((ids, rows_of(len(ids), 7, torch.float32, seed=writer + 3).to(dtype)))
            expected[ids] = written[-1][1]
        store.put_(*written[rank])
        assert torch.equal(store.gather(torch.arange(30)), expected)
        assert torch.equal(torch.cat([piece for _, piece in store.scan(rows=8)]), expected)  # every rank makes the same gathers
        if rank == 1:
            store.put_(torch.tensor([4]), rows[:1])
        store.finish()
        assert torch.equal(store.gather([4]), rows[:1])
        store.close()


def check_add_refuses_copies_that_would_go_stale(rank):
    store = Remote(torch.zeros(9, 2), hash_owners(9, RANKS), replicate=torch.tensor([rank]))
    assert "copy the same ones on every rank" in message(ValueError, store.add_, torch.tensor([0]), torch.ones(1, 2))
    assert "delta must be torch.float32, of shape (1, 2)" in message(ValueError, store.add_, torch.tensor([0]), torch.ones(1, 3))
    store.close()


def check_a_group_of_two(rank):
    pair = dist.new_group([0, 2])
    if rank != 1:
        rows = rows_of(33, 100, torch.float32)
        owners = hash_owners(33, 2)
        store = Remote(rows, owners, group=pair)
        assert torch.equal(store.local.rows, rows[owners.ids_of(rank // 2)])
        ids = some_ids(33, 20, rank=rank)
        assert torch.equal(store.gather(ids), rows[ids])
        store.close()


def check_wrong_input_is_named_without_an_exchange(rank):
    store = Remote(torch.zeros(10, 2), hash_owners(10, RANKS))
    assert "for 10 rows: ids[1] is 10, which is out of range" in message(IndexError, store.gather, torch.tensor([0, 10]))
    assert "ids[0] is -1" in message(IndexError, store.prefetch, torch.tensor([-1], dtype=torch.int32))
    assert "must hold integers" in message(ValueError, store.gather, torch.tensor([0.5]))
    assert "one dimension" in message(ValueError, store.gather, torch.tensor([[1]]))
    assert "out must be" in message(ValueError, lambda: store.gather(torch.tensor([1]), out=torch.empty(2, 2)))
    assert torch.equal(store.gather(torch.tensor([9])), torch.zeros(1, 2))
    store.close()


def check_ranks_that_disagree_all_say_so(rank):
    found = message(ValueError, Remote, torch.zeros(10, 2 + rank // 2), hash_owners(10, RANKS))
    assert found == "ranks disagree on the row shape: rank 0 has [2], rank 2 has [3]"
    found = message(ValueError, Remote, torch.zeros(10, 2), hash_owners(10, RANKS, seed=rank == 1))
    assert "ranks disagree on the owners" in found
    found = message(ValueError, Remote.from_local, torch.zeros(4, 2), hash_owners(10, RANKS))
    assert found == "rank 0: this rank was given 4 rows, its share is 3"
    found = message(ValueError, Remote, torch.zeros(10, 2), hash_owners(10, 2))
    assert found == "rank 0: owners are for 2 ranks, the group has 3"
    found = message(ValueError, Remote, torch.zeros(10 + rank, 2), hash_owners(10, RANKS))
    assert found.startswith("rank 1: rows has 11 rows")
    found = message(ValueError, Remote, torch.zeros(10, 2), hash_owners(10, RANKS), replicate=torch.tensor([10]))
    assert "rank 0: replicate holds ids from 10 to 10" in found


def check_different_calls_are_named(rank):
    store = Remote(torch.zeros(10, 2), hash_owners(10, RANKS), timeout=5)
    call = (lambda: store.gather([1])) if rank == 1 else (lambda: store.add_(torch.tensor([1]), torch.ones(1, 2)))
    assert "rank 0 called add, rank 1 called gather" in message(RuntimeError, call)
    assert "failed earlier" in message(RuntimeError, store.gather, [1])


def check_an_error_on_one_rank_reaches_all(rank):
    class Failing(ArrayStore):
        def gather(self, ids, *, out=None):
            raise OSError("the disk is gone")

    owners = TableOwners(torch.arange(9) % RANKS, RANKS)
    store = Remote.from_local((Failing if rank == 1 else ArrayStore)(torch.zeros(3, 2)), owners, timeout=1.0)
    if rank == 1:
        assert message(OSError, store.gather, [0]) == "the disk is gone"
        time.sleep(0.5)
    else:
        assert "rank 1 failed: the disk is gone" in message(RuntimeError, store.gather, [1])


def check_an_absent_rank_is_named(rank):
    store = Remote(torch.zeros(10, 2), hash_owners(10, RANKS), timeout=0.7)
    assert torch.equal(store.gather([3]), torch.zeros(1, 2))
    if rank == 2:
        time.sleep(2.5)
    else:
        start = time.monotonic()
        found = message(TimeoutError, store.gather, [3])
        assert f"exchange 2 of rank {rank}: rank 2 did not come within 0.7 s" in found, found
        assert "calls finish()" in found
        assert time.monotonic() - start < 5
        assert "rank 2 did not come" in message(RuntimeError, store.finish)


CHECKS = {name: check for name, check in list(globals().items()) if name.startswith("check_")}


def main():
    rank = int(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{FOLDER}/rendezvous", rank=rank, world_size=RANKS, timeout=timedelta(seconds=20)
    )
    run_checks(CHECKS, rank, rank=rank, folder=FOLDER, barrier=dist.barrier)
    dist.barrier()


if __name__ == "__main__":
    main()
