"""`OwnRows`: nodes without features train on rows of their own, which are learned with the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.graph import Dataset
from headrace.nn import GNN


class OwnRows(nn.Module):
    """A `GNN` over a learned row per node, in place of features. It knows the nodes it was trained on, and no others.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=100, edges=600, classes=3, features=8)
    >>> model = OwnRows(hr.nn.GNN(16, 16, 3, layers=2), nodes=100, width=16)
    >>> model(hr.loader.WholeBatch(hr.Dataset(data.graph), 2)).shape
    torch.Size([100, 3])
    """

    def __init__(self, network: GNN, *, nodes: int, width: int) -> None:
        super().__init__()
        self.network = network
        self.rows = nn.Parameter(torch.empty(nodes, width))
        nn.init.normal_(self.rows, std=width**-0.5)

    @property
    def layers(self) -> nn.ModuleList:
        """The network's, which exact inference calls one after the other."""
        return self.network.layers

    def forward(self, batch: Any) -> Tensor:
        """A row per seed.  # -> [batch_size, out_channels]"""
        ids = batch.n_id
        whole = len(ids) == len(self.rows) and batch.batch_size == len(self.rows)
        rows = self.rows if whole else F.embedding(ids, self.rows)
        return cast(Tensor, self.network(_Rowed(batch, rows)))


@dataclass(frozen=True)
class _Rowed:
    """A batch with other features."""

    batch: Any
    x: Tensor
    table: None = None

    @property
    def blocks(self) -> Any:
        return self.batch.blocks

    @property
    def n_id(self) -> Tensor:
        return cast(Tensor, self.batch.n_id)

    @property
    def degree(self) -> Tensor:
        return cast(Tensor, self.batch.degree)


def with_rows_of(model: nn.Module, data: Dataset) -> Dataset:
    """The data with the rows that the model has learned as features; itself where it has features."""
    return replace(data, x=model.rows.detach()) if isinstance(model, OwnRows) else data
