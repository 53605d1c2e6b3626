"""`NeighborLoader`: mini-batches of sampled neighborhoods, with PyG's keywords."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from headrace.graph import Dataset, EdgeType, Graph, HeteroGraph
from headrace.loader.base import Loader, gpu_of
from headrace.loader.batch import Batch
from headrace.loader.pyg.attributes import Attributes, Temporal, input_times
from headrace.loader.pyg.keywords import SHARED, check_pair, is_one_of, refuse, subgraph_of
from headrace.loader.seeds import Order, Seeds, input_ids_of, input_nodes_of
from headrace.loader.shard import Shard
from headrace.pipeline import Trace
from headrace.sample import MixedSampler, NeighborSampler, Sample, Sampler, StartedSample
from headrace.sample.sampler import checked, sampler_of
from headrace.store import ArrayStore, Store, rows_for

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

# What a sampler of the user's own decides in place of the loader, with the values that mean no more than their absence.
_DRAWING: dict[str, tuple[Any, ...]] = {
    "num_neighbors": (None,),
    "replace": (False,),
    "weighted": (False,),
    "weight_attr": (None,),
    "labor": (False,),
    "layer_dependency": (False,),
    "batch_dependency": (1,),
    "disjoint": (False,),
    "temporal": (None,),
    "time_attr": (None,),
    "temporal_strategy": ("uniform",),
    "inclusive": (False, None),
    "mode": ("auto", "cpu"),
}


class NeighborLoader(Loader):
    """Samples neighborhoods of batches of input nodes, ahead of the consumer, in threads.

    Given a headrace `Dataset` (or `Graph`) it yields `Batch`; given a PyG `Data`, a PyG `Data` equal to what PyG's own loader
    gives. Keywords are PyG's. `NeighborSampler` explains how neighbors are drawn; a PyG `Data` names the attributes to draw by
    (`weight_attr` of edges, `time_attr` of edges or nodes), where a headrace graph has its own (`weighted=True` draws by
    `graph.weight`, `temporal=` by `graph.time`). `input_time` is one time per input node; without it nodes have their own.
    Of a PyG object edges at the very time of a seed count as past, as in PyG; of a headrace graph those before it: `inclusive`
    says either. `subgraph_type` is for PyG objects. A pair (FeatureStore, GraphStore) of PyG is taken too. Beside them:

    seed: with the epoch and the index of the batch it decides the batch. Threads and `staleness` change nothing.
    threads: that sample (default: all processors; PyG's `num_workers` is taken for it).
    staleness: batches that may be under way ahead of the consumer; 0 samples when asked. (PyG's `prefetch_factor`.)
    ahead: what is done ahead: "sample", or "rows" to gather features too. Rows are most of a batch's memory, and on a CPU they are
        gathered by the cores that train, so a `Batch` by default gathers them when asked, into the buffer that the batch
        before gave back.
    edge_ids: give a `Batch` its `e_id`. (A PyG `Data` always has it.)
    device: "cuda" gives batches on a GPU: sampled, gathered and handed over on streams of their own while the model trains.
        Without it they are where the graph is: on a GPU if that is there, or pinned for one.
    mode: where they are sampled: "gpu" from a copy of the graph in GPU memory, "uva" by the GPU from page-locked host memory,
        "cpu" by threads, "mixed" by both; "auto" is "gpu" if the graph fits. All give the same batches.
    rows: a store that features are gathered from (`store.Tiered`, `store.Cached`, ...) in place of the data's `x`.
    shard: (rank, ranks), or "torchrun": batches of one list are dealt to the ranks (`Shard`).
    sampler, batch_sampler: as for torch's `DataLoader`, what gives the positions of inputs in order, or batch by batch, in place of
        `shuffle`: that order is the sampler's own and does not depend on `seed`.
    worker_init_fn: called with its number in each thread that samples, once an epoch; not where `staleness` is 0.
    neighbor_sampler: any `headrace.sample.Sampler`, in place of `num_neighbors` and all that says how to draw. It is given
        `input_time` as `time=`. Its samples may lie on the CPU: with `device="cuda"` batches are moved.

    Each iteration is an epoch: `epoch` counts them, and may be set.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=1000, edges=20000, classes=4, features=16)
    >>> loader = hr.loader.NeighborLoader(data, [10, 5], input_nodes="train", batch_size=32, shuffle=True, seed=1)
    >>> len(loader), next(iter(loader)).batch_size
    (4, 32)

    A heterogeneous graph (`HeteroGraph`, or a PyG `HeteroData`) makes a `HeteroNeighborLoader`, which is one of these.
    """

    _check_samples = False

    def __new__(cls, data: Any = None, *_: Any, **__: Any) -> NeighborLoader:
        if cls is NeighborLoader and is_hetero(data):
            from headrace.loader.hetero import HeteroNeighborLoader

            return object.__new__(HeteroNeighborLoader)
        return object.__new__(cls)

    def __init__(
        self,
        data: Dataset | Graph | HeteroGraph | Data | HeteroData,
        num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]] | None = None,
        input_nodes: Any = None,
        *,
        neighbor_sampler: Sampler | None = None,
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
        inclusive: bool | None = None,
        subgraph_type: Any = "directional",
        directed: bool = True,
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
        device: str | torch.device | None = None,
        mode: Literal["auto", "cpu", "uva", "gpu", "mixed"] = "auto",
        rows: Store | None = None,
        shard: Shard | tuple[int, int] | Literal["torchrun"] | None = None,
        trace: Trace | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        worker_init_fn: Callable[[int], Any] | None = None,
        input_id: Any = None,
        custom_cls: Any = None,
        **others: Any,
    ) -> None:
        refuse(others, loader=type(self).__name__, only=SHARED)
        if isinstance(num_neighbors, Mapping):
            raise ValueError("num_neighbors is a dictionary of edge types, but this graph has only one kind of edge")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        super().__init__(
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            threads=threads,
            num_workers=num_workers,
            staleness=staleness,
            prefetch_factor=prefetch_factor,
            ahead=ahead,
            pin_memory=pin_memory,
            trace=trace,
            device=device,
            worker_init_fn=worker_init_fn,
        )
        self.data, self.edge_ids, self.custom_cls = data, edge_ids, custom_cls
        self.subgraph_type = subgraph_of(subgraph_type, directed, is_pyg=not isinstance(data, Dataset | Graph))
        self._disjoint = disjoint
        check_pair(data, custom_cls=custom_cls, device=self.device, rows=rows)
        self._dataset = Dataset(data) if isinstance(data, Graph) else data if isinstance(data, Dataset) else None
        how: dict[str, Any] = {
            "replace": replace,
            "labor": labor,
            "layer_dependency": layer_dependency,
            "batch_dependency": batch_dependency,
            "disjoint": disjoint,
            "inclusive": inclusive,
        }
        own_time = input_time if neighbor_sampler is None else None  # of the loader's own sampler
        self._attributes = attributes = Attributes(weighted, weight_attr, temporal, time_attr, temporal_strategy, own_time)
        if neighbor_sampler is not None:
            sampler_of(neighbor_sampler, "neighbor_sampler")
            _refuse_drawing({"num_neighbors": num_neighbors, "mode": mode, **how, **vars(attributes)})
            if device is None:
                self.device = gpu_of(neighbor_sampler.device)
        if neighbor_sampler is None and num_neighbors is None:
            raise TypeError(f"{type(self).__name__} needs num_neighbors=, how many to draw in each hop, or neighbor_sampler=")
        if self._dataset is None:
            self._topology = topology_of(data, time_attr)
            self._graph = attributes.graph_of_pyg(self._topology, threads=self.threads)
            self.finish_ahead = True  # a PyG batch has its rows
            self.keeps_memory = self.device is None  # PyG's layers make and free large tensors in every step
            self._take_subgraphs(self._graph)
        else:
            if transform_sampler_output is not None:
                raise ValueError("transform_sampler_output works on PyG's SamplerOutput: pass a PyG Data, or use transform")
            self._graph = attributes.graph_of(self._dataset)
            if device is None and mode != "cpu" and (self._graph.is_pinned or self._graph.device.type != "cpu"):
                self.device = gpu_of(self._graph.device if self._graph.device.type != "cpu" else "cuda")
        self._make_pool(_bytes(self._topology if self._dataset is None else data))
        nodes, ids = input_nodes_of(input_nodes, self._graph.num_nodes, self._dataset.splits if self._dataset else None)
        order = Order.of(sampler, batch_sampler, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)
        ids = input_ids_of(input_id, ids)
        self.seeds = Seeds(nodes, ids, batch_size, shuffle, drop_last, seed, Shard.of(shard), order)
        self.neighbor_sampler: Sampler
        self._no_hops = False
        if num_neighbors is None:
            assert neighbor_sampler is not None
            self.neighbor_sampler = self._own_sampler(neighbor_sampler)
            self._seed_times = None if input_time is None else input_times(input_time, nodes)
        else:
            hops: Any = num_neighbors.get_values() if hasattr(num_neighbors, "get_values") else num_neighbors  # PyG's NumNeighbors
            self._no_hops = len(hops) == 0 and self._dataset is None  # then PyG's batches are the seeds
            past = attributes.strategy is not None and self._dataset is None if inclusive is None else inclusive
            how |= {"weighted": attributes.by_weight, "temporal": attributes.strategy, "seed": seed, "inclusive": past}
            how |= {"threads": self.threads, "pool": self.pool}
            fanouts = [0] if self._no_hops else hops
            self.neighbor_sampler = ours = self._place(partial(NeighborSampler, self._graph, fanouts, **how), mode)
            self._seed_times = self._times_of_seeds(ours, nodes)
        if isinstance(self.neighbor_sampler, MixedSampler):
            self.sample_threads = self.neighbor_sampler.threads
        elif self.neighbor_sampler.device.type != "cpu":
            self.sample_threads = 0
        if rows is not None and rows.shape[0] != self._graph.num_nodes:
            raise ValueError(f"rows has {rows.shape[0]} rows for {self._graph.num_nodes} nodes: it must have one for every node")
        self._rows, self._labels = rows if rows is not None else self._store("x"), self._store("y")
        self._stores: dict[str, Store] = {} if rows is None else {"x": rows}  # that take the place of a PyG object's attributes
        if self.device is not None and self._dataset is None:
            from headrace.loader.pyg.objects import stores_of

            self._stores |= stores_of(self._topology, self.device, but=self._stores)

    def _times_of_seeds(self, sampler: NeighborSampler | MixedSampler, nodes: Tensor) -> Tensor | None:  # -> [input nodes]
        """The time of every input node, where sampling is by time."""
        data = self._topology if self._dataset is None else self._dataset
        return sampler.seed_times(self._attributes.seed_times(data, nodes), len(nodes))

    def _take_subgraphs(self, graph: Graph | HeteroGraph) -> None:
        """Prepare for what `subgraph_type` says, which the batches of PyG objects have."""
        from headrace.loader.pyg.subgraph import Subgraph

        if self.subgraph_type == "induced" and self.device is not None:
            raise ValueError("induced subgraphs are found on the CPU: leave device out, and call batch.to(device)")
        if self.subgraph_type == "induced" and self._grows_trees:
            raise ValueError("disjoint trees have no induced subgraph: use subgraph_type='directional' or 'bidirectional'")
        self._subgraph = Subgraph(self.subgraph_type, graph)

    @property
    def _grows_trees(self) -> bool:
        return self._disjoint or self._attributes.strategy is not None

    def _place(self, how: Callable[..., NeighborSampler], mode: str) -> NeighborSampler | MixedSampler:
        """Make the sampler for the place that `mode` names, or that is chosen."""
        if mode not in ("auto", "cpu", "uva", "gpu", "mixed"):
            raise ValueError(f"mode must be 'auto', 'cpu', 'uva', 'gpu' or 'mixed', not {mode!r}")
        if self.device is None and mode not in ("auto", "cpu"):
            raise ValueError(f"mode={mode!r} samples on a GPU: give device='cuda' too")
        if self.device is None or mode == "cpu":
            return how(mode="cpu")  # also if the graph is pinned
        if mode == "mixed":
            return MixedSampler(how(device=self.device), how(mode="cpu"), cpu_threads=max(self.threads - 1, 1))
        return how(device=self.device, mode=mode)

    def _own_sampler(self, sampler: Sampler) -> Sampler:
        """Take the user's sampler. Samples are checked unless it is one of ours, which must have a graph of this size."""
        self._check_samples = not isinstance(sampler, NeighborSampler | MixedSampler)
        if isinstance(sampler, NeighborSampler | MixedSampler) and sampler.graph.num_nodes != self._graph.num_nodes:
            raise ValueError(
                f"neighbor_sampler samples a graph of {sampler.graph.num_nodes} nodes, but data has {self._graph.num_nodes}"
            )
        return sampler

    def _store(self, name: str) -> Store | None:
        rows = getattr(self._dataset, name) if self._dataset is not None else None
        if rows is None:
            return None
        if self.device is not None:
            return rows_for(self.device, rows)
        return ArrayStore(rows, pool=self.pool, threads=self.threads)

    def _start(self, job: tuple[int, Tensor], epoch: int, threads: int) -> Callable[[], Any]:
        index, positions = job
        seeds = self.seeds.nodes[positions]
        ids = self.edge_ids or self._dataset is None
        time = None if self._seed_times is None else self._seed_times[positions]
        begun = self.neighbor_sampler.start(seeds, epoch, index, time=time, edge_ids=ids, threads=threads)
        if time is not None and self.device is not None:
            time = time.to(self.device)
        rest = (self.seeds.input_id[positions], self._rows, self._labels, index, self._graph, time)
        return lambda: Batch(self._finished(begun, seeds), *rest)

    def _finished(self, begun: StartedSample, seeds: Tensor) -> Sample:
        """The sample, checked where it comes from a sampler of the user's own."""
        sample = begun.finish()
        if self._no_hops:
            return dataclasses.replace(sample, num_sampled_nodes=sample.num_sampled_nodes[:1], num_sampled_edges=())
        if not self._check_samples:
            return sample
        name = type(self.neighbor_sampler).__name__
        sample = checked(sample, seeds, num_nodes=self._graph.num_nodes, name=name)
        if self.edge_ids and sample.edge_id is None:
            raise ValueError(f"edge_ids=True, but {name}.sample returned a sample without edge_id")
        return sample

    def _finish(self, batch: Any) -> Any:
        if self.device is not None:
            batch = batch.to(self.device)
        result: Any = batch
        if self._dataset is None:
            from headrace.loader.pyg.objects import cut_down
            from headrace.sample.pyg import sampler_output

            output = sampler_output(batch.sample, self.pool, metadata=self._metadata(batch))
            output = self._subgraph.of(output, threads=self.threads)
            if self.transform_sampler_output is not None:
                output = self.transform_sampler_output(output)
            how = {"custom_cls": self.custom_cls, "pool": self.pool, "threads": self.threads, "stores": self._stores}
            result = cut_down(self.data, output, **how)
            self._add_fields(result, output.metadata)
        elif self.ahead == "rows" or (self.device is not None and batch.table is None):
            batch.x, batch.y  # noqa: B018 - gathers them
        return self._handed_over(result)

    def _metadata(self, batch: Any) -> tuple[Any, ...]:
        """What PyG's samplers return as `metadata` of a sample."""
        return self._on_device(batch.input_id), batch.seed_time

    def _on_device(self, ids: Tensor) -> Tensor:
        """`ids` on the device on which a PyG batch has all of its fields."""
        return ids if self.device is None else ids.to(self.device)

    def _add_fields(self, result: Any, metadata: tuple[Any, ...]) -> None:
        """Set the fields that PyG's loader makes of `metadata`."""
        result.input_id, result.seed_time = metadata
        result.batch_size = len(result.input_id)

    def __repr__(self) -> str:
        sampler = self.neighbor_sampler
        how = f"neighbor_sampler={type(sampler).__name__}"
        if isinstance(sampler, NeighborSampler | MixedSampler):
            how = f"fanouts={sampler.fanouts}"
        return f"{type(self).__name__}({self._graph}, {how}, batches={len(self)})"


def _refuse_drawing(options: dict[str, Any]) -> None:
    """Raise for an option that a sampler of the user's own would not be told of."""
    others = [name for name, absent in _DRAWING.items() if not is_one_of(options[name], absent)]
    if others:
        raise ValueError(f"neighbor_sampler decides how neighbors are drawn, so {' and '.join(others)} must be left out")


def _bytes(data: Any) -> int:
    """Bytes of the graph and its rows, by which the idle buffers of a loader are bounded."""
    if isinstance(data, (Dataset, Graph)):
        return data.nbytes
    return sum(value.nbytes for _, value in data if isinstance(value, Tensor))


def is_hetero(data: Any) -> bool:
    """Whether data has types of nodes and edges: a `HeteroGraph`, a PyG `HeteroData`, or a pair of PyG's stores that has."""
    if isinstance(data, (Dataset, Graph, HeteroGraph)):
        return isinstance(data, HeteroGraph)
    try:
        from torch_geometric.data import HeteroData

        from headrace.loader.pyg.remote import has_types, is_pair
    except ImportError:
        return False
    return isinstance(data, HeteroData) or (is_pair(data) and has_types(data))


def topology_of(data: Any, time_attr: str | None) -> Any:
    """The PyG object that has the edges of `data`: itself, or that of a pair of PyG's stores."""
    try:
        from torch_geometric.data import Data, HeteroData

        from headrace.loader.pyg.remote import is_pair, topology
    except ImportError:
        raise TypeError(f"data must be a headrace Dataset or Graph, or (with torch-geometric) a Data, not {type(data)}") from None
    if is_pair(data):
        return topology(data, time_attr=time_attr)
    if not isinstance(data, Data | HeteroData):
        raise TypeError(f"data must be a headrace Dataset or Graph, or a PyG Data, not {type(data).__name__}")
    return data
