"""`Classes`: the class of each node at the next snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.nn import Cell
from headrace.snapshots import Group
from headrace.train.measure import Measure
from headrace.train.recipe import Progress
from headrace.train.snapshots.heads.head import AT_A_TIME, RowsOf, Told
from headrace.train.snapshots.model import SnapshotModel
from headrace.train.snapshots.options import SnapshotOptions
from headrace.train.snapshots.windows import Windows


class Classes:
    """Cross entropy over the nodes whose class is known, a group at a time."""

    measures = (Measure("accuracy", format=".2%"),)
    fixed_shapes = True

    def __init__(self, windows: Windows, options: SnapshotOptions) -> None:
        self.windows, self.options, self.epoch = windows, options, 0

    def make_model(self, cell: Cell) -> nn.Module:
        options, classes = self.options, self.windows.classes
        return SnapshotModel(cell, window=options.window * classes, horizon=options.horizon * classes, skip=options.skip)

    def losses(self, model: nn.Module, rows: Tensor, groups: Sequence[Group], nodes: Tensor | None = None) -> Tensor:
        return self.losses_of(model, rows, self.told(groups), nodes)

    def told(self, groups: Sequence[Group]) -> Told:
        return self.windows.history(list(groups)), *self.windows.targets(list(groups))

    def losses_of(self, model: nn.Module, rows: Tensor, told: Told, nodes: Tensor | None = None) -> Tensor:
        history, values, counts = told
        total = counts.sum((1, 2)).clamp_min(1.0)
        if nodes is not None:
            history, values, counts = (part.index_select(1, nodes) for part in (history, values, counts))
        each = F.cross_entropy(self._scores(model, rows, history).movedim(-1, 1), values, reduction="none")
        losses: Tensor = (each * counts).sum((1, 2)) / total
        return losses

    def _scores(self, model: nn.Module, rows: Tensor, history: Tensor) -> Tensor:  # -> [groups, nodes, horizon, classes]
        made: Tensor = model(rows, history)
        return made.view(*made.shape[:2], self.options.horizon, self.windows.classes)

    def figures(self, model: nn.Module, split: str, rows_of: RowsOf, progress: Progress) -> dict[str, Any]:
        groups, parts = self.windows.groups[split], []
        for begin in range(0, len(groups), AT_A_TIME):
            part = groups[begin : begin + AT_A_TIME]
            parts.append(self._scores(model, rows_of(part), self.windows.history(part)).argmax(3))
            progress(min(begin + AT_A_TIME, len(groups)), len(groups))
        return self._measured(torch.cat(parts), groups)

    def _measured(self, chosen: Tensor, groups: list[Group]) -> dict[str, float]:
        values, counts = self.windows.targets(groups)
        return {"accuracy": float(((chosen == values) * counts).sum() / counts.sum().clamp_min(1.0))}

    def baselines(self, split: str = "test") -> dict[str, dict[str, float]]:
        groups, windows = self.windows.groups[split], self.windows
        if not groups:
            return {}
        values, counts = windows.targets(windows.groups["train"])
        often = torch.bincount(values[counts > 0], minlength=windows.classes).argmax()
        shape = len(groups), windows.y.shape[1], windows.horizon
        last = torch.stack([windows.y[group.first + group.window - 1] for group in groups])[:, :, None]
        return {
            "most frequent class": self._measured(often.expand(shape), groups),
            "last class": self._measured(last.expand(shape), groups),
        }

    def forecast(self, model: nn.Module, split: str, rows_of: RowsOf) -> dict[str, Any] | None:
        return None
