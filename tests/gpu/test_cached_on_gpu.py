import threading

import pytest
import torch

from headrace.store import ArrayStore, Cached

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]

POLICIES = ["sieve", "lru", "clock", "s3fifo", "planned"]


def skewed(count, rows, seed):
    draw = torch.Generator().manual_seed(seed)
    return (torch.rand(count, generator=draw) ** 3 * rows).long()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex128], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (100,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 1.0])
def test_rows_on_the_gpu_equal_indexing(policy, dtype, shape, share):
    table = torch.randint(0, 100, (300, *shape)).to(dtype)
    store = Cached(ArrayStore(table), share, policy=policy, device="cuda")
    batches = [skewed(size, 300, size) for size in (50, 0, 200, 1, 200, 50)] + [torch.arange(300)] * 2
    if policy == "planned":
        store.plan([batch.cuda() for batch in batches])
    for batch in batches:
        found = store.gather(batch.cuda())
        assert found.device == store.device
        assert torch.equal(found.cpu(), table[batch])


@pytest.mark.parametrize("policy", POLICIES)
def test_counts_are_those_of_a_cache_in_memory(policy):
    table = torch.randn(500, 16)
    batches = [skewed(80, 500, seed) for seed in range(40)]
    uses = []
    for device in ("cpu", "cuda"):
        store = Cached(ArrayStore(table), 0.1, policy=policy, device=device)
        if policy == "planned":
            store.plan(batches)
        for batch in batches:
            store.gather(batch.to(device))
        use = store.use()
        uses.append((use.hits, use.misses, use.bypassed, use.evictions, use.bytes_moved))
    assert uses[0] == uses[1]


def test_out_must_be_on_the_gpu_and_ids_may_be_anywhere():
    table = torch.randn(100, 8)
    store = Cached(ArrayStore(table), 0.5, device="cuda")
    ids = torch.tensor([4, 4, 99])
    out = torch.empty(3, 8, device="cuda")
    for given in (ids, ids.cuda(), ids.int().cuda(), [4, 4, 99]):
        assert store.gather(given, out=out) is out
        assert torch.equal(out.cpu(), table[ids])
    with pytest.raises(ValueError, match="on cuda"):
        store.gather(ids, out=torch.empty(3, 8))


def test_writes_reach_the_copies_on_the_gpu():
    table = torch.zeros(60, 8)
    store = Cached(ArrayStore(table), 0.5, device="cuda")
    store.gather(torch.arange(20, device="cuda"))
    ids = torch.tensor([1, 1, 50], device="cuda")
    store.add_(ids, torch.ones(3, 8, device="cuda"))
    assert torch.equal(store.gather(torch.arange(60, device="cuda")).cpu(), table)
    assert float(table[1, 0]) == 2


@pytest.mark.parametrize("rows", [40, 2000])
def test_threads_with_streams_of_their_own_get_the_right_rows(rows):
    """A slot is written again as soon as the copy out of it is enqueued: the streams have to keep that order."""
    table = torch.randn(20_000, 64)
    on_gpu = table.cuda()
    store = Cached(ArrayStore(table), rows * 256, device="cuda")
    wrong = []

    def work(seed):
        with torch.cuda.stream(torch.cuda.Stream()):
            for step in range(60):
                ids = skewed(3000, 20_000, 100 * seed + step).cuda()
                if not torch.equal(store.gather(ids), on_gpu[ids]):
                    wrong.append((seed, step))

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_gpu_cache_over_a_cache_in_memory_and_under_one():
    table = torch.randn(300, 8)
    store = Cached(Cached(ArrayStore(table), 0.5), 0.1, device="cuda")
    above = Cached(store, 0.05, device="cuda")
    back = Cached(store, 0.2, device="cpu")
    for seed in range(10):
        ids = skewed(100, 300, seed)
        assert torch.equal(store.gather(ids.cuda()).cpu(), table[ids])
        assert torch.equal(above.gather(ids.cuda()).cpu(), table[ids])
        assert torch.equal(back.gather(ids), table[ids])
