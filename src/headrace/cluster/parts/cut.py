"""`cut`: one part of a dataset, in memory."""

from __future__ import annotations

import torch

from headrace.cluster.parts.own_edges import edge_positions, own_indptr
from headrace.cluster.parts.part import Part, part_of
from headrace.cluster.parts.share import EDGE_ARRAYS, own_splits
from headrace.cluster.parts.whole import describe
from headrace.graph import Dataset
from headrace.store import column_bounds, hash_owners


def cut(data: Dataset, number: int, *, parts: int, columns: bool = False) -> Part:
    """Part `number` as `partition` by "hash" would write it, held in memory: for ranks that can read the whole dataset.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=1000, edges=20_000, classes=4, features=16)
    >>> part = cut(data, 1, parts=4, columns=True)
    >>> part.columns, list(part.x.shape)
    ((4, 8), [1000, 4])
    """
    graph, owners = data.graph, hash_owners(data.num_nodes, parts)
    ids, own = owners.ids_of(number), torch.zeros(data.num_nodes, dtype=torch.bool)
    own[ids] = True
    arrays = {"indptr": own_indptr(graph.indptr, ids), **own_splits(data, own)}
    positions = torch.cat([torch.empty(0, dtype=torch.int64), *edge_positions(graph.indptr, ids, arrays["indptr"])])
    arrays |= {name: array[positions] for name in EDGE_ARRAYS if (array := getattr(graph, name)) is not None}
    if data.x is not None:
        begin, end = column_bounds(data.num_features, parts)[number] if columns else (0, data.num_features)
        arrays["x"] = data.x[:, begin:end].contiguous() if columns else data.x[ids]
    if data.y is not None:
        arrays["y"] = data.y[ids]
    return part_of(number, describe(data, owners, by="hash", columns=columns), owners, arrays)
