"""What a benchmark runs on: the data, the batches, the threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from headrace.bench.link_setting import LinkBench
from headrace.graph import Dataset, Graph, generate, open_dataset
from headrace.store import BufferPool

FANOUTS = (15, 10, 5)
BATCH = 1024


@dataclass(frozen=True)
class Setting(LinkBench):
    """Options of `headrace bench`."""

    preset: str = field(default="products", metadata={"help": "generated dataset: products, reddit or papers100M"})
    scale: float = field(default=0.1, metadata={"help": "its size, 1 being that of the published one"})
    data: str | None = field(default=None, metadata={"help": "a dataset directory in place of a generated one"})
    threads: int = field(default=2, metadata={"help": "threads of ours, of every peer and of the limit"})
    batches: int = field(default=20, metadata={"help": "batches per timing"})
    repeats: int = field(default=5, metadata={"help": "timings of each, of which the median counts"})
    against: tuple[str, ...] = field(
        default=(), metadata={"help": "peers to run (pyg, dgl, torch, biggraph, pykeen); all that are installed by default"}
    )
    peers_python: str | None = field(
        default=None, metadata={"help": "with link: an interpreter whose environment has the peers (default: this one)"}
    )
    progress: Callable[[str], None] = field(default=lambda _: None)

    def wants(self, peer: str) -> bool:
        return not self.against or peer in self.against

    def dataset(self) -> Dataset:
        """The data, in memory on huge pages where the system has them: for ours, the peers and the limit alike."""
        if self.data is not None:
            self.progress(f"reading {self.data}")
            data = open_dataset(Path(self.data))
        else:
            self.progress(f"generating {self.preset} at scale {self.scale:g}")
            data = generate.preset(self.preset, scale=self.scale, threads=self.threads)
        graph = Graph(resident(data.graph.indptr), resident(data.graph.indices))
        x = None if data.x is None else resident(data.x)
        return Dataset(graph, x=x, y=data.y, splits=data.splits, info=data.info)

    def seed_batches(self, data: Dataset, count: int | None = None) -> list[Tensor]:
        """Batches of training nodes, the same in every run."""
        train = data.splits.get("train", torch.arange(data.num_nodes))
        order = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(1))]
        size = min(BATCH, max(len(order) // 4, 1))
        count = min(count or self.batches, max(len(order) // size, 1))
        return [order[i * size : (i + 1) * size].clone() for i in range(count)]


def resident(array: Tensor) -> Tensor:
    """A copy in memory of its own."""
    copy = BufferPool(limit=0).empty(array.shape, array.dtype)
    return copy.copy_(array)


@contextmanager
def threads_of(count: int) -> Iterator[None]:
    """So many threads for torch, and so many processors for what takes all it may run on, as our layers do."""
    torch.set_num_threads(count)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if allowed:
        os.sched_setaffinity(0, sorted(allowed)[:count])
    try:
        yield
    finally:
        if allowed:
            os.sched_setaffinity(0, allowed)
