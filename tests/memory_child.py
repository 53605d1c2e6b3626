"""Trains link prediction under a hard limit of memory: run by test_link_memory.py, in a process of its own.

The limit is RLIMIT_DATA, which counts private writable memory: heap, slots, stacks of threads; not libraries, nor files that are
mapped. It is set to what the process has before the training, with its libraries loaded and used, plus the budget.
"""

import gc
import json
import resource
import sys
import threading
from pathlib import Path

import torch

import headrace as hr
from headrace.train import LinkOptions, Run, link


def data_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))


def dataset(path: Path, nodes: int, edges: int, relations: int = 4) -> hr.Dataset:
    """Random edges in a mapped file, as those of a graph that is on disk are."""
    triples = torch.from_file(str(path), shared=True, size=3 * edges, dtype=torch.int32).view(-1, 3)
    generator = torch.Generator().manual_seed(0)
    for column, count in enumerate((nodes, relations, nodes)):
        triples[:, column].random_(0, count, generator=generator)
    graph = hr.Graph.from_edges([], [], nodes)
    parts = {"train": triples[: -edges // 100], "valid": triples[:0], "test": triples[-edges // 100 :]}
    return hr.Dataset(graph, extra=parts, info={"num_relations": relations})


def main() -> None:
    folder, given, nodes, edges = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    threading.stack_size(256 << 10)  # by default 8 MiB each, of which a few pages are used
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    options = LinkOptions(**given)
    small = {"dim": 4, "epochs": 1, "partitions": 4, "buffer": 2, "order": "beta", "memory": ""}
    link(dataset(folder / "first.bin", 100, 400), LinkOptions(**{**given, **small}), out=folder / "first")
    data = dataset(folder / "edges.bin", nodes, edges)
    gc.collect()
    before = data_bytes()
    limit = before + options.memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        torch.empty(nodes, options.dim + 1)
        whole = "fits"
    except RuntimeError:
        whole = "does not fit"
    result = link(data, options, out=folder / "run")
    print(
        json.dumps(
            {
                "whole": whole,
                "bytes": result.bytes,
                "epochs": Run(folder / "run").metrics("epoch"),
                "result": result.summary(),
                "before": before,
                "after": data_bytes(),
            }
        )
    )


if __name__ == "__main__":
    main()
