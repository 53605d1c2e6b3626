"""`Remote` where rows come out on a GPU: over NCCL (one rank, which is what one GPU allows) and over gloo."""

import pytest
import torch
import torch.distributed as dist

from headrace.store import Remote, TableOwners, hash_owners

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]


@pytest.fixture(params=["nccl", "gloo"])
def process_group(request, tmp_path):
    dist.init_process_group(request.param, init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield request.param
    dist.destroy_process_group()


@pytest.mark.parametrize("place", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_gather_add_and_prefetch_on_a_gpu(process_group, place, dtype):
    rows = torch.randint(-20, 20, (200, 47)).to(dtype)  # whole numbers: sums are exact in every type
    owners = TableOwners(torch.zeros(200, dtype=torch.int64), 1) if place == "cpu" else hash_owners(200, 1)
    store = Remote(rows.to(place), owners, device="cuda", replicate=torch.arange(10))
    assert store._exchange.wire.type == ("cuda" if process_group == "nccl" else "cpu")
    for ids in (torch.randint(200, (500,)), torch.randint(200, (500,), dtype=torch.int32, device="cuda"), torch.arange(0)):
        found = store.gather(ids)
        assert found.is_cuda
        assert torch.equal(found.cpu(), rows[ids.long().cpu()])
    handles = [store.prefetch(torch.arange(n, device="cuda")) for n in (3, 200)]
    assert torch.equal(handles[1].wait().cpu(), rows)
    assert torch.equal(handles[0].wait().cpu(), rows[:3])
    ids = torch.tensor([5, 5, 199], device="cuda")
    store.add_(ids, torch.ones(3, 47, dtype=dtype, device="cuda"))
    store.finish()
    expected = rows.clone().index_add_(0, ids.cpu(), torch.ones(3, 47, dtype=dtype))
    assert torch.equal(store.gather(torch.arange(200)).cpu(), expected)
    store.close()
