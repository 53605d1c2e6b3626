"""Features that do not fit the device: hot rows on it, warm rows in host memory, the rest on disk; one gather for all."""

import tempfile
from pathlib import Path

import numpy as np
import torch

import headrace as hr
from headrace.store import Tiered, access_counts, expected_hit_rate, hot_order

data = hr.generate.community(nodes=20_000, edges=400_000, classes=8, features=64, seed=0)
device = "cuda" if torch.cuda.is_available() else "cpu"
train = data.splits["train"]


def batches():
    """An epoch's batches, the same every time: one seed gives one stream."""
    return hr.loader.NeighborLoader(data.graph, [10, 5], train, batch_size=256, shuffle=True, seed=1)


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "x.npy"
    np.save(path, data.x.numpy())
    rows = np.load(path, mmap_mode="r")  # nothing is read yet

    orders = {  # what is hot: guessed from the graph, from the seeds and fanouts too, or known
        "degree": hot_order(data.graph),
        "probability": hot_order(data.graph, "probability", seeds=train, fanouts=[10, 5], batch_size=256),
        "planned": hot_order(data.graph, "planned", batches=(b.n_id for b in batches())),
    }
    coming = access_counts((b.n_id for b in batches()), data.num_nodes)
    for by, order in orders.items():
        print(f"{by:>12}: {expected_hit_rate(coming, order, 0.2):.1%} of rows from a fifth of them")

    store = Tiered(rows, device=device, device_cache=0.2, host=0.3, order=orders["degree"])
    for batch in batches():
        x = store.gather(batch.n_id)  # on the device, wherever the rows were
    assert torch.equal(x.cpu(), data.x[batch.n_id])
    print(store.describe())

    moved = store.refill(orders["planned"])  # what is hot may change while the store is in use
    print(f"{moved:,} rows changed place")
    for batch in batches():
        store.gather(batch.n_id)
    print(store.describe())
