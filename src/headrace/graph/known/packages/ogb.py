"""Node datasets of the Open Graph Benchmark (Hu et al., NeurIPS 2020), as its package `ogb` unpacks them."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headrace.graph.dataset import Dataset
from headrace.graph.graph import Graph
from headrace.graph.known.packages.tables import Array, read_numbers
from headrace.graph.typed import join_types

PREFIXES = ("ogbn-", "ogbl-", "ogbg-")
_BOTH_WAYS = ("ogbn-products", "ogbn-proteins")  # each edge is listed once, and meant in both directions
_SPLITS = {"train": "train", "val": "valid", "test": "test"}


def fetch(name: str) -> str:
    """The line that fetches a dataset."""
    return f"python -c \"from ogb.nodeproppred import NodePropPredDataset; NodePropPredDataset('{name}')\" (pip install ogb)"


def places() -> list[Path]:
    """Where the package puts datasets: the folder `dataset`, here; and those above."""
    here = Path.cwd()
    return [above / "dataset" for above in (here, *here.parents)]


def folders(name: str) -> list[str]:
    """What the folder of a dataset may be called."""
    plain = name.replace("-", "_")
    return [plain, f"{plain}_pyg", f"{plain}_dgl"]


def read(name: str, folder: Path) -> Dataset:
    """The dataset in a folder that `ogb` has unpacked."""
    if not name.startswith("ogbn-"):
        raise ValueError(
            f"{name}: of OGB's datasets those for nodes (ogbn-) are read; of others, Dataset.from_pyg takes PyG's object"
        )
    raw = folder / "raw"
    if (raw / "triplet-type-list.csv.gz").is_file():
        return _read_typed(folder)
    if (raw / "data.npz").is_file():
        with np.load(raw / "data.npz") as arrays:
            src, dst = arrays["edge_index"]
            nodes = int(np.sum(arrays["num_nodes_list"]))
            features = arrays["node_feat"] if "node_feat" in arrays.files else None
        with np.load(raw / "node-label.npz") as arrays:
            labels = arrays["node_label"].astype(np.float32)
        edge_features = None
    else:
        src, dst = read_numbers(raw / "edge.csv.gz").T
        nodes = int(read_numbers(raw / "num-node-list.csv.gz").sum())
        features = _optional(raw / "node-feat.csv.gz")
        edge_features = _optional(raw / "edge-feat.csv.gz")
        labels = read_numbers(raw / "node-label.csv.gz", np.float32)
    graph = Graph.from_edges(src, dst, nodes, undirected=name in _BOTH_WAYS, edge_id=None if edge_features is None else True)
    return Dataset(
        graph,
        x=None if features is None else torch.from_numpy(features.astype(np.float32, copy=False)),
        y=_labels(labels),
        splits=_splits(folder, ""),
        extra={} if edge_features is None else {"edge_features": torch.from_numpy(edge_features)},
    )


def _read_typed(folder: Path) -> Dataset:
    raw = folder / "raw"
    relations = sorted(place.name.split("___") for place in (raw / "relations").iterdir())
    edges = {}
    for source, name, target in relations:
        src, dst = read_numbers(raw / "relations" / f"{source}___{name}___{target}" / "edge.csv.gz").T
        edges[source, name, target] = (torch.from_numpy(src.copy()), torch.from_numpy(dst.copy()))
    kinds = sorted({kind for source, _, target in relations for kind in (source, target)})
    counts = _counts(raw / "num-node-dict.csv.gz")
    labeled = [place.name for place in (raw / "node-label").iterdir()]
    features = {kind: rows for kind in kinds if (rows := _optional(raw / "node-feat" / kind / "node-feat.csv.gz")) is not None}
    return join_types(
        {kind: counts[kind] for kind in kinds},
        edges,
        x={kind: torch.from_numpy(rows) for kind, rows in features.items()},
        y={kind: _labels(read_numbers(raw / "node-label" / kind / "node-label.csv.gz", np.float32)) for kind in labeled},
        splits={kind: _splits(folder, kind) for kind in labeled},
        undirected=True,
    )


def _counts(path: Path) -> dict[str, int]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        names, numbers = (line.strip().split(",") for line in file.read().splitlines()[:2])
    return {name: int(number) for name, number in zip(names, numbers, strict=True)}


def _optional(path: Path) -> Array | None:
    return read_numbers(path, np.float32) if path.is_file() else None


def _labels(labels: Array) -> Tensor:
    """Class numbers, -1 for none; of several labels, whether each holds.  # [n, 1] or [n, labels]"""
    if labels.shape[1] > 1:
        return torch.from_numpy(labels > 0)
    return torch.from_numpy(np.where(np.isnan(labels[:, 0]), -1, labels[:, 0]).astype(np.int64))


def _splits(folder: Path, kind: str) -> dict[str, Tensor]:
    ways = sorted(place for place in (folder / "split").glob("*") if place.is_dir())
    if not ways:
        raise FileNotFoundError(f"{folder / 'split'} holds no split: the folder is not complete")
    return {name: torch.from_numpy(read_numbers(ways[0] / kind / f"{file}.csv.gz").flatten()) for name, file in _SPLITS.items()}
