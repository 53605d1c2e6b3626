"""`HeteroGraph`: nodes and edges of several types, one rectangular CSR per edge type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids, first_outside, thread_count

EdgeType = tuple[str, str, str]  # source node type, what the edge says, target node type


@dataclass(frozen=True, eq=False)
class Relation:
    """The edges of one type in compressed rows: row v, a node of the target type, lists nodes of the source type.

    What is optional stands in the order of `indices`. `edge_id` is each edge's position in the list it came from; without it the
    position in `indices` itself is the id. `weight` and `time` are for sampling by them.
    """

    indptr: Tensor  # int64, [num_dst + 1]
    indices: Tensor  # int32 while ids of either type fit, else int64; [num_edges]
    num_src: int
    edge_id: Tensor | None = None
    weight: Tensor | None = None
    time: Tensor | None = None

    @property
    def num_dst(self) -> int:
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.indices.numel()

    @property
    def nbytes(self) -> int:
        arrays = (self.indptr, self.indices, self.edge_id, self.weight, self.time)
        return sum(a.nbytes for a in arrays if a is not None)

    def edge_index(self) -> Tensor:
        """The edges as PyG writes them, sources above targets, in row order.  # -> [2, num_edges]"""
        out = torch.empty(2, self.num_edges, dtype=torch.int64)
        _native.expand_csr(self.indptr, self.indices, out, thread_count(None))
        return out

    @classmethod
    def from_edges(cls, src: Any, dst: Any, *, num_src: int, num_dst: int, name: str, threads: int | None = None) -> Relation:
        """The rows of edges `src[i] -> dst[i]`, in the order of the edges; `name` is for errors."""
        source, target = as_ids(src, f"sources of {name}"), as_ids(dst, f"targets of {name}")
        if len(source) != len(target):
            raise ValueError(f"{name} has {len(source)} sources and {len(target)} targets: they must have one length")
        if source.dtype != target.dtype:
            source, target = source.long(), target.long()
        workers = thread_count(threads)
        for end, ids, count in (("source", source, num_src), ("target", target, num_dst)):
            low, high = _native.id_range(ids, workers)
            if low < 0 or high >= count:
                at = first_outside(ids, 0, count)
                raise ValueError(f"edge {at} of {name} has {end} {int(ids[at])}: there are {count} nodes of its type")
        nodes = max(num_src, num_dst)
        indptr, indices, where = _native.build_csr(
            source,
            target,
            nodes,
            wide_index=nodes > torch.iinfo(torch.int32).max,
            undirected=False,
            deduplicate=False,
            self_loops="keep",
            positions=True,
            threads=workers,
        )
        rows = torch.from_numpy(indptr)
        if num_dst < nodes:  # rows past the targets are empty
            rows = rows[: num_dst + 1].clone()
        return cls(rows, torch.from_numpy(indices), num_src, torch.from_numpy(where))

    def __repr__(self) -> str:
        return f"Relation({self.num_src} -> {self.num_dst}, num_edges={self.num_edges})"


