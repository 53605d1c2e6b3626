"""Windows of a sequence of snapshots: which groups train, validate and test, scaled inputs and targets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.graph import Snapshots
from headrace.snapshots import Group
from headrace.train.snapshots.options import SnapshotOptions


@dataclass(frozen=True, eq=False)
class Windows:
    """Groups of each split, with features and targets scaled by the training snapshots' mean and deviation.

    All snapshots of a group and its targets are within one split.
    """

    snapshots: Snapshots  # with scaled features
    y: Tensor  # scaled  # [T, num_nodes]
    mask: Tensor | None  # [T, num_nodes]
    groups: dict[str, list[Group]]
    horizon: int
    mean: float
    deviation: float

    @classmethod
    def of(cls, snapshots: Snapshots, options: SnapshotOptions) -> Windows:
        if snapshots.y is None:
            raise ValueError("these snapshots have no targets: give y, what is to be forecast at each time")
        if snapshots.x is None:
            raise ValueError("these snapshots have no features: give x")
        for at, rows in enumerate(snapshots.x):
            if not bool(rows.isfinite().all()):
                node = int((~rows.isfinite()).any(1).nonzero()[0])
                raise ValueError(
                    f"features are not finite at snapshot {at}, row {node}: mend them, or Snapshots.of(..., missing='mask')"
                )
        steps, reach = len(snapshots), options.window + options.horizon
        if reach > steps:
            raise ValueError(
                f"window {options.window} and horizon {options.horizon} take {reach} snapshots, and there are {steps}: shorten them"
            )
        test = round(options.test * steps)
        val = round(options.val * steps)
        ends = {"train": (0, steps - test - val), "val": (steps - test - val, steps - test), "test": (steps - test, steps)}
        groups = {}
        for name, (begin, end) in ends.items():
            stride = options.stride if name == "train" else 1
            groups[name] = [Group(first, options.window) for first in range(begin, end - reach + 1, stride)]
            if not groups[name] and (name == "train" or end > begin):
                raise ValueError(
                    f"the {name} part has {end - begin} of {steps} snapshots, too few for window {options.window} and horizon "
                    f"{options.horizon}: change window, horizon, val or test"
                )
        trained = ends["train"][1]
        y = snapshots.y
        seen = y[:trained] if snapshots.mask is None else y[:trained][snapshots.mask[:trained]]
        mean, deviation = float(seen.mean()), float(seen.std().clamp_min(1e-8))
        rows = torch.cat(snapshots.x[:trained])
        center, spread = rows.mean(0), rows.std(0).clamp_min(1e-8)
        scaled = snapshots.with_rows([(part - center) / spread for part in snapshots.x])
        return cls(scaled, (y - mean) / deviation, snapshots.mask, groups, options.horizon, mean, deviation)

    def history(self, groups: list[Group]) -> Tensor:  # -> [groups, num_nodes, window]
        """What is known of the targets at the snapshots of each group."""
        return torch.stack([self.y[group.first : group.first + group.window].t() for group in groups])

    def targets(self, groups: list[Group]) -> tuple[Tensor, Tensor]:  # -> [groups, num_nodes, horizon] each
        """What comes after each group, and which of it counts."""
        spans = [slice(group.first + group.window, group.first + group.window + self.horizon) for group in groups]
        values = torch.stack([self.y[span].t() for span in spans])
        counts = torch.ones_like(values) if self.mask is None else torch.stack([self.mask[span].t().to(values) for span in spans])
        return values, counts
