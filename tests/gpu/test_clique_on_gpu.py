"""A `Tiered` store of two processes that share one GPU: shards read over CUDA IPC, one host copy, and nothing left behind."""

import os
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from headrace.store import Tiered

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]
RANKS, NODES = 2, 3000
ORDER = torch.randperm(NODES, generator=torch.Generator().manual_seed(1))
HOT, HOST = 0.2, 0.5  # 600 rows on each rank, 1500 in host memory
HITS = {"clique": [600, 600, 1500, 300], "replicate": [600, 1500, 900]}
TIERS = {"clique": ["device", "peers", "host", "disk"], "replicate": ["device", "host", "disk"]}


def rows_of(dtype, width):
    return torch.from_numpy(np.random.default_rng(0).integers(0, 200, (NODES, width))).to(dtype)


def check_store(rank, folder, placement, dtype, width, shared):
    x, path = rows_of(dtype, width), Path(folder) / f"{dtype}.npy"
    if rank == 0:
        np.save(path, (x.view(torch.int16) if dtype == torch.bfloat16 else x).numpy())
    dist.barrier()
    store = Tiered(
        x, device_cache=HOT, host=HOST, disk=path, order=ORDER, group=dist.group.WORLD, placement=placement, shared=shared
    )
    assert torch.equal(store.gather(torch.arange(NODES)).cpu(), x)
    tiers = store.use().tiers
    assert [t.name for t in tiers] == TIERS[placement]
    assert [t.rows for t in tiers] == [t.hits for t in tiers] == HITS[placement]
    assert store._memory.host_rows.is_pinned()
    own = ORDER[rank:1200:2] if placement == "clique" else ORDER[:600]
    assert torch.equal(store.gather(own).cpu(), x[own])
    assert [t.hits for t in store.use().tiers] == [1200, *HITS[placement][1:]]  # all of them from the own shard
    ids = torch.randint(0, NODES, (5_000,), generator=torch.Generator().manual_seed(rank))
    with torch.cuda.stream(torch.cuda.Stream()):
        for given in (ids.cuda(), ids.int().cuda(), ids, ids[:1], ids[:0]):
            assert torch.equal(store.gather(given, check=False).cpu(), x[given.cpu().long()])
    shared_rows = store._memory._shared
    names = [None] * RANKS
    dist.all_gather_object(names, None if shared_rows is None else shared_rows.name)
    assert names[0] == names[1]
    assert (names[0] is None) == (shared is False)
    with pytest.raises(ValueError, match="held in common with others"):
        store.add_(ids, x[ids])
    store.close()
    with pytest.raises(ValueError, match="closed"):
        store.gather(ids)
    dist.barrier()
    assert names[0] is None or not Path(f"/dev/shm/headrace-rows-{names[0]}").exists()


def check_all_rows_in_memory(rank):
    x = rows_of(torch.float32, 100)
    store = Tiered(x, device_cache="40KB", group=dist.group.WORLD, placement="clique")  # in order of nodes
    assert torch.equal(store.gather(torch.arange(NODES - 1, -1, -1)).cpu(), x.flip(0))
    hot = 40_000 // store.stride
    assert [t.hits for t in store.use().tiers] == [hot, hot, NODES - 2 * hot, 0]
    store.close()


def check_nothing_in_common(rank):
    x = rows_of(torch.float32, 100)
    store = Tiered(x, device_cache=0.2, group=dist.group.WORLD, shared=False)
    store.add_(torch.tensor([rank]), torch.ones(1, 100))
    x[rank] += 1
    assert torch.equal(store.gather(torch.arange(NODES)).cpu(), x)
    store.close()


def run_rank(rank, folder):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS, timeout=timedelta(seconds=120)
    )
    torch.cuda.set_device(0)
    for dtype, width in ((torch.float32, 100), (torch.bfloat16, 47)):
        check_store(rank, folder, "clique", dtype, width, None)
        check_store(rank, folder, "replicate", dtype, width, None)
    check_store(rank, folder, "clique", torch.float32, 100, False)
    check_all_rows_in_memory(rank)
    check_nothing_in_common(rank)
    dist.destroy_process_group()
    (Path(folder) / f"process-{rank}").write_text(str(os.getpid()))


def test_two_processes_on_one_gpu_build_and_read_one_store(tmp_path, capfd):
    multiprocessing.spawn(run_rank, args=(str(tmp_path),), nprocs=RANKS)
    for rank in range(RANKS):
        process = (tmp_path / f"process-{rank}").read_text()
        assert not list(Path("/dev/shm").glob(f"headrace-rows-{process}-*"))
    said = capfd.readouterr().err
    assert "shared CUDA tensors" not in said, said  # torch tells if memory goes while another process has it open


def end_early(rank, folder):
    """The ranks come with different orders."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/early", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    x = rows_of(torch.float32, 8)
    if rank == 1:
        with pytest.raises(ValueError, match="ranks must agree on order"):
            Tiered(x, order=ORDER, device_cache=0.1, group=dist.group.WORLD, placement="clique")
    else:
        with pytest.raises(ValueError, match="ranks must agree on order"):
            Tiered(x, device_cache=0.1, group=dist.group.WORLD, placement="clique")
    dist.destroy_process_group()


def test_a_disagreement_is_an_error_on_both(tmp_path):
    multiprocessing.spawn(end_early, args=(str(tmp_path),), nprocs=RANKS)
