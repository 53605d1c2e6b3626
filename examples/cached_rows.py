"""Features on disk, a tenth of them cached: how often each policy saves a read."""

import tempfile
from pathlib import Path

import numpy as np

import headrace as hr
from headrace.store import ArrayStore, Cached

data = hr.generate.community(nodes=20_000, edges=300_000, classes=8, features=64, seed=0)
sampler = hr.sample.NeighborSampler(data.graph, [10, 5], seed=0)
train = data.splits["train"]


def batches():
    """The nodes of every coming batch. One seed gives one stream, so they are known before they are needed."""
    for index, seeds in enumerate(train.split(128)):
        yield sampler.sample(seeds, epoch=0, batch=index).nodes


with tempfile.TemporaryDirectory() as folder:
    np.save(Path(folder) / "x.npy", data.x.numpy())
    on_disk = ArrayStore(np.load(Path(folder) / "x.npy", mmap_mode="r"))
    for policy in ("lru", "clock", "s3fifo", "sieve", "planned"):
        store = Cached(on_disk, 0.1, policy=policy)  # or bytes: "4GiB"
        if policy == "planned":
            store.plan(batches())
        for ids in batches():
            x = store.gather(ids)
        use = store.use()
        print(f"{policy:8} {use.hit_rate:6.1%} hits, {use.bytes_moved / 1e6:.1f} MB read from disk, {use.evictions} evictions")
