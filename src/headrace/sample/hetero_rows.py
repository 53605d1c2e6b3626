"""Draws by weight, by time and in disjoint trees, where nodes and edges have types: row by row, one edge type after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from headrace import _native
from headrace.graph import EdgeType, Graph, HeteroGraph, Relation
from headrace.sample.hops import numbered
from headrace.sample.neighbor import NeighborSampler
from headrace.store import BufferPool


class HeteroRows:
    """Samples hop by hop; in each hop, every edge type has its rows drawn by a `NeighborSampler` of one hop.

    So weights and times mean what they mean there, and an edge type that has none is drawn from uniformly, or as a whole. The
    draws of an edge type in a hop are Philox of (edge type, hop, key of (seed, epoch, batch), node, slot).
    """

    def __init__(
        self,
        graph: HeteroGraph,
        fanouts: Mapping[EdgeType, list[int]],
        *,
        replace: bool,
        weighted: bool,
        disjoint: bool,
        temporal: Literal["uniform", "last"] | None,
        inclusive: bool,
        seed: int,
        threads: int,
        pool: BufferPool,
    ) -> None:
        self.graph, self.fanouts, self.seed = graph, fanouts, seed
        self.trees, self.temporal = disjoint or temporal is not None, temporal
        self._samplers: dict[tuple[EdgeType, int], NeighborSampler] = {}
        for number, (edge_type, relation) in enumerate(graph.relations.items()):
            square = _square(relation, timed=temporal is not None)
            for fanout in set(fanouts[edge_type]):
                self._samplers[edge_type, fanout] = NeighborSampler(
                    square,
                    [fanout],
                    replace=replace,
                    weighted=weighted and relation.weight is not None,
                    disjoint=self.trees,
                    temporal=temporal if relation.time is not None else None,
                    inclusive=inclusive and temporal is not None and relation.time is not None,
                    seed=number,
                    threads=threads,
                    pool=pool,
                )

    def sample(
        self, seeds: Mapping[str, Tensor], times: Mapping[str, Tensor] | None, epoch: int, batch: int, threads: int
    ) -> dict[str, Any]:
        """The fields of a `HeteroSample`: `seeds` and `times` have an entry for every node type."""
        key, kinds = _native.stream_key(self.seed, epoch, batch, _native.Purpose.sample), self.graph.node_types
        nodes = {kind: [seeds[kind]] for kind in kinds}  # what each hop added
        trees, time = self._trees(seeds, times)
        keys = {kind: self._keys(kind, seeds[kind], trees[kind][0]) for kind in kinds}  # of all nodes so far
        counts = {kind: [len(seeds[kind])] for kind in kinds}
        rows: dict[EdgeType, list[Tensor]] = {t: [torch.zeros(1, dtype=torch.int64)] for t in self.graph.edge_types}
        indices: dict[EdgeType, list[Tensor]] = {t: [] for t in self.graph.edge_types}
        edges: dict[EdgeType, list[Tensor]] = {t: [] for t in self.graph.edge_types}
        for hop in range(len(next(iter(self.fanouts.values()), ()))):
            frontier = {kind: (nodes[kind][-1], trees[kind][-1]) for kind in kinds}
            before = {kind: len(keys[kind]) for kind in kinds}
            added: dict[str, list[tuple[Tensor, Tensor]]] = {kind: [] for kind in kinds}
            for edge_type, fanouts in self.fanouts.items():
                source, _, target = edge_type
                ids, tree = frontier[target]
                sampler = self._samplers[edge_type, fanouts[hop]]
                until = time[tree] if sampler.temporal is not None and time is not None else None
                drawn = sampler.sample(ids, hop, key, time=until, edge_ids=True, threads=threads)
                neighbors = drawn.nodes[drawn.indices.long()].long()
                of = tree.repeat_interleave(drawn.indptr.diff())
                asked = self._keys(source, neighbors, of)
                local, new = numbered(keys[source], asked)
                keys[source] = torch.cat([keys[source], asked[new]])
                added[source].append((neighbors[new], of[new]))
                rows[edge_type].append(drawn.indptr[1:] + sum(map(len, indices[edge_type])))
                indices[edge_type].append(local)
                assert drawn.edge_id is not None
                edges[edge_type].append(drawn.edge_id)
            for kind in kinds:
                new_nodes, new_trees = zip(*added[kind], strict=True) if added[kind] else ((), ())
                nodes[kind].append(_joined(new_nodes))
                trees[kind].append(_joined(new_trees))
                counts[kind].append(len(keys[kind]) - before[kind])
        return {
            "nodes": {kind: _joined(parts) for kind, parts in nodes.items()},
            "indptr": {t: torch.cat(parts) for t, parts in rows.items()},
            "indices": {t: _joined(parts, torch.int32) for t, parts in indices.items()},
            "num_sampled_nodes": {kind: tuple(numbers) for kind, numbers in counts.items()},
            "num_sampled_edges": {t: tuple(len(part) for part in parts) for t, parts in indices.items()},
            "edge_id": {t: _joined(parts) for t, parts in edges.items()},
            "tree": {kind: _joined(parts) for kind, parts in trees.items()} if self.trees else None,
        }

    def _trees(
        self, seeds: Mapping[str, Tensor], times: Mapping[str, Tensor] | None
    ) -> tuple[dict[str, list[Tensor]], Tensor | None]:
        """The tree of every seed, counted through all node types (0 for all where trees are not disjoint), and each tree's time."""
        trees, first = {}, 0
        for kind, ids in seeds.items():
            trees[kind] = [torch.arange(first, first + len(ids)) if self.trees else torch.zeros(len(ids), dtype=torch.int64)]
            first += len(ids)
        return trees, None if times is None else torch.cat([times[kind] for kind in seeds])

    def _keys(self, kind: str, nodes: Tensor, trees: Tensor) -> Tensor:
        """One number for a node in a tree."""
        return trees * self.graph.num_nodes[kind] + nodes if self.trees else nodes


def _square(relation: Relation, *, timed: bool) -> Graph:
    """The rows of a relation as a graph over as many nodes as the larger side has. Rows past the targets are empty."""
    empty = max(relation.num_src - relation.num_dst, 0)
    indptr = torch.cat([relation.indptr, relation.indptr[-1:].expand(empty)])
    own = relation.edge_id if relation.edge_id is not None else torch.arange(relation.num_edges)
    time = relation.time if timed else None
    graph = Graph(indptr, relation.indices, weight=relation.weight, time=time, edge_id=own)
    return graph if graph.time is None else graph.sorted_by_time()


def _joined(parts: Any, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.cat(list(parts)) if len(parts) else torch.empty(0, dtype=dtype)
