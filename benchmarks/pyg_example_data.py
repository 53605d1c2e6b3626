"""Datasets for `pyg_examples.py`, under the names that PyG's examples import: of their form, made here or read from HEADRACE_DATA.

Labels and links follow from the graph, so that a model that learns scores well above chance, and one that does not, does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

import headrace as hr


class _Dataset:
    """What the examples ask of a dataset: one graph and its sizes."""

    def __init__(self, data: Any, transform: Any = None, *, classes: int = 0) -> None:
        self.data, self.num_classes = data if transform is None else transform(data), classes

    def __getitem__(self, index: int) -> Any:
        return self.data

    @property
    def num_features(self) -> int:
        return int(self.data.num_features)

    num_node_features = num_features


class Reddit(_Dataset):
    """Communities of nodes with noisy features."""

    def __init__(self, path: str) -> None:
        made = hr.generate.community(nodes=20_000, edges=800_000, classes=20, features=64, seed=1)
        data = made.to_pyg()
        super().__init__(data, classes=made.num_classes)


class Planetoid(_Dataset):
    """Cora, from HEADRACE_DATA."""

    def __init__(self, path: str, name: str, transform: Any = None) -> None:
        cora = hr.load(name.lower())
        super().__init__(cora.to_pyg(), transform, classes=cora.num_classes)


class OGB_MAG(_Dataset):  # noqa: N801 - PyG's name
    """Papers with authors, fields and institutions; a paper's class is that of most of its fields."""

    def __init__(self, path: str = "", root: str = "", preprocess: str = "", transform: Any = None) -> None:
        generator = np.random.default_rng(0)
        papers, authors, institutions, fields, classes, width = 20_000, 10_000, 300, 1000, 20, 64
        data, label = HeteroData(), generator.integers(0, classes, papers)
        counts = {"author": authors, "institution": institutions, "field_of_study": fields}
        kind = {name: generator.integers(0, classes, count) for name, count in counts.items()} | {"paper": label}
        centers = generator.normal(size=(classes, width))
        for name, of in kind.items():
            noise = generator.normal(size=(len(of), width)) * (6 if name == "paper" else 2)
            data[name].x = torch.from_numpy(centers[of] + noise).float()
        data["paper"].y = torch.from_numpy(label)
        part = torch.from_numpy(generator.random(papers))
        data["paper"].train_mask, data["paper"].val_mask = part < 0.6, (part >= 0.6) & (part < 0.8)
        links = {
            ("author", "writes", "paper"): 60_000,
            ("author", "affiliated_with", "institution"): 12_000,
            ("paper", "has_topic", "field_of_study"): 80_000,
            ("paper", "cites", "paper"): 80_000,
        }
        for (source, name, target), count in links.items():
            data[source, name, target].edge_index = _alike(generator, kind[source], kind[target], count)
        super().__init__(data, transform, classes=classes)


class MovieLens(_Dataset):
    """Users who rate movies of their taste higher, in time."""

    def __init__(self, path: str, model_name: str = "") -> None:
        generator = np.random.default_rng(0)
        users, movies, count, tastes = 300, 1000, 10_000, 8
        taste, genre = generator.integers(0, tastes, users), generator.integers(0, tastes, movies)
        edge_index = _alike(generator, taste, genre, count)
        count = edge_index.shape[1]
        agree = torch.from_numpy((taste[edge_index[0]] == genre[edge_index[1]]).astype(np.int64))
        data = HeteroData()
        data["user"].num_nodes = users
        data["movie"].x = torch.from_numpy(np.eye(tastes)[genre] + generator.normal(size=(movies, tastes)) * 0.5).float()
        data["user", "rates", "movie"].edge_index = edge_index
        data["user", "rates", "movie"].edge_label = 2 + 2 * agree + torch.from_numpy(generator.integers(0, 2, count))
        data["user", "rates", "movie"].time = torch.from_numpy(generator.permutation(count) + 1)
        super().__init__(data)


class MIPSKNNIndex:
    """The k rows with the largest products, all of them looked at: PyG's needs faiss."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def search(self, queries: Tensor, k: int, exclude: Any) -> Any:
        """Scores and positions of the best, without the pairs in `exclude`."""
        scores = queries @ self.rows.t()
        scores[exclude[0], exclude[1]] = -float("inf")
        return scores.topk(k, dim=1)


def _alike(generator: Any, source: Any, target: Any, count: int) -> Tensor:
    """Edges of which half go between nodes of one kind."""
    src = generator.integers(0, len(source), count)
    dst = generator.integers(0, len(target), count)
    by_kind = {kind: np.flatnonzero(target == kind) for kind in np.unique(target)}
    for edge in np.flatnonzero(generator.random(count) < 0.5):
        if len(members := by_kind.get(source[src[edge]], [])):
            dst[edge] = members[generator.integers(0, len(members))]
    return torch.from_numpy(np.unique(np.stack([src, dst]), axis=1))


__all__ = ["OGB_MAG", "Data", "MIPSKNNIndex", "MovieLens", "Planetoid", "Reddit"]
