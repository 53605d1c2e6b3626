"""Trains node classification under a hard limit of memory: run by test_node_disk.py, in a process of its own.

The limit is RLIMIT_DATA, as in memory_child.py: what the process has with its libraries loaded and used and the dataset opened,
plus `MEMORY`, and `STEP` for what training takes beside features: weights, activations, stacks of threads.
"""

import gc
import json
import resource
import sys
import threading
from pathlib import Path

import torch

import headrace as hr
from headrace.graph.saved.io import DatasetWriter
from headrace.train import NodeOptions, Run, node

MEMORY, STEP = 8 << 20, 6 << 20
NODES, WIDTH, CLASSES = 30_000, 512, 4


def data_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))


def write(folder: Path, nodes: int) -> None:
    """A graph whose features are written a piece at a time, and never held."""
    small = hr.generate.community(nodes=nodes, edges=6 * nodes, classes=CLASSES, features=1, splits=(0.02, 0.02, 0.02), threads=1)
    draw = torch.Generator().manual_seed(0)
    with DatasetWriter(folder) as writer:
        for name in ("indptr", "indices"):
            writer.write(name, getattr(small.graph, name))
        writer.write("y", small.y)
        for name, ids in small.splits.items():
            writer.write(f"split_{name}", ids)
        x = writer.array("x", torch.float32, (nodes, WIDTH))
        for begin in range(0, nodes, 1000):
            piece = torch.randn(min(1000, nodes - begin), WIDTH, generator=draw)
            piece[:, :CLASSES] += 3 * torch.nn.functional.one_hot(small.y[begin : begin + 1000], CLASSES)
            x.append(piece)
        writer.info = dict(small.info)


def trained(data: hr.Dataset, out: Path, storage: str) -> dict:
    more = {"hidden": 16, "fanout": (5, 5), "epochs": 2, "lr": 0.01, "threads": 1, "features": "as_is"}
    options = NodeOptions(**more, batch_size=20, storage=storage, memory=str(MEMORY))
    result = node(data, options=options, out=out)
    return {"accuracy": result.test_accuracy, "disk": [line["disk"] for line in Run(out).metrics("epoch")]}


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    threading.stack_size(256 << 10)
    write(folder / "first", 1000)
    for storage in ("disk", "resident"):
        trained(hr.open(folder / "first"), folder / f"first {storage}", storage)
    write(folder / "data", NODES)
    data = hr.open(folder / "data")
    gc.collect()
    limit = data_bytes() + MEMORY + STEP
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        torch.empty(NODES, WIDTH)
        whole = "fits"
    except RuntimeError:
        whole = "does not fit"
    found = {storage: trained(data, folder / storage, storage) for storage in ("disk", "resident")}
    print(json.dumps({"whole": whole, "features": 4 * NODES * WIDTH, "memory": MEMORY, "allowed": MEMORY + STEP, **found}))


if __name__ == "__main__":
    main()
