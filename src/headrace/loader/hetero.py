"""`NeighborLoader` of heterogeneous graphs: mini-batches of sampled neighborhoods over node and edge types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from headrace.graph import EdgeType, HeteroGraph
from headrace.loader.base import Loader
from headrace.loader.neighbor import NeighborLoader, topology_of
from headrace.loader.pyg.attributes import Attributes, Temporal
from headrace.loader.pyg.keywords import SHARED, check_pair, described, refuse, subgraph_of
from headrace.loader.seeds import Order, Seeds, input_ids_of, input_nodes_of
from headrace.loader.shard import Shard
from headrace.pipeline import Trace
from headrace.sample import Block, HeteroSample, HeteroSampler

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

_ONLY: dict[str, tuple[Any, ...]] = {
    "neighbor_sampler": (None,),
    "device": (None, "cpu"),
    "mode": ("auto", "cpu"),
    "rows": (None,),
    **SHARED,
}


@dataclass(eq=False, repr=False)
class HeteroBatch:
    """A sample of a `HeteroGraph`, from seeds of type `input_type`."""

    sample: HeteroSample
    input_type: str | EdgeType  # of the inputs: nodes, or edges
    input_id: Tensor  # position of each input among the loader's (the node itself, if they were a mask)
    index: int = 0  # of the batch in its epoch
    seed_time: Tensor | None = None  # [batch_size], where sampling was by time

    @property
    def n_id(self) -> dict[str, Tensor]:
        """Global ids of the sampled nodes of every type, seeds first."""
        return self.sample.nodes

    @property
    def e_id(self) -> dict[EdgeType, Tensor] | None:
        """Ids of the sampled edges of every type, if the loader was asked for them."""
        return self.sample.edge_id

    @property
    def tree(self) -> dict[str, Tensor] | None:
        """Which seed's tree each sampled node is in, where trees are disjoint. (PyG's `batch`.)"""
        return self.sample.tree

    @property
    def blocks(self) -> tuple[dict[EdgeType, Block], ...]:
        """Blocks by edge type, for every hop, the seeds' first; a model walks them from the last to the first."""
        return self.sample.blocks

    @property
    def batch_size(self) -> int:
        """The number of inputs."""
        return len(self.input_id)

    @property
    def seeds(self) -> dict[str, Tensor]:
        """The nodes of every type that sampling began with."""
        return {kind: ids[: self.sample.num_sampled_nodes[kind][0]] for kind, ids in self.n_id.items()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.index}, {self.sample})"


