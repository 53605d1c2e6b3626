"""`NeighborLoader`: mini-batches of sampled neighbourhoods, with PyG's keywords."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from headrace._arrays import as_ids, thread_count
from headrace.graph import Dataset, Graph
from headrace.loader.attributes import Attributes, Temporal
from headrace.loader.batch import Batch
from headrace.loader.keywords import refuse
from headrace.loader.seeds import Seeds, input_nodes_of
from headrace.pipeline import Pipeline, Stage, StageTimes, Trace
from headrace.sample import NeighborSampler
from headrace.store import ArrayStore, BufferPool, PoolUse

if TYPE_CHECKING:
    from torch_geometric.data import Data


class NeighborLoader:
    """Samples neighbourhoods of batches of input nodes, ahead of the consumer, in threads.

    Given a headrace `Dataset` (or `Graph`) it yields `Batch`; given a PyG `Data`, a PyG `Data` equal to what PyG's own loader
    gives. Keywords are PyG's. `NeighborSampler` explains how neighbours are drawn; a PyG `Data` names the attributes to draw by
    (`weight_attr` of edges, `time_attr` of edges or nodes), where a headrace graph has its own (`weighted=True` draws by
    `graph.weight`, `temporal=` by `graph.time`). `input_time` is one time per input node; without it nodes have their own.
    `inclusive=True` compares times as PyG does, <=. Beside them:

    seed: with the epoch and the index of the batch it decides the batch. Threads and `staleness` change nothing.
    threads: that sample (default: all processors; PyG's `num_workers` is taken for it).
    staleness: batches that may be under way ahead of the consumer; 0 samples when asked. (PyG's `prefetch_factor`.)
    ahead: what is done ahead: "sample", or "rows" to gather features too. Rows are most of a batch's memory, and on a CPU they are
        gathered by the cores that train, so a `Batch` by default gathers them when asked, into the buffer that the batch
        before gave back.
    edge_ids: give a `Batch` its `e_id`. (A PyG `Data` always has it.)

    Each iteration is an epoch: `epoch` counts them, and may be set.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=1000, edges=20000, classes=4, features=16)
    >>> loader = hr.loader.NeighborLoader(data, [10, 5], input_nodes="train", batch_size=32, shuffle=True, seed=1)
    >>> len(loader), next(iter(loader)).batch_size
    (4, 32)
    """

    def __init__(
        self,
        data: Dataset | Graph | Data,
        num_neighbors: Sequence[int],
        input_nodes: Any = None,
        *,
        input_time: Any = None,
        replace: bool = False,
        weighted: bool = False,
        weight_attr: str | None = None,
        labor: bool = False,
        layer_dependency: bool = False,
        batch_dependency: int = 1,
        disjoint: bool = False,
        temporal: Temporal | None = None,
        time_attr: str | None = None,
        temporal_strategy: Any = "uniform",
        inclusive: bool = False,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        threads: int | None = None,
        staleness: int | None = None,
        ahead: Literal["sample", "rows"] = "sample",
        edge_ids: bool = False,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
        trace: Trace | None = None,
        **others: Any,
    ) -> None:
        refuse(others)
        if isinstance(num_neighbors, dict):
            raise ValueError("num_neighbors is a dictionary of edge types, but this graph has only one kind of edge")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        if ahead not in ("sample", "rows"):
            raise ValueError(f"ahead must be 'sample' or 'rows', not {ahead!r}")
        self.threads = thread_count(threads if threads is not None else num_workers or None)
        self.staleness = staleness if staleness is not None else prefetch_factor or 2
        if self.staleness < 0:
            raise ValueError(f"staleness must be 0 or more, not {self.staleness}")
        self.data, self.transform, self.ahead, self.edge_ids = data, transform, ahead, edge_ids
        self.transform_sampler_output = transform_sampler_output
        self.pin_memory = pin_memory and torch.cuda.is_available()
        self.trace = trace
        self.epoch = 0
        self._first = 0  # batch that the next epoch begins with
        self._dataset = Dataset(data) if isinstance(data, Graph) else data if isinstance(data, Dataset) else None
        attributes = Attributes(weighted, weight_attr, temporal, time_attr, temporal_strategy, input_time)
        if self._dataset is None:
            _check_pyg(data)
            self._graph = attributes.graph_of_pyg(data, threads=self.threads)
        else:
            if transform_sampler_output is not None:
                raise ValueError("transform_sampler_output works on PyG's SamplerOutput: pass a PyG Data, or use transform")
            self._graph = attributes.graph_of(self._dataset)
        self.pool = BufferPool(limit=max(_bytes(data) // 5, 64 << 20))
        nodes, input_id = input_nodes_of(input_nodes, self._graph.num_nodes, self._dataset.splits if self._dataset else None)
        self.seeds = Seeds(nodes, input_id, batch_size, shuffle, drop_last, seed)
        self.sampler = NeighborSampler(
            self._graph,
            num_neighbors,
            replace=replace,
            weighted=attributes.by_weight,
            labor=labor,
            layer_dependency=layer_dependency,
            batch_dependency=batch_dependency,
            disjoint=disjoint,
            temporal=attributes.strategy,
            inclusive=inclusive,
            seed=seed,
            threads=self.threads,
            pool=self.pool,
        )
        self._seed_times = self.sampler.seed_times(attributes.seed_times(data, nodes), len(nodes))
        self._rows, self._labels = (self._store(name) for name in ("x", "y"))
        self._times: list[StageTimes] = []
        self.peak = 0  # most batches that were under way at a time

    def __len__(self) -> int:
        return len(self.seeds)

    def __iter__(self) -> Iterator[Any]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        first, self._first = self._first, 0
        # Batches are spread over the threads, one thread each: nothing is shared, nothing waits. Alone, a batch has them all.
        inner = 1 if self.staleness > 0 else self.threads
        stages = [Stage("sample", lambda job: self._sample(job, epoch, inner), threads=min(self.threads, max(self.staleness, 1)))]
        if self.ahead == "rows" or self._dataset is None:
            stages.append(Stage("rows", self._finish))
        pipeline = Pipeline(self.seeds.batches(epoch, first), stages, staleness=self.staleness, trace=self.trace)
        self._times = pipeline.times
        try:
            for batch in pipeline:
                if self.ahead == "sample" and self._dataset is not None:
                    batch = self._finish(batch)
                yield batch
                del batch
        finally:
            self.peak = max(self.peak, pipeline.peak)

    def resume(self, epoch: int, batch: int = 0) -> None:
        """Let the next iteration be epoch `epoch`, from batch `batch` on: the batches are those that an unbroken run has there."""
        if epoch < 0 or not 0 <= batch <= len(self):
            raise ValueError(f"epoch must not be negative and batch be from 0 to {len(self)}, not {epoch} and {batch}")
        self.epoch, self._first = epoch, batch

    def __call__(self, index: Any, *, epoch: int = 0, batch: int = 0) -> Any:
        """One batch: the input nodes at positions `index`, drawn as batch `batch` of `epoch`."""
        positions = as_ids(index, "index", dtype=torch.int64)
        if len(positions) and not -len(self.seeds.nodes) <= int(positions.min()) <= int(positions.max()) < len(self.seeds.nodes):
            raise IndexError(f"index must name positions among the {len(self.seeds.nodes)} input nodes")
        return self._finish(self._sample((batch, positions), epoch, self.threads))

    @property
    def stage_times(self) -> list[StageTimes]:
        """Where the last epoch's time went, stage by stage; the consumer comes last."""
        return self._times

    def memory(self) -> PoolUse:
        """What the loader holds in buffers for batches, now and at its peak."""
        return self.pool.use()

    def _store(self, name: str) -> ArrayStore | None:
        rows = getattr(self._dataset, name) if self._dataset is not None else None
        return None if rows is None else ArrayStore(rows, pool=self.pool, threads=self.threads)

    def _sample(self, job: tuple[int, Tensor], epoch: int, threads: int) -> Any:
        index, positions = job
        seeds = self.seeds.nodes[positions]
        ids = self.edge_ids or self._dataset is None
        time = None if self._seed_times is None else self._seed_times[positions]
        sample = self.sampler.sample(seeds, epoch, index, time=time, edge_ids=ids, threads=threads)
        return Batch(sample, self.seeds.input_id[positions], self._rows, self._labels, index, self._graph, time)

    def _finish(self, batch: Batch) -> Any:
        result: Any = batch
        if self._dataset is None:
            from headrace.loader.pyg import filtered
            from headrace.sample.pyg import sampler_output

            output = sampler_output(batch.sample, self.pool, metadata=(batch.input_id, batch.seed_time))
            if self.transform_sampler_output is not None:
                output = self.transform_sampler_output(output)
            result = filtered(self.data, output, pool=self.pool, threads=self.threads)
        elif self.ahead == "rows":
            batch.x, batch.y  # noqa: B018 - gathers them
        if self.transform is not None:
            result = self.transform(result)
        if self.pin_memory and hasattr(result, "pin_memory"):
            result = result.pin_memory()
        return result

    def __repr__(self) -> str:
        return f"NeighborLoader({self._graph}, fanouts={self.sampler.fanouts}, batches={len(self)})"


def _bytes(data: Any) -> int:
    """Bytes of the graph and its rows, by which the idle buffers of a loader are bounded."""
    if isinstance(data, (Dataset, Graph)):
        return data.nbytes
    return sum(value.nbytes for _, value in data if isinstance(value, Tensor))


def _check_pyg(data: Any) -> None:
    try:
        from torch_geometric.data import Data
    except ImportError:
        raise TypeError(f"data must be a headrace Dataset or Graph, or (with torch-geometric) a Data, not {type(data)}") from None
    if not isinstance(data, Data):
        raise TypeError(f"data must be a headrace Dataset or Graph, or a PyG Data, not {type(data).__name__}")
