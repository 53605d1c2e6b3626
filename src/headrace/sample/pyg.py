"""For users who keep PyG's loaders: Headrace's sampler behind `torch_geometric.sampler.BaseSampler`. Needs torch-geometric."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NegativeSampling, NodeSamplerInput, SamplerOutput
from torch_geometric.sampler.neighbor_sampler import edge_sample

from headrace.graph import Graph
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
    raise ValueError("this PyG object has neither edge_index nor adj_t: there is nothing to sample from")


def sampler_output(sample: Sample, pool: BufferPool, *, metadata: Any = None) -> SamplerOutput:
    """A sample as PyG's samplers return it, all of it int64."""

    def wide(ids: Tensor) -> Tensor:
        return ids if ids.dtype == torch.int64 else pool.empty(ids.shape, torch.int64).copy_(ids)

    row, col = sample.edge_index(out=pool.empty((2, sample.num_edges), torch.int64))
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


class PygSampler(BaseSampler):  # type: ignore[misc]
    """Headrace's neighbour sampler for PyG's `NodeLoader`, `LinkLoader` and `NeighborLoader(neighbor_sampler=...)`.

    PyG does not tell a sampler which batch it is in, so here the draw is a function of (seed, epoch, the seeds themselves): set
    `epoch` before each one to see new neighbours for a batch that does not change. Prefer `headrace.loader.NeighborLoader`,
    which needs no worker processes and gathers rows too.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Sequence[int],
        *,
        replace: bool = False,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        self.sampler = NeighborSampler(
            data if isinstance(data, Graph) else graph_of(data, threads=threads),
            num_neighbors,
            replace=replace,
            seed=seed,
            threads=threads,
        )
        self.epoch = 0

    def sample_from_nodes(self, inputs: NodeSamplerInput, **_: Any) -> SamplerOutput:
        """The neighbourhood of seed nodes."""
        inputs = NodeSamplerInput.cast(inputs)
        return sampler_output(self._sample(inputs.node), self.sampler.pool, metadata=(inputs.input_id, inputs.time))

    def sample_from_edges(self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None) -> SamplerOutput:
        """The neighbourhood of the ends of seed edges, with PyG's own negative sampling."""
        inputs = EdgeSamplerInput.cast(inputs)
        return edge_sample(
            inputs,
            lambda seeds, _time=None: sampler_output(self._sample(seeds), self.sampler.pool),
            self.sampler.graph.num_nodes,
            disjoint=False,
            neg_sampling=neg_sampling,
        )

    @property
    def edge_permutation(self) -> Tensor | None:
        """None: edges are returned under their own ids."""
        return None

    def _sample(self, seeds: Tensor) -> Sample:
        seeds = seeds.to(torch.int64).contiguous()
        return self.sampler.sample(seeds, self.epoch, zlib.crc32(seeds.numpy().data), edge_ids=True)
