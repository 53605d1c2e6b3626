"""What every benchmark runs on: the device, the data, the batches, the threads. A benchmark's own options are in its file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from headrace.graph import Dataset, Graph, generate, open_dataset
from headrace.store import BufferPool
from headrace.train.options import option

FANOUTS = (15, 10, 5)
BATCH = 1024


@dataclass(frozen=True)
class Setting:
    """Options that every benchmark takes."""

    device: Literal["cpu", "cuda"] = option("cpu", "what is measured")
    preset: str = option("products", "generated dataset: products, reddit or papers100M")
    scale: float = option(0.1, "its size, 1 being that of the published one")
    data: str | None = option(None, "a dataset directory in place of a generated one")
    threads: int = option(2, "threads of ours, of every peer and of the limit")
    batches: int = option(20, "batches per timing")
    repeats: int = option(5, "timings of each, of which the median counts")
    against: tuple[str, ...] = option((), "peers to run (pyg, dgl, torch, biggraph, pykeen); all that are installed by default")
    progress: Callable[[str], None] = field(default=lambda _: None)

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"device must be one of cpu, cuda, not {self.device!r}")

    def wants(self, peer: str) -> bool:
        return not self.against or peer in self.against

    @property
    def threads_named(self) -> str:
        return f"{self.threads} thread{'s' * (self.threads > 1)}"

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

    def seed_batches(self, data: Dataset, count: int | None = None, *, size: int = BATCH) -> list[Tensor]:
        """Batches of training nodes, the same in every run: of `size`, or less where those would be fewer than four."""
        train = data.splits.get("train", torch.arange(data.num_nodes))
        order = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(1))]
        size = min(size, max(len(order) // 4, 1))
        count = min(count or self.batches, max(len(order) // size, 1))
        return [order[i * size : (i + 1) * size].clone() for i in range(count)]


def features_of(data: Dataset) -> Tensor:
    """The features of the dataset, or an error that says that it has none."""
    if data.x is None:
        raise ValueError("this benchmark reads features, and this dataset has none")
    return data.x


def check_trainable(data: Dataset) -> None:
    """Refuse a dataset without features or labels."""
    if data.x is None or data.y is None:
        raise ValueError("this dataset has no features or no labels to train with")


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
