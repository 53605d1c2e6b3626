"""Datasets with types of nodes and edges: one graph over all nodes, type after type, and each edge a triple of its type.

`info["node_types"]` and `info["edge_types"]` name the types, `extra["node_type"]` says which type a node is of, and
`extra["triples"]` has (source, number of the edge type, target) of every edge. `info["feature_columns"]` says which columns of
`x` hold the features of a type, and `info["target"]` which type has labels. So everything that trains on a graph, or on
triples, trains on one with types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headrace.graph.dataset import Dataset
from headrace.graph.graph import Graph
from headrace.graph.hetero import EdgeType, HeteroGraph, check_edge_type


def feature_columns(widths: Mapping[str, int]) -> dict[str, slice]:
    """Which columns of the features each type of nodes has to itself, so that a first layer has weights for each type.

    A type without features has one column, which is 1. There are no columns where no type has features.

    >>> feature_columns({"author": 0, "paper": 2})
    {'author': slice(0, 1, None), 'paper': slice(1, 3, None)}
    """
    if not any(widths.values()):
        return {}
    columns: dict[str, slice] = {}
    begin = 0
    for kind, width in widths.items():
        columns[kind] = slice(begin, begin + max(width, 1))
        begin = columns[kind].stop
    return columns


def join_types(
    num_nodes: Mapping[str, int],
    edges: Mapping[EdgeType, tuple[Tensor, Tensor]],
    *,
    x: Mapping[str, Tensor] | None = None,
    y: Mapping[str, Tensor] | None = None,
    splits: Mapping[str, Mapping[str, Tensor]] | None = None,
    undirected: bool = False,
) -> Dataset:
    """One dataset of several types. `x` are features of types, `y` the labels of one, `splits` ids or masks of its nodes.

    >>> import torch
    >>> pairs = (torch.tensor([0, 1, 1]), torch.tensor([0, 0, 2]))
    >>> data = join_types({"author": 2, "paper": 3}, {("author", "writes", "paper"): pairs}, x={"paper": torch.ones(3, 2)})
    >>> data.x.tolist()
    [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]
    >>> typed_graph(data)
    HeteroGraph(author: 2, paper: 3; author-writes-paper: 3)
    """
    x, y, splits = x or {}, y or {}, splits or {}
    kinds, total = list(num_nodes), sum(num_nodes.values())
    first = {kind: sum(num_nodes[before] for before in kinds[:number]) for number, kind in enumerate(kinds)}
    triples = []
    for number, (edge_type, (src, dst)) in enumerate(edges.items()):
        source, _, target = check_edge_type(edge_type)
        for end, ids, kind in (("source", src, source), ("target", dst, target)):
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < num_nodes[kind]:
                raise ValueError(
                    f"a {end} of {edge_type} is not from 0 to {num_nodes[kind] - 1}: there are {num_nodes[kind]} nodes"
                )
        parts = (src.long() + first[source], torch.full((len(src),), number), dst.long() + first[target])
        triples.append(torch.stack(parts, dim=1))
    joined = torch.cat(triples) if triples else torch.empty(0, 3, dtype=torch.int64)
    if len(y) > 1:
        raise ValueError(f"nodes of the types {' and '.join(y)} have labels: choose one of them as target")
    labels, several = None, next(iter(y.values()), None)
    if several is not None:
        labels = torch.full((total, *several.shape[1:]), 0 if several.dim() == 2 else -1, dtype=several.dtype)
        (kind,) = y
        labels[first[kind] : first[kind] + num_nodes[kind]] = several
    columns = feature_columns({kind: x[kind].shape[1] if kind in x else 0 for kind in num_nodes})
    info = about_types(kinds, list(edges), columns, featured=list(x), target=next(iter(y), None))
    return Dataset(
        Graph.from_edges(joined[:, 0], joined[:, 2], total, edge_id=True, undirected=undirected),
        x=_features(x, num_nodes, first, columns),
        y=labels,
        splits={name: _ids(ids, first[kind]) for kind, named in splits.items() for name, ids in named.items()},
        extra={
            "node_type": torch.repeat_interleave(torch.arange(len(kinds)), torch.tensor(list(num_nodes.values()))).to(torch.int16),
            "triples": joined.to(torch.int32) if total <= torch.iinfo(torch.int32).max else joined,
        },
        info=info | {"num_relations": len(edges)},
    )


def about_types(
    kinds: Sequence[str], edges: Sequence[EdgeType], columns: Mapping[str, slice], *, featured: Sequence[str], target: str | None
) -> dict[str, object]:
    """What the `info` of a dataset says of its types; `featured` are those with features."""
    named = {kind: [part.start, part.stop] for kind, part in columns.items() if kind in featured}
    told: dict[str, object] = {"node_types": list(kinds), "edge_types": [list(kind) for kind in edges], "feature_columns": named}
    return told if target is None else told | {"target": target}


def _features(
    x: Mapping[str, Tensor], num_nodes: Mapping[str, int], first: Mapping[str, int], columns: Mapping[str, slice]
) -> Tensor | None:
    if not columns:
        return None
    joined = torch.zeros(sum(num_nodes.values()), max(part.stop for part in columns.values()))
    for kind, part in columns.items():
        joined[first[kind] : first[kind] + num_nodes[kind], part] = x[kind].float() if kind in x else 1.0
    return joined


def _ids(ids: Tensor, first: int) -> Tensor:
    return (ids.nonzero().flatten() if ids.dtype == torch.bool else ids.long()) + first


def node_types(data: Dataset) -> list[str]:
    """The types of the nodes of a dataset, in the order of their numbers; none where it has no types."""
    names: Any = data.info.get("node_types", [])
    return list(names) if "node_type" in data.extra else []


def nodes_of_type(data: Dataset, kind: str) -> Tensor:
    """The nodes of a type, in the order in which they are numbered within it."""
    return (data.extra["node_type"] == node_types(data).index(kind)).nonzero().flatten()


def numbers_in_types(data: Dataset) -> Tensor:
    """The number that each node has within its type.  # -> [nodes]"""
    numbers = torch.empty(data.num_nodes, dtype=torch.int64)
    for kind in node_types(data):
        nodes = nodes_of_type(data, kind)
        numbers[nodes] = torch.arange(len(nodes))
    return numbers


def typed_edges(data: Dataset) -> dict[EdgeType, tuple[Tensor, Tensor]]:
    """The edges of each type, with the ids that nodes have within their types."""
    names: Any = data.info["edge_types"]
    numbers, triples = numbers_in_types(data), data.extra["triples"].long()
    parts = {}
    for number, (source, name, target) in enumerate(names):
        chosen = triples[triples[:, 1] == number]
        parts[source, name, target] = (numbers[chosen[:, 0]], numbers[chosen[:, 2]])
    return parts


def typed_graph(data: Dataset) -> HeteroGraph:
    """The `HeteroGraph` of a dataset with types, as `sample.HeteroSampler` takes it; ids are those within types."""
    if not node_types(data):
        raise ValueError("this dataset has no types of nodes: import it with types, or use its graph")
    counts = {kind: len(nodes_of_type(data, kind)) for kind in node_types(data)}
    return HeteroGraph.from_edges(typed_edges(data), num_nodes=counts)
