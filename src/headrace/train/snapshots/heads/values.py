"""`Values`: numbers of nodes at the next snapshots. Errors are in the unit of the targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headrace.nn import Cell
from headrace.snapshots import Group
from headrace.train.measure import Measure
from headrace.train.recipe import Progress
from headrace.train.snapshots.baselines import baselines, errors, linear_weights
from headrace.train.snapshots.heads.head import AT_A_TIME, RowsOf, Told
from headrace.train.snapshots.model import SnapshotModel
from headrace.train.snapshots.options import SnapshotOptions
from headrace.train.snapshots.windows import Windows

_POINTS = 400  # snapshots of a split whose forecast is kept for the report


class Values:
    """Mean squared error over the nodes that count, a group at a time."""

    measures = (Measure("mse", better="lower"), Measure("rmse", better="lower"), Measure("mae", better="lower"))
    fixed_shapes = True

    def __init__(self, windows: Windows, options: SnapshotOptions) -> None:
        self.windows, self.options, self.epoch = windows, options, 0

    def make_model(self, cell: Cell) -> nn.Module:
        options = self.options
        model = SnapshotModel(cell, window=options.window, horizon=options.horizon, skip=options.skip)
        if options.skip:
            model.begin_linear(linear_weights(self.windows))
        return model

    def losses(self, model: nn.Module, rows: Tensor, groups: Sequence[Group], nodes: Tensor | None = None) -> Tensor:
        return self.losses_of(model, rows, self.told(groups), nodes)

    def told(self, groups: Sequence[Group]) -> Told:
        return self.windows.history(list(groups)), *self.windows.targets(list(groups))

    def losses_of(self, model: nn.Module, rows: Tensor, told: Told, nodes: Tensor | None = None) -> Tensor:
        history, values, counts = told
        total = counts.sum((1, 2)).clamp_min(1.0)
        if nodes is not None:
            history, values, counts = (part.index_select(1, nodes) for part in (history, values, counts))
        losses: Tensor = ((model(rows, history) - values).square() * counts).sum((1, 2)) / total
        return losses

    def figures(self, model: nn.Module, split: str, rows_of: RowsOf, progress: Progress) -> dict[str, Any]:
        groups, windows = self.windows.groups[split], self.windows
        forecast = self._forecast(model, groups, rows_of, progress)
        return errors(forecast, *windows.targets(groups), windows.deviation)

    def _forecast(self, model: nn.Module, groups: list[Group], rows_of: RowsOf, progress: Progress) -> Tensor:
        parts = []
        for begin in range(0, len(groups), AT_A_TIME):
            part = groups[begin : begin + AT_A_TIME]
            parts.append(model(rows_of(part), self.windows.history(part)))
            progress(min(begin + AT_A_TIME, len(groups)), len(groups))
        return torch.cat(parts)

    def baselines(self, split: str = "test") -> dict[str, dict[str, float]]:
        return baselines(self.windows, split)

    def forecast(self, model: nn.Module, split: str, rows_of: RowsOf) -> dict[str, Any] | None:
        windows, groups = self.windows, self.windows.groups[split][-_POINTS:]
        if not groups:
            return None
        made = self._forecast(model, groups, rows_of, lambda done, whole: None)[:, :, 0]
        values, counts = (part[:, :, 0] for part in windows.targets(groups))
        off = ((made - values).square() * counts).sum(0)
        known = (counts.sum(0) > 0).nonzero().flatten()
        order = known[off[known].argsort(stable=True)]
        chosen = dict.fromkeys(int(order[place]) for place in (0, len(order) // 2, len(order) - 1))
        share = counts / counts.sum(1, keepdim=True).clamp_min(1.0)
        lines = [("mean of all nodes", (values * share).sum(1), (made * share).sum(1))]
        lines += [(f"node {node}", values[:, node], made[:, node]) for node in chosen]
        return {
            "split": split,
            "snapshots": [group.first + group.window for group in groups],
            "lines": [{"name": name, "truth": self._plain(true), "forecast": self._plain(own)} for name, true, own in lines],
        }

    def _plain(self, values: Tensor) -> list[float]:
        return [float(f"{value:.5g}") for value in (values * self.windows.deviation + self.windows.mean).tolist()]
