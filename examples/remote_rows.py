"""Rows on two machines (here: two processes): each holds half, the next batch is fetched while one is used."""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from headrace.store import Remote, hash_owners


def worker(rank: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)  # torchrun: no arguments needed
    owners = hash_owners(1000, ranks=2)
    mine = owners.ids_of(rank).float().unsqueeze(1).expand(-1, 16).contiguous()  # row v is v, sixteen times
    store = Remote.from_local(mine, owners, replicate=torch.arange(50))
    batches = [torch.randint(1000, (64,)) for _ in range(3 + rank)]  # the second has a batch more
    for ids, rows in store.stream(batches):
        assert torch.equal(rows[:, 0], ids.float())
    use = store.use()
    print(f"rank {rank}: {use.local} own rows, {use.replica} copies, {use.remote} fetched; {use.bytes_received} bytes received")
    store.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, args=(f"{folder}/meeting",), nprocs=2)
