"""Node classification by several processes, one list of batches dealt to them; alone it is one process.

Several: torchrun --nproc-per-node 2 torchrun_nodes.py
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import headrace as hr

gpu = torch.cuda.is_available()
backend = "nccl" if gpu else "gloo"
meeting = tempfile.TemporaryDirectory()
if "RANK" in os.environ:  # started by torchrun
    dist.init_process_group(backend)
else:
    dist.init_process_group(backend, init_method=f"file://{Path(meeting.name) / 'meeting'}", rank=0, world_size=1)
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
if gpu:
    torch.cuda.set_device(device)

torch.manual_seed(0)
data = hr.generate.community(nodes=5_000, edges=100_000, classes=8, features=32, seed=0)  # or hr.open: mapped, so shared
model = DistributedDataParallel(hr.nn.GNN(32, 64, 8, layers=2).to(device))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
threads = None if gpu else max((os.cpu_count() or 1) // ranks, 1)
loader = hr.loader.NeighborLoader(
    data, [10, 5], "train", batch_size=128, shuffle=True, seed=0, device=device, shard="torchrun", threads=threads
)
for epoch in range(5):
    model.train()
    loss = torch.zeros(())
    for batch in loader:  # every rank makes len(loader) steps
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch), batch.y)
        loss.backward()  # averages gradients over the ranks
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch}: {len(loader)} steps on each of {ranks} ranks, loss {loss.item():.3f}")

if rank == 0:
    test = data.splits["test"]
    rows = hr.train.infer(model.module.cpu(), data, test)  # exact: layer by layer, every neighbor
    right = (rows.argmax(dim=1) == data.y[test]).float().mean()
    print(f"test accuracy {right:.3f}, the best possible {data.info['best_accuracy']:.3f}")
dist.destroy_process_group()
meeting.cleanup()
