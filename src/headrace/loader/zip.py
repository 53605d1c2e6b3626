"""`ZipLoader`: batches of several loaders side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from headrace.loader.base import Loader
from headrace.loader.pyg.keywords import SHARED, refuse
from headrace.loader.seeds import Order, Seeds
from headrace.loader.shard import Shard
from headrace.pipeline import Trace
from headrace.store import BufferPool


class ZipLoader(Loader):
    """Yields tuples: for the same positions of inputs, the batch of every one of `loaders`.

    Positions are those below the least number of inputs that a loader has. How they are dealt into batches is decided here; the
    loaders' own `batch_size` and `shuffle` do not matter. A batch is a function of the loaders' seeds, the epoch and its index.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=1000, edges=20000, classes=4, features=16)
    >>> loaders = [hr.loader.NeighborLoader(data, [5], nodes) for nodes in (range(50), range(50, 95))]
    >>> [(one.batch_size, other.batch_size) for one, other in hr.loader.ZipLoader(loaders, batch_size=20)]
    [(20, 20), (20, 20), (5, 5)]
    """

    def __init__(
        self,
        loaders: Sequence[Loader],
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        threads: int | None = None,
        staleness: int | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
        shard: Shard | tuple[int, int] | Literal["torchrun"] | None = None,
        trace: Trace | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        worker_init_fn: Callable[[int], Any] | None = None,
        **others: Any,
    ) -> None:
        refuse(others, loader=type(self).__name__, only=SHARED)
        if not loaders or not all(isinstance(loader, Loader) for loader in loaders):
            raise TypeError("ZipLoader takes a list of headrace loaders, at least one")
        if any(loader.device is not None for loader in loaders):
            raise ValueError("ZipLoader makes batches on the CPU: leave device out of its loaders, and move what it yields")
        super().__init__(
            transform=None,
            transform_sampler_output=None,
            threads=threads,
            num_workers=num_workers,
            staleness=staleness,
            prefetch_factor=prefetch_factor,
            ahead="sample",
            pin_memory=pin_memory,
            trace=trace,
            worker_init_fn=worker_init_fn,
        )
        self.loaders = list(loaders)
        self.finish_ahead = all(loader.finish_ahead for loader in loaders)
        self.keeps_memory = any(loader.keeps_memory for loader in loaders)
        self.pool = BufferPool(limit=0)  # the loaders have their own
        positions = torch.arange(min(len(loader.dataset) for loader in loaders))
        order = Order.of(sampler, batch_sampler, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)
        self.seeds = Seeds(positions, positions, batch_size, shuffle, drop_last, seed, Shard.of(shard), order)

    def _start(self, job: tuple[int, Tensor], epoch: int, threads: int) -> Callable[[], Any]:
        begun = [loader._start(job, epoch, threads) for loader in self.loaders]
        return lambda: tuple(finish() for finish in begun)

    def _finish(self, item: Any) -> Any:
        return tuple(self._handed_over(loader._finish(part)) for loader, part in zip(self.loaders, item, strict=True))

    def __repr__(self) -> str:
        return f"ZipLoader({self.loaders}, batches={len(self)})"
