"""For users who keep PyG's loaders: Headrace's sampler behind `torch_geometric.sampler.BaseSampler`. Needs torch-geometric."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler.neighbor_sampler import edge_sample

from headrace.graph import EdgeType, Graph, HeteroGraph
from headrace.graph.topology.edge_rows import EdgeRows, carry
from headrace.sample.hetero import HeteroSample, HeteroSampler
from headrace.sample.neighbor import NeighborSampler
from headrace.sample.sample import Sample
from headrace.store import BufferPool


def graph_of(
    data: Any,
    *,
    weight: Tensor | None = None,
    edge_time: Tensor | None = None,
    node_time: Tensor | None = None,
    threads: int | None = None,
) -> Graph:
    """The graph of a PyG `Data` (its `edge_index` or `adj_t`), keeping the ids of its edges.

    `weight` and `edge_time` are given in the order of the edges; by `node_time` an edge has the time of its source.
    """
    if getattr(data, "edge_index", None) is not None:
        src, dst = data.edge_index
        time = edge_time if node_time is None else node_time[src]
        return Graph.from_edges(src, dst, data.num_nodes, weight=weight, time=time, edge_id=True, threads=threads)
    if getattr(data, "adj_t", None) is not None:
        adjacency = data.adj_t
        if hasattr(adjacency, "csr"):  # torch_sparse
            indptr, indices, _ = adjacency.csr()
        else:
            indptr, indices = adjacency.crow_indices(), adjacency.col_indices()
        graph = Graph(indptr, indices, weight=weight, time=edge_time if node_time is None else node_time[indices.long()])
        graph.validate(threads=threads)
        return graph
    if data.num_nodes is None:
        raise ValueError("this PyG object has neither edge_index nor adj_t, and no num_nodes: there is nothing to sample from")
    none = torch.empty(0, dtype=torch.int64)
    timed = edge_time is not None or node_time is not None
    return Graph.from_edges(none, none, data.num_nodes, time=none if timed else None, edge_id=True)


def sampler_output(sample: Sample, pool: BufferPool, *, metadata: Any = None) -> SamplerOutput:
    """A sample as PyG's samplers return it, all of it int64."""

    def wide(ids: Tensor) -> Tensor:
        if not in_memory:
            return ids.long()
        return ids if ids.dtype == torch.int64 else pool.empty(ids.shape, torch.int64).copy_(ids)

    in_memory = sample.device.type == "cpu"
    row, col = sample.edge_index(out=pool.empty((2, sample.num_edges), torch.int64) if in_memory else None)
    nodes = sample.nodes.numel()
    hops = tuple(accumulate(sample.num_sampled_nodes))
    carry(row, EdgeRows(sample.indptr, sample.indices, nodes, nodes, hops=hops))
    return SamplerOutput(
        node=wide(sample.nodes),
        row=row,
        col=col,
        edge=None if sample.edge_id is None else wide(sample.edge_id),
        batch=None if sample.tree is None else wide(sample.tree),
        num_sampled_nodes=list(sample.num_sampled_nodes),
        num_sampled_edges=list(sample.num_sampled_edges),
        metadata=metadata,
    )


def hetero_output(sample: HeteroSample, pool: BufferPool, *, metadata: Any = None) -> HeteroSamplerOutput:
    """A heterogeneous sample as PyG's samplers return it, all of it int64."""
    row, col, edge = {}, {}, {}
    for kind, indices in sample.indices.items():
        row[kind], col[kind] = sample.edge_index(kind, out=pool.empty((2, indices.numel()), torch.int64))
        sizes = sample.nodes[kind[0]].numel(), sample.nodes[kind[2]].numel()
        carry(row[kind], EdgeRows(sample.indptr[kind], indices, *sizes))
        if sample.edge_id is not None:
            edge[kind] = sample.edge_id[kind].long()
    return HeteroSamplerOutput(
        node=dict(sample.nodes),
        row=row,
        col=col,
        edge=edge if sample.edge_id is not None else None,
        batch=None if sample.tree is None else dict(sample.tree),
        num_sampled_nodes={kind: list(counts) for kind, counts in sample.num_sampled_nodes.items()},
        num_sampled_edges={kind: list(counts) for kind, counts in sample.num_sampled_edges.items()},
        metadata=metadata,
    )


class PygSampler(BaseSampler):  # type: ignore[misc]
    """Headrace's neighbor sampler for PyG's `NodeLoader`, `LinkLoader` and `NeighborLoader(neighbor_sampler=...)`.

    PyG does not tell a sampler which batch it is in, so here the draw is a function of (seed, epoch, the seeds themselves): set
    `epoch` before each one to see new neighbors for a batch that does not change. Prefer `headrace.loader.NeighborLoader`,
    which needs no worker processes and gathers rows too. `data` may be a `HeteroData`, with fanouts as `HeteroSampler` takes.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]],
        *,
        replace: bool = False,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        options: dict[str, Any] = {"replace": replace, "seed": seed, "threads": threads}
        self.sampler: Any
        if isinstance(data, (HeteroData, HeteroGraph)):
            typed = data if isinstance(data, HeteroGraph) else HeteroGraph.from_pyg(data, threads=threads)
            self.sampler = HeteroSampler(typed, num_neighbors, **options)
        elif isinstance(num_neighbors, Mapping):
            raise ValueError("num_neighbors is a dictionary of edge types, but this graph has only one kind of edge")
        else:
            graph = data if isinstance(data, Graph) else graph_of(data, threads=threads)
            self.sampler = NeighborSampler(graph, num_neighbors, **options)
        self.epoch = 0

    def sample_from_nodes(self, inputs: NodeSamplerInput, **_: Any) -> SamplerOutput | HeteroSamplerOutput:
        """The neighborhood of seed nodes."""
        inputs = NodeSamplerInput.cast(inputs)
        seeds = inputs.node if inputs.input_type is None else {inputs.input_type: inputs.node}
        output = self._output(seeds)
        output.metadata = (inputs.input_id, inputs.time)
        return output

    def sample_from_edges(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """The neighborhood of the ends of seed edges, with PyG's own negative sampling."""
        inputs = EdgeSamplerInput.cast(inputs)
        return edge_sample(
            inputs,
            lambda seeds, _time=None: self._output(seeds),
            self.sampler.graph.num_nodes,
            disjoint=False,
            neg_sampling=neg_sampling,
        )

    @property
    def edge_permutation(self) -> Tensor | None:
        """None: edges are returned under their own ids."""
        return None

    def _output(self, seeds: Any) -> SamplerOutput | HeteroSamplerOutput:
        sample = self._sample(seeds)
        pool = self.sampler.pool
        return hetero_output(sample, pool) if isinstance(sample, HeteroSample) else sampler_output(sample, pool)

    def _sample(self, seeds: Any) -> Sample | HeteroSample:
        by_type = seeds if isinstance(seeds, dict) else {"": seeds}
        by_type = {kind: ids.to(torch.int64).contiguous() for kind, ids in by_type.items()}
        number = 0
        for ids in by_type.values():
            number = zlib.crc32(ids.numpy().data, number)
        sample: Sample | HeteroSample = self.sampler.sample(
            by_type if isinstance(seeds, dict) else by_type[""], self.epoch, number, edge_ids=True
        )
        return sample
