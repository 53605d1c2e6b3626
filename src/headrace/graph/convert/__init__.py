"""Datasets from what other libraries call a graph, and back: PyG, NetworkX, SciPy, DGL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.graph.dataset import Dataset


def as_dataset(data: Any) -> Dataset:
    """`data` itself, or the dataset that a graph of PyG, NetworkX, SciPy or DGL is; a TypeError for anything else."""
    if isinstance(data, Dataset):
        return data
    module = type(data).__module__.partition(".")[0]
    makers: dict[str, Callable[[Any], Dataset]] = {
        "torch_geometric": Dataset.from_pyg,
        "networkx": Dataset.from_networkx,
        "scipy": Dataset.from_scipy,
        "dgl": Dataset.from_dgl,
    }
    if module not in makers:
        raise TypeError(
            f"data is a {type(data).__name__}: give a headrace Dataset (hr.open, hr.load, hr.Dataset), "
            "or a graph of PyG, NetworkX, SciPy or DGL"
        )
    return makers[module](data)
