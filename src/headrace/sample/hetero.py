"""`HeteroSampler`: neighbors, hop by hop, where nodes and edges have types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids, as_times, first_outside, thread_count
from headrace.graph import EdgeType, HeteroGraph
from headrace.kernels import gather
from headrace.sample.hetero_rows import HeteroRows
from headrace.sample.neighbor import _STAMP_NODES
from headrace.sample.sample import Block
from headrace.sample.sampler import check_batch, check_seed
from headrace.store import BufferPool


@dataclass(frozen=True, eq=False)
class HeteroSample:
    """The sampled neighborhood of seeds of one or more types. Every node and edge type of the graph has its entry.

    `nodes` are global ids per node type: the seeds as given, then what each hop added. The edges of a type are one CSR over
    local ids, a row per expanded node of the target type; each hop's edges are a range of its rows.
    """

    nodes: dict[str, Tensor]  # int64
    indptr: dict[EdgeType, Tensor]  # int64, [expanded nodes of the target type + 1]
    indices: dict[EdgeType, Tensor]  # int32, [edges], local ids of the source type
    num_sampled_nodes: dict[str, tuple[int, ...]]  # seeds, then the nodes each hop added
    num_sampled_edges: dict[EdgeType, tuple[int, ...]]  # edges each hop drew
    edge_id: dict[EdgeType, Tensor] | None = None  # [edges], if asked for
    tree: dict[str, Tensor] | None = None  # [nodes], where every seed grows a tree of its own, counted through all node types

    @property
    def num_hops(self) -> int:
        return len(next(iter(self.num_sampled_nodes.values()), (0,))) - 1

    @cached_property
    def blocks(self) -> tuple[dict[EdgeType, Block], ...]:
        """One dictionary of blocks per hop, the seeds' first: a block's targets are the nodes of its target type found before
        that hop's draws, its sources those of its source type found with them."""
        blocks: list[dict[EdgeType, Block]] = []
        for hop in range(self.num_hops):
            by_type = {}
            for edge_type, indptr in self.indptr.items():
                targets = sum(self.num_sampled_nodes[edge_type[2]][: hop + 1])
                sources = sum(self.num_sampled_nodes[edge_type[0]][: hop + 2])
                edges = sum(self.num_sampled_edges[edge_type][: hop + 1])
                by_type[edge_type] = Block(indptr[: targets + 1], self.indices[edge_type][:edges], sources)
            blocks.append(by_type)
        return tuple(blocks)

    def edge_index(self, edge_type: EdgeType, *, out: Tensor | None = None) -> Tensor:
        """Local ids of the edges of one type as PyG writes them, hop by hop.  # -> [2, edges], int64"""
        indices = self.indices[edge_type]
        if out is None:
            out = torch.empty(2, indices.numel(), dtype=torch.int64)
        _native.expand_csr(self.indptr[edge_type], indices, out, 1)
        return out

    def __repr__(self) -> str:
        nodes = ", ".join(f"{kind}: {ids.numel()}" for kind, ids in self.nodes.items())
        return f"HeteroSample({nodes}, edges={sum(i.numel() for i in self.indices.values())})"


