"""`NeighborLoader` of heterogeneous graphs: mini-batches of sampled neighborhoods over node and edge types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from headrace.graph import EdgeType, HeteroGraph
from headrace.loader.base import SHARED, Loader, refuse
from headrace.loader.neighbor import NeighborLoader
from headrace.loader.seeds import Seeds, input_nodes_of
from headrace.loader.shard import Shard
from headrace.pipeline import Trace
from headrace.sample import Block, HeteroSample, HeteroSampler

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

_ONLY: dict[str, tuple[Any, ...]] = {
    "input_time": (None,),
    "subgraph_type": ("directional",),
    "disjoint": (False,),
    "temporal_strategy": ("uniform",),
    "time_attr": (None,),
    "weight_attr": (None,),
    "neighbor_sampler": (None,),
    "directed": (True,),
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

    @property
    def n_id(self) -> dict[str, Tensor]:
        """Global ids of the sampled nodes of every type, seeds first."""
        return self.sample.nodes

    @property
    def e_id(self) -> dict[EdgeType, Tensor] | None:
        """Ids of the sampled edges of every type, if the loader was asked for them."""
        return self.sample.edge_id

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
    and a mask or ids. Rows are gathered on the CPU.

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
        replace: bool = False,
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
        )
        self.data: Any = data
        self.edge_ids = edge_ids
        self._is_pyg = not isinstance(data, HeteroGraph)
        self._typed = data if isinstance(data, HeteroGraph) else HeteroGraph.from_pyg(data, threads=self.threads)
        if self._is_pyg:
            self.finish_ahead = True  # a PyG batch has its rows
        elif transform_sampler_output is not None:
            raise ValueError("transform_sampler_output works on PyG's HeteroSamplerOutput: pass a HeteroData, or use transform")
        self._make_pool(self._typed.nbytes + (_bytes(data) if self._is_pyg else 0))
        if hasattr(num_neighbors, "get_values"):  # PyG's NumNeighbors
            num_neighbors = num_neighbors.get_values(self._typed.edge_types)
        self.input_type, which = _input_of(input_nodes, self._typed)
        nodes, input_id = input_nodes_of(which, self._typed.num_nodes[self.input_type], None)
        self.seeds = Seeds(nodes, input_id, batch_size, shuffle, drop_last, seed, Shard.of(shard))
        self.sampler: Any = HeteroSampler(
            self._typed, num_neighbors, replace=replace, seed=seed, threads=self.threads, pool=self.pool
        )

    def _start(self, job: tuple[int, Tensor], epoch: int, threads: int) -> Callable[[], Any]:
        index, positions = job
        seeds = {self.input_type: self.seeds.nodes[positions]}
        sample = self.sampler.sample(seeds, epoch, index, edge_ids=self.edge_ids or self._is_pyg, threads=threads)
        return lambda: HeteroBatch(sample, self.input_type, self.seeds.input_id[positions], index)

    def _finish(self, batch: Any) -> Any:
        result = batch
        if self._is_pyg:
            from headrace.loader.pyg import filtered_hetero
            from headrace.sample.pyg import hetero_output

            output = hetero_output(batch.sample, self.pool, metadata=self._metadata(batch))
            if self.transform_sampler_output is not None:
                output = self.transform_sampler_output(output)
            result = filtered_hetero(self.data, output, pool=self.pool, threads=self.threads)
            self._add_fields(result, output.metadata)
        return self._handed_over(result)

    def _metadata(self, batch: Any) -> tuple[Any, ...]:
        return batch.input_id, None

    def _add_fields(self, result: Any, metadata: tuple[Any, ...]) -> None:
        super()._add_fields(result[self.input_type], metadata)

    def __repr__(self) -> str:
        return f"NeighborLoader({self._typed}, batches={len(self)})"


def _input_of(input_nodes: Any, graph: HeteroGraph) -> tuple[str, Any]:
    """The node type of the input nodes, and which of them."""
    kind, which = input_nodes if isinstance(input_nodes, (tuple, list)) and len(input_nodes) == 2 else (input_nodes, None)
    if not isinstance(kind, str) or kind not in graph.num_nodes:
        raise ValueError(f"input_nodes must name one of the node types {graph.node_types}, alone or with ids, not {input_nodes!r}")
    return kind, which


def _bytes(data: Any) -> int:
    """Bytes of the rows of a `HeteroData`."""
    return sum(value.nbytes for store in data.stores for value in store.values() if isinstance(value, Tensor))
