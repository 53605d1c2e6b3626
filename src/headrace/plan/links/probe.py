"""What a machine does of link prediction in a second: edges that it trains, and bytes that its disk reads and writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from headrace.graph import Dataset, Graph
from headrace.store.disk.access import DiskAccess
from headrace.store.disk.slots import aligned_memory
from headrace.train import LinkOptions, Watcher, link
from headrace.train.links.data import LinkData

_ROW_BYTES = 64 << 20  # of rows: more than caches hold
_BATCHES = (4, 20, 100)  # of a trial, until it takes long enough
_SECONDS = 0.2
_FILE = 128 << 20
_TIMES = 5  # of which the fastest counts: a limit is what the disk can do, and the first touches fresh memory


def edge_rate(edges: LinkData, options: LinkOptions) -> float:
    """Edges a second that are trained with these options where no disk is waited for: tried on a few batches.

    They are of the first edges, onto as many rows as make 64 MiB.
    """
    nodes = max(min(edges.num_nodes, _ROW_BYTES // (4 * options.dim)), 2)
    parts = {"partitions": 0, "buffer": 0, "buffer_on": "host", "memory": "", "storage": _without_disk(options)}
    decoder = ("complex" if edges.labeled else "dot") if options.decoder == "auto" else options.decoder
    tried = replace(options, **parts, decoder=decoder, epochs=2, validate_every=0, warmup=0.0, schedule="constant")  # type: ignore[arg-type]
    rate = 0.0
    for batches in _BATCHES:
        triples = edges.train[: batches * options.batch_size].clone()
        triples[:, 0::2] %= nodes
        few = Dataset(Graph.from_edges([], [], nodes), extra={"train": triples}, info={"num_relations": edges.num_relations})
        seen = _LastEpoch()
        link(few, tried, watcher=seen)
        rate = len(triples) / max(seen.seconds, 1e-9)
        if seen.seconds >= _SECONDS or len(triples) == len(edges.train):
            break
    return rate


def _without_disk(options: LinkOptions) -> str:
    if options.storage != "disk":
        return options.storage
    return "device" if options.buffer_on == "device" else "host"


class _LastEpoch(Watcher):
    """Seconds of the last epoch; the first one warms up."""

    seconds = 0.0

    def epoch(self, facts: dict[str, Any]) -> None:
        self.seconds = facts["train_seconds"]


def disk_rate(folder: Path, *, size: int = _FILE, times: int = _TIMES) -> float:
    """Bytes a second of reading one file and writing another at a time, past the page cache where that can be; of both in all."""
    disk, names = DiskAccess(), [folder / "read.bin", folder / "written.bin"]
    memory = [aligned_memory(size) for _ in names]

    def move(which: int) -> None:
        with disk.open(names[which], write=bool(which)) as file:
            (file.write if which else file.read)(0, memoryview(memory[which]))

    try:
        for name, written in zip(names, memory, strict=True):  # so that the timed write is, like training's, to blocks that exist
            with disk.open(name, write=True) as file:
                file.write(0, memoryview(written))
        seconds = min(_together(move) for _ in range(times))
    finally:
        for name in names:
            name.unlink(missing_ok=True)
    return 2 * size / seconds


def _together(move: Callable[[int], None]) -> float:
    """Seconds of both moves at a time."""
    threads = [threading.Thread(target=move, args=(which,)) for which in range(2)]
    begin = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return perf_counter() - begin
