"""`StoredData`: a dataset with its features on disk, as the storages of node classification want it.

Features stay in the file that they are mapped from, or a file is written for the run: scaled, or in the order it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace.graph import Dataset
from headrace.store import FileRows
from headrace.train.fit import Setup
from headrace.train.inference.layerwise.tables import ScratchTable, filled
from headrace.train.nodes.checks import check_pieces, check_rows
from headrace.train.nodes.features import Scaling
from headrace.train.nodes.options import NodeOptions
from headrace.train.nodes.storage.disk import DiskRecipe
from headrace.train.nodes.storage.resident import ResidentRecipe, training_first

_PIECE = 4 << 20  # bytes of rows looked at or written at a time


@dataclass(frozen=True, eq=False)
class StoredData:
    """A dataset whose `x` has a shape and a type but takes no memory: its rows are in the file `features`."""

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
            **setup.shared,
        )


def stored_data(data: Dataset, options: NodeOptions, scaling: Scaling | None, out: Path | None) -> StoredData:
    """`data` for the storage that the options name: checked, scaled, and for "resident" with the training nodes first."""
    assert data.x is not None
    more: dict[str, Any] = {"scaling": scaling, "folder": out}
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


def features_on_disk(data: Dataset, *, scaling: Scaling | None, order: Tensor | None = None, folder: Path | None) -> FileRows:
    """The features of `data` as rows of a file, after a check that they are finite.

    Those that are mapped from a file (`headrace.open` does so) are read from there. A file near `folder` is written for those that
    are in memory, that are to be scaled, or that are wanted in another `order`: row i is then that of node `order[i]`.
    """
    assert data.x is not None
    x = data.x
    source = FileRows.of_tensor(x)
    rows = max(1, _PIECE // max(x[:1].nbytes, 1))
    if source is not None and scaling is None and order is None:
        check_pieces(lambda begin, end, step: source.gather(torch.arange(begin, end, step)), x, rows=rows)
        return source
    read: Callable[[Tensor], Tensor] = source.gather if source is not None else lambda ids: x.index_select(0, ids)

    def pieces() -> Iterator[Tensor]:
        for begin in range(0, len(x), rows):
            ids = torch.arange(begin, min(begin + rows, len(x))) if order is None else order[begin : begin + rows]
            piece = read(ids)
            check_rows(piece, begin)
            yield piece if scaling is None else scaling(piece)

    return filled(ScratchTable(len(x), x.shape[1], x.dtype, folder=folder), pieces())