class HeteroNeighborLoader(NeighborLoader):
    """What `NeighborLoader` is for a PyG `HeteroData`, or a headrace `HeteroGraph`: it is made by calling that with either.

    Given a `HeteroData` it yields `HeteroData` with the fields PyG's loader gives, given a `HeteroGraph` a `HeteroBatch`.
    `num_neighbors` is a list, or a dictionary with a list for every edge type; `input_nodes` is a node type, or a pair of one
    and a mask or ids. Weights and times (`weight_attr`, `time_attr`) are those of the edge or node types that have them; edges of
    other types are drawn uniformly, and at all times. Rows are gathered on the CPU.

    >>> import headrace as hr
    >>> graph = hr.HeteroGraph.from_edges({("author", "writes", "paper"): ([0, 1, 2], [0, 0, 1])})
    >>> loader = hr.loader.NeighborLoader(graph, [2], ("paper", [0, 1]), batch_size=2)
    >>> next(iter(loader)).n_id["author"].tolist()
    [0, 1, 2]
    """

    def __init__(
        self,
        data: HeteroGraph | HeteroData,
        num_neighbors: Any = None,
        input_nodes: Any = None,
        *,
        input_time: Any = None,
        replace: bool = False,
        weighted: bool = False,
        weight_attr: str | None = None,
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
        shard: Shard | tuple[int, int] | Literal["torchrun"] | None = None,
        trace: Trace | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        worker_init_fn: Callable[[int], Any] | None = None,
        input_id: Any = None,
        custom_cls: Any = None,
        **others: Any,
    ) -> None:
        refuse(others, loader=type(self).__name__, only=_ONLY)
        if num_neighbors is None:
            raise TypeError(f"{type(self).__name__} needs num_neighbors=, how many to draw in each hop")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        Loader.__init__(
            self,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            threads=threads,
            num_workers=num_workers,
            staleness=staleness,
            prefetch_factor=prefetch_factor,
            ahead=ahead,
            pin_memory=pin_memory,
            trace=trace,
            worker_init_fn=worker_init_fn,
        )
        self.data: Any = data
        self.edge_ids, self.custom_cls = edge_ids, custom_cls
        self.subgraph_type = subgraph_of(subgraph_type, directed, is_pyg=not isinstance(data, HeteroGraph))
        self._disjoint = disjoint
        check_pair(data, custom_cls=custom_cls)
        self._attributes = Attributes(weighted, weight_attr, temporal, time_attr, temporal_strategy, input_time)
        self._is_pyg = not isinstance(data, HeteroGraph)
        if isinstance(data, HeteroGraph):
            if transform_sampler_output is not None:
                raise ValueError("transform_sampler_output works on PyG's HeteroSamplerOutput: pass a HeteroData, or use transform")
            self._topology, self._typed = data, self._attributes.typed_graph_of(data)
        else:
            self._topology = topology_of(data, time_attr)
            self._typed = self._attributes.typed_graph_of_pyg(self._topology, threads=self.threads)
            self.finish_ahead = True  # a PyG batch has its rows
            self.keeps_memory = self.device is None  # PyG's layers make and free large tensors in every step
            self._take_subgraphs(self._typed)
        self._make_pool(self._typed.nbytes + (_bytes(self._topology) if self._is_pyg else 0))
        if hasattr(num_neighbors, "get_values"):  # PyG's NumNeighbors
            num_neighbors = num_neighbors.get_values(self._typed.edge_types)
        self.input_type, which = _input_of(input_nodes, self._typed)
        nodes, ids = input_nodes_of(which, self._typed.num_nodes[self.input_type], None)
        order = Order.of(sampler, batch_sampler, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)
        ids = input_ids_of(input_id, ids)
        self.seeds = Seeds(nodes, ids, batch_size, shuffle, drop_last, seed, Shard.of(shard), order)
        strategy = self._attributes.strategy
        self.neighbor_sampler: Any = HeteroSampler(
            self._typed,
            num_neighbors,
            replace=replace,
            weighted=self._attributes.by_weight,
            disjoint=disjoint,
            temporal=strategy,
            inclusive=self._is_pyg and strategy is not None if inclusive is None else inclusive,
            seed=seed,
            threads=self.threads,
            pool=self.pool,
        )
        self._seed_times = self._times_of_seeds(self.neighbor_sampler, nodes)

    def _times_of_seeds(self, sampler: Any, nodes: Tensor) -> Tensor | None:
        return self._attributes.typed_seed_times(self._topology, self.input_type, nodes)

    def _start(self, job: tuple[int, Tensor], epoch: int, threads: int) -> Callable[[], Any]:
        index, positions = job
        seeds = {self.input_type: self.seeds.nodes[positions]}
        time = None if self._seed_times is None else self._seed_times[positions]
        sample = self._typed_sample(seeds, None if time is None else {self.input_type: time}, epoch, index, threads)
        return lambda: HeteroBatch(sample, self.input_type, self.seeds.input_id[positions], index, time)

    def _typed_sample(self, seeds: Any, times: Any, epoch: int, index: int, threads: int) -> HeteroSample:
        ids = self.edge_ids or self._is_pyg
        sample: HeteroSample = self.neighbor_sampler.sample(seeds, epoch, index, time=times, edge_ids=ids, threads=threads)
        return sample

    def _finish(self, batch: Any) -> Any:
        result = batch
        if self._is_pyg:
            from headrace.loader.pyg.objects import cut_down
            from headrace.sample.pyg import hetero_output

            output = hetero_output(batch.sample, self.pool, metadata=self._metadata(batch))
            output = self._subgraph.of(output, threads=self.threads)
            if self.transform_sampler_output is not None:
                output = self.transform_sampler_output(output)
            result = cut_down(self.data, output, custom_cls=self.custom_cls, pool=self.pool, threads=self.threads)
            self._add_fields(result, output.metadata)
        return self._handed_over(result)

    def _metadata(self, batch: Any) -> tuple[Any, ...]:
        return batch.input_id, batch.seed_time

    def _add_fields(self, result: Any, metadata: tuple[Any, ...]) -> None:
        super()._add_fields(result[self.input_type], metadata)

    def __repr__(self) -> str:
        return f"NeighborLoader({self._typed}, batches={len(self)})"


def _input_of(input_nodes: Any, graph: HeteroGraph) -> tuple[str, Any]:
    """The node type of the input nodes, and which of them."""
    kind, which = input_nodes if isinstance(input_nodes, (tuple, list)) and len(input_nodes) == 2 else (input_nodes, None)
    if not isinstance(kind, str) or kind not in graph.num_nodes:
        kinds, shown = graph.node_types, described(input_nodes)
        raise ValueError(f"input_nodes must name one of the node types {kinds}, alone or with ids, not {shown}")
    return kind, which


def _bytes(data: Any) -> int:
    """Bytes of the rows of a `HeteroData`."""
    return sum(value.nbytes for store in data.stores for value in store.values() if isinstance(value, Tensor))
