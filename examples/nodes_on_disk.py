"""Train on features that stay on disk: the very run of features in memory, and one on partitions that are in memory.

`storage="disk"` samples from the whole graph, knows the nodes of the coming batches, and reads their rows ahead into a cache:
losses and weights are those of a run in memory. `storage="resident"` samples only among partitions in memory, which reads far less
and costs accuracy. Both keep within `memory`, here a quarter of the features.
"""

import tempfile
from pathlib import Path

import headrace as hr
from headrace.train import NodeOptions, Run, node

with tempfile.TemporaryDirectory() as folder:
    place = Path(folder)
    data = hr.generate.community(nodes=12_000, edges=120_000, classes=8, features=128, signal=0.15, splits=(0.1, 0.05, 0.1), seed=1)
    data.save(place / "data")
    data = hr.open(place / "data")  # mapped: nothing is read until it is used
    assert data.x is not None
    memory = str(data.x.nbytes // 4)

    common = {"hidden": 32, "fanout": (4, 3), "batch_size": 32, "epochs": 2, "lr": 0.01, "threads": 2}
    storages = {"memory": {}, "disk": {"memory": memory}, "resident": {"memory": memory, "partitions": 32}}
    for storage, more in storages.items():
        result = node(data, options=NodeOptions(storage=storage, **more, **common), out=place / storage)
        last = Run(place / storage).metrics("epoch")[-1]
        line = f"{storage:8}  loss {last['loss']:.6f}  test accuracy {result.test_accuracy:.3f}"
        if disk := last.get("disk"):
            share = disk["bytes_read"] / data.x.nbytes
            line += f"  read {share:.2f} of the features in an epoch, {disk['hit_rate']:.0%} found in memory"
        print(line)
