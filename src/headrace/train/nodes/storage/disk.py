"""`DiskRecipe`: node classification with features on disk, and the very batches of a run in memory.

The sampler knows no features, so it runs ahead: the nodes of the next batches are known before any of their rows is read. A cache
that follows Belady's rule over them (Ginex, VLDB'22) reads what it misses by threads, while the batch before is trained on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace.graph import Dataset
from headrace.loader import Batch, NeighborLoader
from headrace.pipeline import Pipeline, Stage, StageTimes, Trace
from headrace.store import BufferPool, Cached, FileRows, Store, returned_memory
from headrace.train.inference.layerwise.infer_rows import RowsInference
from headrace.train.nodes.options import NodeOptions
from headrace.train.nodes.recipe import NodeRecipe
from headrace.train.nodes.storage.memory import BatchSize, cache_budget

_SLACK = 1.25  # batches differ in size: how much larger than the first one they may be


class _Coming:
    """Batches in order, taken by the reads, and their ids, taken by the plan, which goes ahead. None is kept after both had it."""

    def __init__(self, source: Iterator[Batch]) -> None:
        self._source = source
        self._read: deque[Batch] = deque()  # that the plan had
        self._plan: deque[Tensor] = deque()  # ids of those that were read first

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._read:
            return self._read.popleft()
        batch = next(self._source)
        self._plan.append(batch.n_id)
        return batch

    def planned(self) -> Iterator[Tensor]:
        while True:
            if self._plan:
                yield self._plan.popleft()
            elif (batch := next(self._source, None)) is not None:
                self._read.append(batch)
                yield batch.n_id
                del batch
            else:
                return


class DiskRecipe(NodeRecipe):
    """Batches of `data` whose rows are read from `features`; `data.x` is only asked for its shape.

    shared: ranks, accumulate and exchange, as `NodeRecipe` takes them.
    folder: near which hidden rows of a validation are written, if they are too large for memory.
    """

    def __init__(
        self,
        data: Dataset,
        model: nn.Module,
        options: NodeOptions,
        trace: Trace | None = None,
        *,
        features: FileRows,
        folder: Path | None = None,
        **shared: Any,
    ) -> None:
        self.features, self.folder, self.trace = features, folder, trace
        self.cache: Cached | None = None
        self.disk: dict[str, Any] = {}  # of the last epoch, for the log
        self._flow: Pipeline | None = None
        super().__init__(data, model, options, trace, **shared)
        self.batch_size = self._measured()
        self._check_memory()

    def batches(self, epoch: int, first: int) -> Iterator[Batch | None]:
        assert self.loader is not None
        self.loader.resume(epoch, first)
        return self._each(self.loader)

    def stages(self) -> list[StageTimes]:
        ahead = [] if self.loader is None else self.loader.stage_times[:-1]
        return [*ahead, *(self._flow.times if self._flow is not None else [])]

    def facts(self) -> dict[str, Any]:
        facts = super().facts()
        facts["memory"]["data"] -= self.data.num_nodes * self.features.row_bytes  # which are not in memory
        self.disk = self._disk_facts()
        facts["disk"] = self.disk  # a validation that follows adds what it reads
        return facts

    def _check_memory(self) -> None:
        """Refuse a budget that is too small before anything is trained."""
        self._budget()

    def _budget(self) -> Any:
        options = self.options
        return cache_budget(options.memory_bytes, self.batch_size, nodes=self.data.num_nodes, staleness=options.staleness)

    def _disk_facts(self) -> dict[str, Any]:
        assert self.cache is not None
        assert self._flow is not None
        use = self.cache.use()
        self.cache.reset()
        return {
            "bytes_read": use.bytes_moved,
            "hit_rate": use.hit_rate,
            "read_seconds": use.seconds.fetch,
            "stall_seconds": self._flow.times[-1].starved,
            "resident": use.capacity_rows / max(self.data.num_nodes, 1),
            "cache": asdict(use),
            "lookahead": self.cache.lookahead,
        }

    def _each(self, loader: NeighborLoader) -> Iterator[Any]:
        """The batches of a loader with their rows, read ahead."""
        cache = self.cache = self.cache or self._new_cache()
        sampled = iter(loader)
        coming = _Coming(sampled)
        cache.plan(coming.planned())

        def read(batch: Batch) -> Batch:
            batch.rows = cache
            batch.x, batch.y  # noqa: B018 - gathers them
            return batch

        self._flow = Pipeline(coming, [Stage("read", read)], staleness=self.options.staleness, trace=self.trace)
        running = iter(self._flow)
        try:
            yield from running
        finally:
            for part in (running, sampled):  # the reader is joined before what it draws from is closed
                part.close()  # type: ignore[attr-defined]

    def _new_cache(self) -> Cached:
        budget, batch = self._budget(), self.batch_size
        pool = BufferPool(limit=batch.bytes)  # kept idle: batches differ in size, and a buffer serves no larger one
        return Cached(
            self.features,
            budget.cache,
            policy="planned",
            lookahead=budget.lookahead,
            threads=self.options.threads,
            pool=pool,
        )

    def _release(self) -> None:
        """Give back what training holds: a validation has the memory to itself, and reads many times what a cache would save it."""
        self.cache = self._flow = None

    def _predict(self, nodes: Tensor, progress: Callable[[int, int], None]) -> Tensor:
        if not self.exact:
            return super()._predict(nodes, progress)
        self._release()
        memory = self.options.memory_bytes
        infer = RowsInference(
            self.data.graph, self.features, memory=memory, folder=self.folder, ranks=self.ranks, exchange=self.exchange
        )
        with returned_memory():
            rows = infer(self.model, nodes, progress)
        self.disk["validation_bytes"] = infer.bytes_read
        return rows

    def _measured(self) -> BatchSize:
        """The memory of a batch, measured on the first one of an epoch."""
        assert self.loader is not None
        first = self.loader(torch.arange(min(self.options.batch_size, len(self.train_nodes))))
        rows = min(int(_SLACK * len(first.n_id)), self.data.num_nodes)
        return BatchSize(rows, self.features.row_bytes, int(_SLACK * first.sample.nbytes))

    def _placed_rows(self) -> Store | None:
        return None

    def _loader(self, nodes: Tensor, *, shuffle: bool, trace: Trace | None = None) -> NeighborLoader:
        return self._loader_over(self._without_rows, nodes, shuffle=shuffle, trace=trace, on_cpu=True)

    @property
    def _without_rows(self) -> Dataset:
        return Dataset(self.data.graph, y=self.data.y)