class HeteroSampler:
    """Samples up to `fanouts[edge_type][h]` in-neighbors, along every edge type, of every node that hop h - 1 added; -1 takes all.

    `fanouts` is one list for all edge types or a dictionary of lists of one length. Within a hop, edge types are visited in the
    order of `graph.edge_types`, and new nodes of a type stand in order of first appearance. Every draw is Philox of (seed, epoch,
    batch, hop, edge type, node, slot); with one node type and one edge type the sample is still not that of `NeighborSampler`,
    since the edge type is part of the counter.

    `weighted`, `disjoint`, `temporal` and `inclusive` mean what they mean for `NeighborSampler`, with the `weight` and `time` of
    each relation; edge types without them are drawn from uniformly, or at all times. Such samples are made row by row
    (`HeteroRows`), and their draws are others than those of plain ones.

    >>> import headrace as hr
    >>> graph = hr.HeteroGraph.from_edges({("author", "writes", "paper"): ([0, 1, 2], [0, 0, 1])})
    >>> sample = hr.sample.HeteroSampler(graph, [2]).sample({"paper": [0]})
    >>> sample.nodes["author"].tolist(), sample.num_sampled_nodes
    ([0, 1], {'author': (0, 2), 'paper': (1, 0)})
    """

    def __init__(
        self,
        graph: HeteroGraph,
        fanouts: Sequence[int] | Mapping[EdgeType, Sequence[int]],
        *,
        replace: bool = False,
        weighted: bool = False,
        disjoint: bool = False,
        temporal: Literal["uniform", "last"] | None = None,
        inclusive: bool = False,
        seed: int = 0,
        threads: int | None = None,
        pool: BufferPool | None = None,
        deduplicate_by: Literal["auto", "stamp", "hash"] = "auto",
    ) -> None:
        check_seed(seed)
        if deduplicate_by not in ("auto", "stamp", "hash"):
            raise ValueError(f"deduplicate_by must be 'auto', 'stamp' or 'hash', not {deduplicate_by!r}")
        self.graph, self.replace, self.seed = graph, replace, seed
        self.fanouts = fanouts_of(fanouts, graph.edge_types)
        self.threads = thread_count(threads)
        self.pool = pool if pool is not None else BufferPool(limit=256 << 20)
        self.disjoint, self.temporal = disjoint or temporal is not None, temporal
        self._by_row: HeteroRows | None = None
        if weighted or disjoint or temporal is not None:
            self._check(weighted)
            self._by_row = HeteroRows(
                graph,
                self.fanouts,
                replace=replace,
                weighted=weighted,
                disjoint=disjoint,
                temporal=temporal,
                inclusive=inclusive,
                seed=seed,
                threads=self.threads,
                pool=self.pool,
            )
        place = {kind: i for i, kind in enumerate(graph.node_types)}
        relations = graph.relations.values()
        self._native = _native.HeteroSampler(
            list(graph.num_nodes.values()),
            [r.indptr for r in relations],
            [r.indices for r in relations],
            source=[place[t[0]] for t in graph.edge_types],
            target=[place[t[2]] for t in graph.edge_types],
            fanouts=list(self.fanouts.values()),
            hops=len(next(iter(self.fanouts.values()), ())),
            replace=replace,
            hash=[deduplicate_by == "hash" or (deduplicate_by == "auto" and n > _STAMP_NODES) for n in graph.num_nodes.values()],
        )

    def _check(self, weighted: bool) -> None:
        """Refuse to sample by weights or times that no edge type has."""
        relations = self.graph.relations.values()
        if weighted and all(relation.weight is None for relation in relations):
            raise ValueError("no edge type of this graph has weights to draw by: give Relation.weight, or weighted=False")
        if self.temporal is not None and all(relation.time is None for relation in relations):
            raise ValueError("temporal sampling needs times: no edge type of this graph has Relation.time")

    def sample(
        self,
        seeds: Mapping[str, Any],
        epoch: int = 0,
        batch: int = 0,
        *,
        time: Mapping[str, Any] | None = None,
        edge_ids: bool = False,
        threads: int | None = None,
    ) -> HeteroSample:
        """The sample of `seeds`, ids per node type, as batch `batch` of epoch `epoch`. Safe to call from many threads at a time.

        `time` is that of every seed, per node type, for temporal sampling. `edge_ids` also returns, per edge, its id in its
        relation (see `Relation`).
        """
        check_batch(epoch, batch)
        graph, workers = self.graph, self.threads if threads is None else thread_count(threads)
        if unknown := [kind for kind in seeds if kind not in graph.num_nodes]:
            raise ValueError(f"seeds has the node types {unknown}, but the graph has only {graph.node_types}")
        ids = [self._checked(kind, seeds.get(kind, ())) for kind in graph.node_types]
        if (time is None) != (self.temporal is None):
            missing = "temporal sampling needs the time of every seed: give time="
            raise ValueError(missing if time is None else "time is for temporal sampling: set temporal='uniform' or 'last'")
        if self._by_row is not None:
            by_type = dict(zip(graph.node_types, ids, strict=True))
            times = None if time is None else self._times(by_type, time)
            fields = self._by_row.sample(by_type, times, epoch, batch, workers)
            return HeteroSample(**fields if edge_ids else fields | {"edge_id": None})
        nodes, indptr, indices, positions, node_counts, edge_counts = self._native.sample(
            ids, self.pool.native, seed=self.seed, epoch=epoch, batch=batch, positions=edge_ids, threads=workers
        )
        edge_id = None
        if positions is not None:
            edge_id = {t: self._own_ids(t, torch.from_numpy(p)) for t, p in zip(graph.edge_types, positions, strict=True)}
        return HeteroSample(
            {kind: torch.from_numpy(ids) for kind, ids in zip(graph.node_types, nodes, strict=True)},
            {t: torch.from_numpy(rows) for t, rows in zip(graph.edge_types, indptr, strict=True)},
            {t: torch.from_numpy(ids) for t, ids in zip(graph.edge_types, indices, strict=True)},
            {kind: tuple(counts) for kind, counts in zip(graph.node_types, node_counts, strict=True)},
            {t: tuple(counts) for t, counts in zip(graph.edge_types, edge_counts, strict=True)},
            edge_id,
        )

    def _times(self, seeds: Mapping[str, Tensor], time: Mapping[str, Any]) -> dict[str, Tensor]:
        """The time of every seed, after a check that each has one."""
        times = {kind: as_times(time.get(kind, torch.empty(0, dtype=torch.int64)), f"time[{kind!r}]") for kind in seeds}
        for kind, ids in seeds.items():
            if len(times[kind]) != len(ids):
                raise ValueError(f"time[{kind!r}] has {len(times[kind])} entries for {len(ids)} seeds")
        return times

    @property
    def workspace_bytes(self) -> int:
        """Memory kept between batches to find repeated nodes, over all threads that sample."""
        return self._native.workspace_bytes

    def _checked(self, kind: str, seeds: Any) -> Tensor:
        ids, count = as_ids(seeds, f"seeds[{kind!r}]", dtype=torch.int64), self.graph.num_nodes[kind]
        low, high = _native.id_range(ids, 1)
        if low < 0 or high >= count:
            at = first_outside(ids, 0, count)
            raise IndexError(f"seeds[{kind!r}][{at}] is {int(ids[at])}: the graph has {kind} nodes 0 to {count - 1}")
        return ids

    def _own_ids(self, edge_type: EdgeType, positions: Tensor) -> Tensor:
        own = self.graph.relations[edge_type].edge_id
        return positions if own is None else gather(own, positions, out=self.pool.empty(positions.shape, own.dtype), threads=1)


