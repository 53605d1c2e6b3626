"""NetworkX graphs as datasets."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from headrace.graph.dataset import Dataset
from headrace.graph.graph import Graph
from headrace.graph.reorder.move import TemporaryPath

_SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


def from_networkx(
    graph: Any, *, features: Sequence[str] | str = (), label: str | None = None, split: str | None = None, weight: str | None = None
) -> Dataset:
    """The dataset of a NetworkX graph; see `Dataset.from_networkx`."""
    if not hasattr(graph, "nodes") or not hasattr(graph, "edges") or not hasattr(graph, "is_directed"):
        raise TypeError(f"from_networkx takes a graph of NetworkX, not a {type(graph).__name__}")
    rows = dict(graph.nodes(data=True))
    place = {node: number for number, node in enumerate(rows)}
    names = [features] if isinstance(features, str) else list(features)
    pairs, weights = [], []
    for source, target, values in graph.edges(data=True):
        pairs.append((place[source], place[target]))
        if weight is not None:
            weights.append(_number(values, weight, f"the edge from {source!r} to {target!r}"))
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    built = Graph.from_edges(
        ends[:, 0],
        ends[:, 1],
        len(rows),
        weight=torch.tensor(weights) if weight is not None else None,
        edge_id=True,
        undirected=not graph.is_directed(),
    )
    y, classes = (None, []) if label is None else _labels(rows, label)
    return Dataset(
        built,
        x=_features(rows, names) if names else None,
        y=y,
        splits={} if split is None else _splits(rows, split),
        info={"class_names": classes, "num_classes": len(classes)} if classes else {},
        id_map=_id_map(list(rows)),
    )


def _features(rows: dict[Hashable, Any], names: Sequence[str]) -> Tensor:
    values = []
    for node, attributes in rows.items():
        if missing := [name for name in names if name not in attributes]:
            raise ValueError(f"node {node!r} has no attribute {missing[0]!r}: give it to all nodes, or leave it out of features")
        values.append(np.concatenate([np.atleast_1d(np.asarray(attributes[name], np.float32)) for name in names]))
        if len(values[-1]) != len(values[0]):
            raise ValueError(f"node {node!r} has {len(values[-1])} features, and the first node has {len(values[0])}")
    return torch.from_numpy(np.stack(values)) if values else torch.empty(0, len(names))


def _labels(rows: dict[Hashable, Any], label: str) -> tuple[Tensor, list[str]]:
    """Class numbers, -1 for nodes without, and names of classes where labels are no whole numbers."""
    known = [attributes.get(label) for attributes in rows.values()]
    if all(value is None for value in known):
        raise ValueError(f"no node has an attribute {label!r}: label must name the one that holds the class")
    if all(value is None or (isinstance(value, int) and not isinstance(value, bool)) for value in known):
        return torch.tensor([-1 if value is None else value for value in known]), []
    names = sorted({str(value) for value in known if value is not None})
    number = {name: at for at, name in enumerate(names)}
    return torch.tensor([-1 if value is None else number[str(value)] for value in known]), names


def _splits(rows: dict[Hashable, Any], split: str) -> dict[str, Tensor]:
    ids: dict[str, list[int]] = {}
    for number, (node, attributes) in enumerate(rows.items()):
        word = attributes.get(split)
        if word is None:
            continue
        if str(word).lower() not in _SPLITS:
            raise ValueError(f"node {node!r} has {split} {word!r}: it must be train, val or test")
        ids.setdefault(_SPLITS[str(word).lower()], []).append(number)
    if not ids:
        raise ValueError(f"no node has an attribute {split!r}: split must name the one that says train, val or test")
    return {name: torch.tensor(ids[name]) for name in ("train", "val", "test") if name in ids}


def _number(values: dict[str, Any], name: str, whose: str) -> float:
    try:
        return float(values[name])
    except KeyError:
        raise ValueError(f"{whose} has no attribute {name!r}: give it to all edges, or leave out weight") from None
    except (TypeError, ValueError):
        raise ValueError(f"{whose} has {name} {values[name]!r}, which is no number") from None


def _id_map(nodes: list[Any]) -> TemporaryPath | None:
    """What the nodes are called, in a temporary file; None where they are 0, 1, 2 and so on."""
    if nodes == list(range(len(nodes))):
        return None
    whole = all(isinstance(node, int) and not isinstance(node, bool) and -(2**63) <= node < 2**63 for node in nodes)
    names = pa.array(nodes, pa.int64()) if whole else pa.array([str(node) for node in nodes], pa.string())
    path = TemporaryPath.create(prefix="headrace-ids-", suffix=".parquet")
    pq.write_table(pa.table({"node": pa.array(range(len(nodes)), pa.int64()), "id": names}), path)
    return path
