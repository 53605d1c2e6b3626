"""SciPy's sparse matrices and DGL's graphs as datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.graph.dataset import Dataset
from headrace.graph.graph import Graph
from headrace.graph.typed import join_types

_SPLITS = ("train", "val", "test")


def from_scipy(matrix: Any, *, x: Any = None, y: Any = None, splits: dict[str, Any] | None = None) -> Dataset:
    """The dataset of a sparse matrix; see `Dataset.from_scipy`."""
    if not hasattr(matrix, "tocoo"):
        raise TypeError(f"from_scipy takes a sparse matrix of SciPy, not a {type(matrix).__name__}")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"the matrix has shape {list(matrix.shape)}: an adjacency matrix has a row and a column for each node")
    entries = matrix.tocoo()
    values = np.asarray(entries.data)
    if values.dtype.kind not in "biuf" or not np.isfinite(values).all():
        raise ValueError(f"the matrix holds {values.dtype} that are no finite numbers: they cannot be weights of edges")
    kept = values != 0
    weight = None if bool((values[kept] == 1).all()) else values[kept].astype(np.float32)
    src, dst = (np.asarray(ids)[kept].astype(np.int64) for ids in (entries.row, entries.col))
    rows = None if x is None else x.toarray() if hasattr(x, "toarray") else x
    return Dataset(
        Graph.from_edges(src, dst, matrix.shape[0], weight=weight, edge_id=True),
        x=None if rows is None else torch.as_tensor(np.asarray(rows, np.float32)),
        y=None if y is None else torch.as_tensor(np.asarray(y)),
        splits={name: torch.as_tensor(np.asarray(ids)) for name, ids in (splits or {}).items()},
    )


def from_dgl(graph: Any, *, x: str = "feat", y: str = "label") -> Dataset:
    """The dataset of a DGL graph; see `Dataset.from_dgl`."""
    if not hasattr(graph, "canonical_etypes") or not hasattr(graph, "ntypes"):
        raise TypeError(f"from_dgl takes a graph of DGL, not a {type(graph).__name__}")
    if len(graph.ntypes) == 1 and len(graph.canonical_etypes) == 1:
        src, dst = (ids.cpu() for ids in graph.edges())
        rows, edge_rows = graph.ndata, graph.edata
        extra = {"edge_features": edge_rows[x].cpu().reshape(len(src), -1)} if x in edge_rows else {}
        splits, masks = _splits(rows)
        weight = edge_rows["weight"].cpu().flatten() if "weight" in edge_rows else None
        built = Graph.from_edges(src, dst, graph.num_nodes(), weight=weight, edge_id=True)
        return Dataset(built, x=_rows(rows, x), y=_labels(rows, y), splits=splits, extra=extra | masks)
    counts = {kind: graph.num_nodes(kind) for kind in graph.ntypes}
    edges = {kind: tuple(ids.cpu() for ids in graph.edges(etype=kind)) for kind in graph.canonical_etypes}
    named = {kind: graph.nodes[kind].data for kind in graph.ntypes}
    labeled = [kind for kind in graph.ntypes if y in named[kind]]
    labels = {kind: of for kind in labeled if (of := _labels(named[kind], y)) is not None}
    features = {kind: of for kind in graph.ntypes if (of := _rows(named[kind], x)) is not None}
    splits_of = {kind: _splits(named[kind])[0] for kind in labeled}
    return join_types(counts, edges, x=features, y=labels, splits=splits_of)


def _rows(rows: Any, name: str) -> Tensor | None:
    if name not in rows:
        return None
    values: Tensor = rows[name].cpu()
    return values.reshape(len(values), -1).float()


def _labels(rows: Any, name: str) -> Tensor | None:
    if name not in rows:
        return None
    values: Tensor = rows[name].cpu()
    return values.squeeze(1) if values.dim() == 2 and values.shape[1] == 1 else values


def _splits(rows: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    splits, masks = {}, {}
    for name in _SPLITS:
        if f"{name}_mask" in rows:
            mask = rows[f"{name}_mask"].cpu().bool()
            if mask.dim() == 2:
                masks[f"{name}_masks"] = mask.T.contiguous()
                mask = mask[:, 0]
            splits[name] = mask.nonzero().flatten()
    return splits, masks