def fanouts_of(fanouts: Any, edge_types: Sequence[EdgeType]) -> dict[EdgeType, list[int]]:
    """Fanouts per edge type from one list for all, or from a dictionary with a list for each."""
    if isinstance(fanouts, Mapping):
        named = {tuple(k.split("__")) if isinstance(k, str) else tuple(k): v for k, v in fanouts.items()}
        if unknown := [t for t in named if t not in edge_types]:
            raise ValueError(f"fanouts names the edge types {unknown}, but the graph has only {list(edge_types)}")
        if missing := [t for t in edge_types if t not in named]:
            raise ValueError(f"fanouts has no entry for the edge types {missing}: [0, ...] samples none of them")
        by_type = {t: [int(k) for k in named[t]] for t in edge_types}
    else:
        by_type = {t: [int(k) for k in fanouts] for t in edge_types}
    lengths = {len(hops) for hops in by_type.values()}
    if len(lengths) > 1:
        raise ValueError(f"fanouts must have one number of hops for all edge types, not {sorted(lengths)}")
    for edge_type, hops in by_type.items():
        if not hops or len(hops) > 255 or min(hops) < -1:
            raise ValueError(f"fanouts must be one number per hop, each at least 0 or -1 for all; got {hops} for {edge_type}")
    return by_type
