"""`NeighborSampler`: uniform neighbours, hop by hop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from headrace import _native
from headrace._arrays import as_ids, first_outside, thread_count
from headrace.graph import Graph
from headrace.kernels import gather
from headrace.sample.sample import Sample
from headrace.store import BufferPool

# Up to here an array over all nodes finds a node's local id faster than a hash table does (measured; docs/sampling.md).
_STAMP_NODES = 12 << 20


class NeighborSampler:
    """Samples up to `fanouts[h]` in-neighbours of every node that hop h - 1 added, uniformly; -1 takes all.

    Without replacement by Floyd's method. Every draw is Philox of (seed, epoch, batch, hop, node, slot), so a sample depends on
    these alone: never on threads, on what was sampled before or on the machine. Each hop expands only nodes that are new to the
    sample, as PyG does; a node keeps the place of its first appearance.

    >>> import headrace as hr
    >>> graph = hr.generate.community(nodes=1000, edges=20000, classes=4, features=0).graph
    >>> sampler = hr.sample.NeighborSampler(graph, [5, 3], seed=7)
    >>> sample = sampler.sample([3, 14, 15], epoch=0, batch=0)
    >>> sample.nodes[:3].tolist(), len(sample.blocks)
    ([3, 14, 15], 2)
    """

    def __init__(
        self,
        graph: Graph,
        fanouts: Sequence[int],
        *,
        replace: bool = False,
        seed: int = 0,
        threads: int | None = None,
        pool: BufferPool | None = None,
        deduplicate_by: Literal["auto", "stamp", "hash"] = "auto",
    ) -> None:
        self.graph = graph
        self.fanouts = [int(k) for k in fanouts]
        if not self.fanouts or min(self.fanouts) < -1:
            raise ValueError(f"fanouts must be one number per hop, each at least 0 or -1 for all; got {list(fanouts)}")
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed must be from 0 to 2**64 - 1, not {seed}")
        if deduplicate_by not in ("auto", "stamp", "hash"):
            raise ValueError(f"deduplicate_by must be 'auto', 'stamp' or 'hash', not {deduplicate_by!r}")
        self.replace = replace
        self.seed = seed
        self.threads = thread_count(threads)
        self.pool = pool if pool is not None else BufferPool(limit=256 << 20)
        by_hash = deduplicate_by == "hash" or (deduplicate_by == "auto" and graph.num_nodes > _STAMP_NODES)
        self._native = _native.Sampler(graph.indptr, graph.indices, self.fanouts, replace=replace, hash=by_hash)

    def sample(self, seeds: Any, epoch: int = 0, batch: int = 0, *, edge_ids: bool = False, threads: int | None = None) -> Sample:
        """The sample of `seeds` as batch `batch` of epoch `epoch`. Safe to call from many threads at a time.

        `edge_ids` also returns, per edge, the graph's `edge_id` (or the edge's position where the graph keeps none).
        """
        ids = as_ids(seeds, "seeds", dtype=torch.int64)
        if not 0 <= epoch < 2**32 or not 0 <= batch < 2**64:
            raise ValueError(f"epoch and batch must be counts, not {epoch} and {batch}")
        workers = self.threads if threads is None else thread_count(threads)
        low, high = _native.id_range(ids, 1)
        if low < 0 or high >= self.graph.num_nodes:
            at = first_outside(ids, 0, self.graph.num_nodes)
            raise IndexError(f"seeds[{at}] is {int(ids[at])}: the graph has nodes 0 to {self.graph.num_nodes - 1}")
        nodes, indptr, indices, positions, node_counts, edge_counts = self._native.sample(
            ids, self.pool.native, seed=self.seed, epoch=epoch, batch=batch, positions=edge_ids, threads=workers
        )
        edge_id = None if positions is None else torch.from_numpy(positions)
        if edge_id is not None and self.graph.edge_id is not None:
            own = self.graph.edge_id
            edge_id = gather(own, edge_id, out=self.pool.empty(edge_id.shape, own.dtype), threads=workers)
        return Sample(
            torch.from_numpy(nodes),
            torch.from_numpy(indptr),
            torch.from_numpy(indices),
            tuple(node_counts),
            tuple(edge_counts),
            edge_id,
        )

    @property
    def workspace_bytes(self) -> int:
        """Memory kept between batches to find repeated nodes, over all threads that sample."""
        return self._native.workspace_bytes