class HeteroGraph:
    """Node counts per type, and the edges of every edge type. Never changed.

    Node types and edge types keep the order in which they are given: samplers visit edge types in it.

    >>> import headrace as hr
    >>> graph = hr.HeteroGraph.from_edges(
    ...     {("author", "writes", "paper"): ([0, 1, 1], [0, 0, 2]), ("paper", "cites", "paper"): ([0, 1], [1, 2])},
    ...     num_nodes={"author": 2, "paper": 3},
    ... )
    >>> graph
    HeteroGraph(author: 2, paper: 3; author-writes-paper: 3, paper-cites-paper: 2)
    """

    __slots__ = ("__weakref__", "num_nodes", "relations")

    def __init__(self, num_nodes: Mapping[str, int], relations: Mapping[EdgeType, Relation]) -> None:
        self.num_nodes = dict(num_nodes)
        self.relations = dict(relations)
        for kind, count in self.num_nodes.items():
            if count < 0:
                raise ValueError(f"num_nodes[{kind!r}] must not be negative, but is {count}")
        for edge_type, relation in self.relations.items():
            source, _, target = check_edge_type(edge_type)
            for kind in (source, target):
                if kind not in self.num_nodes:
                    raise ValueError(f"{edge_type} names the node type {kind!r}, but num_nodes has only {list(self.num_nodes)}")
            wanted = (self.num_nodes[source], self.num_nodes[target])
            if (relation.num_src, relation.num_dst) != wanted:
                raise ValueError(
                    f"{edge_type} goes from {relation.num_src} to {relation.num_dst} nodes, not {wanted[0]} to {wanted[1]}"
                )

    @classmethod
    def from_edges(
        cls, edges: Mapping[EdgeType, Any], *, num_nodes: Mapping[str, int] | None = None, threads: int | None = None
    ) -> HeteroGraph:
        """Build from `{(source type, name, target type): (src, dst)}`; a tensor [2, edges] serves as such a pair.

        Without `num_nodes` a type has as many nodes as its largest id says, types in order of first mention.
        """
        pairs = {check_edge_type(edge_type): _pair(edge_type, ends) for edge_type, ends in edges.items()}
        counts = dict(num_nodes) if num_nodes is not None else {}
        if num_nodes is None:
            for (source, _, target), ends in pairs.items():
                for kind, ids in zip((source, target), ends, strict=True):
                    counts[kind] = max(counts.get(kind, 0), _native.id_range(ids, 1)[1] + 1)
        relations = {}
        for edge_type, (src, dst) in pairs.items():
            source, _, target = edge_type
            for kind in (source, target):
                if kind not in counts:
                    raise ValueError(f"{edge_type} names the node type {kind!r}, but num_nodes has only {list(counts)}")
            relations[edge_type] = Relation.from_edges(
                src, dst, num_src=counts[source], num_dst=counts[target], name="-".join(edge_type), threads=threads
            )
        return cls(counts, relations)

    @classmethod
    def from_pyg(cls, data: Any, *, threads: int | None = None) -> HeteroGraph:
        """The graph of a PyG `HeteroData` (the `edge_index` or `adj_t` of each edge type), keeping the ids of its edges."""
        counts = {}
        for kind in data.node_types:
            counts[kind] = data[kind].num_nodes
            if counts[kind] is None:
                raise ValueError(f"how many nodes of type {kind!r} there are is not known: set data[{kind!r}].num_nodes")
        relations = {}
        for edge_type in data.edge_types:
            for kind in (edge_type[0], edge_type[2]):
                if kind not in counts:
                    raise ValueError(f"{edge_type} names the node type {kind!r}, which data has not: set data[{kind!r}].num_nodes")
            store, sizes = data[edge_type], {"num_src": counts[edge_type[0]], "num_dst": counts[edge_type[2]]}
            if "edge_index" in store:
                src, dst = store.edge_index
                relations[edge_type] = Relation.from_edges(src, dst, **sizes, name="-".join(edge_type), threads=threads)
            elif "adj_t" in store:
                relations[edge_type] = _from_sparse(store.adj_t, sizes["num_src"])
            else:
                raise ValueError(f"the edges {edge_type} have neither edge_index nor adj_t: there is nothing to sample from")
        graph = cls(counts, relations)
        graph.validate(threads=threads)
        return graph

    @property
    def node_types(self) -> list[str]:
        return list(self.num_nodes)

    @property
    def edge_types(self) -> list[EdgeType]:
        return list(self.relations)

    @property
    def num_edges(self) -> int:
        return sum(r.num_edges for r in self.relations.values())

    @property
    def nbytes(self) -> int:
        return sum(r.nbytes for r in self.relations.values())

    def validate(self, *, threads: int | None = None) -> None:
        """Raise ValueError unless every row lies within its `indices` and every index names a node of the source type."""
        for edge_type, relation in self.relations.items():
            try:
                _native.check_csr(relation.indptr, relation.indices, relation.num_src, thread_count(threads))
            except ValueError as error:
                raise ValueError(f"the edges {edge_type} are not valid: {error}") from None

    def __repr__(self) -> str:
        nodes = ", ".join(f"{kind}: {count}" for kind, count in self.num_nodes.items())
        edges = ", ".join(f"{'-'.join(t)}: {r.num_edges}" for t, r in self.relations.items())
        return f"HeteroGraph({nodes}; {edges})"


def check_edge_type(edge_type: Any) -> EdgeType:
    """`given` as an edge type, or an error that says what one is."""
    if not isinstance(edge_type, tuple) or len(edge_type) != 3 or not all(isinstance(part, str) for part in edge_type):
        raise ValueError(f"an edge type is a tuple (source type, name, target type) of strings, not {edge_type!r}")
    return edge_type


def _from_sparse(adjacency: Any, num_src: int) -> Relation:
    if hasattr(adjacency, "csr"):  # torch_sparse
        indptr, indices, _ = adjacency.csr()
    else:
        indptr, indices = adjacency.crow_indices(), adjacency.col_indices()
    return Relation(as_ids(indptr, "adj_t", dtype=torch.int64), as_ids(indices, "adj_t"), num_src)


def _pair(edge_type: Any, ends: Any) -> tuple[Tensor, Tensor]:
    if len(ends) != 2:
        raise ValueError(f"the edges of {edge_type} must be a pair (src, dst) or a tensor [2, edges], not of length {len(ends)}")
    return as_ids(ends[0], f"sources of {edge_type}"), as_ids(ends[1], f"targets of {edge_type}")
