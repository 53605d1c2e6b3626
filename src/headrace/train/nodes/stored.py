"""`StoredData`: a dataset with its features on disk, as the storages of node classification want it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headrace.graph import Dataset
from headrace.store import FileRows
from headrace.train.fit import Setup
from headrace.train.nodes.disk import DiskRecipe
from headrace.train.nodes.features import features_on_disk
from headrace.train.nodes.options import NodeOptions
from headrace.train.nodes.resident import ResidentRecipe, training_first


@dataclass(frozen=True, eq=False)
class StoredData:
    """A dataset whose `x` has a shape and a type but takes no memory: its rows are those of `features`."""

    data: Dataset
    features: FileRows

    def recipe(self, model: nn.Module, setup: Setup) -> DiskRecipe:
        kind: type[DiskRecipe] = ResidentRecipe if setup.options.storage == "resident" else DiskRecipe
        return kind(
            self.data,
            model,
            setup.options,
            setup.trace,
            features=self.features,
            folder=setup.folder,
            ranks=setup.ranks,
            accumulate=setup.accumulate,
        )


def stored_data(data: Dataset, options: NodeOptions, out: Path | None) -> StoredData:
    """`data` for the storage that the options name: checked, scaled, and for "resident" with the training nodes first."""
    assert data.x is not None
    more: dict[str, Any] = {"scaled": options.features == "rows", "folder": out}
    if options.storage == "resident":
        order = training_first(data.splits["train"], data.num_nodes, seed=options.seed)
        features = features_on_disk(data, order=order, **more)
        plain = Dataset(data.graph, y=data.y, splits=dict(data.splits), info=dict(data.info))
        moved = plain.reorder(order, threads=options.threads)
    else:
        features = features_on_disk(data, **more)
        moved = data
    shape = torch.empty(1, dtype=data.x.dtype).expand(data.x.shape)  # one number, whatever the shape
    return StoredData(replace(moved, x=shape), features)
