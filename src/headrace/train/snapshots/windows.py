"""Windows of a sequence of snapshots: which groups train, validate and test, scaled inputs and targets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.graph import Snapshots
from headrace.snapshots import Group
from headrace.train.snapshots.heads.activity import Activity
from headrace.train.snapshots.options import SnapshotOptions

Predict = Literal["values", "classes", "links"]


@dataclass(frozen=True, eq=False)
class Windows:
    """Groups of each split, with features and targets scaled by the training snapshots' mean and deviation.

    All targets of a group are within one split. Its snapshots are too, or (history all) may come before it.
    """

    snapshots: Snapshots  # with scaled features
    y: Tensor  # scaled; classes as they are; of links, as many targets as the next snapshot has edges  # [T, num_nodes]
    mask: Tensor | None  # [T, num_nodes]
    groups: dict[str, list[Group]]
    horizon: int
    mean: float = 0.0
    deviation: float = 1.0
    predict: Predict = "values"
    classes: int = 0
    ends: dict[str, tuple[int, int]] = field(default_factory=dict)  # the snapshots of each split
    host: Snapshots | None = None  # where `snapshots` are on a GPU: what they are copies of

    @classmethod
    def of(cls, snapshots: Snapshots, options: SnapshotOptions) -> Windows:
        predict = predicted(snapshots, options)
        x = Activity(snapshots).counts if predict == "links" and snapshots.x is None else snapshots.x
        if x is None:
            raise ValueError("these snapshots have no features: give x")
        for at, rows in enumerate(x):
            if not bool(rows.isfinite().all()):
                node = int((~rows.isfinite()).any(1).nonzero()[0])
                raise ValueError(
                    f"features are not finite at snapshot {at}, row {node}: mend them, or Snapshots.of(..., missing='mask')"
                )
        ends = _parts(len(snapshots), options)
        groups = {name: _groups(name, *ends[name], options, len(snapshots)) for name in ends}
        trained = ends["train"][1]
        rows = torch.cat(list(x[:trained]))
        center, spread = rows.mean(0), rows.std(0).clamp_min(1e-8)
        scaled = snapshots.with_rows([(part - center) / spread for part in x])
        if predict == "links":
            y = torch.tensor(snapshots.num_edges)[:, None]
            return cls(scaled, y, None, groups, 1, predict=predict, ends=ends)
        assert snapshots.y is not None
        y, mask = snapshots.y, snapshots.mask
        if predict == "classes":
            known = y >= 0
            mask = known if mask is None else mask & known
            y = y.long().clamp_min(0)
        _check_targets(mask, groups, options)
        if predict == "classes":
            classes = int(y.max()) + 1
            return cls(scaled, y, mask, groups, options.horizon, predict=predict, classes=classes, ends=ends)
        seen = y[:trained] if mask is None else y[:trained][mask[:trained]]
        if not bool(y.isfinite().all()):
            at, node = (int(i) for i in (~y.isfinite()).nonzero()[0])
            raise ValueError(f"the target is not finite at snapshot {at}, node {node}: mend it, or leave it out by mask")
        mean, deviation = float(seen.mean()), float(seen.std().clamp_min(1e-8))
        return cls(scaled, (y - mean) / deviation, mask, groups, options.horizon, mean, deviation, ends=ends)

    def to(self, device: torch.device) -> Windows:
        """The same windows on a device."""
        if device.type == "cpu":
            return self
        mask = None if self.mask is None else self.mask.to(device)
        return replace(self, snapshots=self.snapshots.to(device), y=self.y.to(device), mask=mask, host=self.snapshots)

    @property
    def topology(self) -> Snapshots:
        """Snapshots whose graphs are in host memory, for what looks at edges one by one."""
        return self.snapshots if self.host is None else self.host

    def history(self, groups: list[Group]) -> Tensor:  # -> [groups, num_nodes, window], or [..., window * classes]
        """What is known of the targets at the snapshots of each group."""
        known = torch.stack([self.y[group.first : group.first + group.window].t() for group in groups])
        return F.one_hot(known, self.classes).flatten(2).float() if self.predict == "classes" else known

    def targets(self, groups: list[Group]) -> tuple[Tensor, Tensor]:  # -> [groups, num_nodes, horizon] each
        """What comes after each group, and which of it counts."""
        spans = [slice(group.first + group.window, group.first + group.window + self.horizon) for group in groups]
        values = torch.stack([self.y[span].t() for span in spans])
        if self.mask is None:
            return values, torch.ones_like(values, dtype=torch.float32)
        return values, torch.stack([self.mask[span].t().float() for span in spans])


def predicted(snapshots: Snapshots, options: SnapshotOptions) -> Predict:
    """What is forecast: as the options say, or as the snapshots have it."""
    if options.predict != "auto":
        predict: Predict = options.predict
    elif snapshots.y is None:
        predict = "links" if snapshots.x is None else "values"
    else:
        predict = "values" if snapshots.y.is_floating_point() else "classes"
    if predict == "links":
        if options.horizon != 1:
            raise ValueError(f"links are forecast for the next snapshot: horizon must be 1, not {options.horizon}")
        return predict
    if snapshots.y is None:
        raise ValueError("these snapshots have no targets: give y, what is to be forecast at each time, or predict links")
    if predict == "classes" and snapshots.y.is_floating_point():
        raise ValueError(f"classes must be integers, and y is {snapshots.y.dtype}: pass y.long(), or predict values")
    return predict


def _parts(steps: int, options: SnapshotOptions) -> dict[str, tuple[int, int]]:
    """The first snapshot of each split, and that after its last."""
    reach = options.window + options.horizon
    if reach > steps:
        raise ValueError(
            f"window {options.window} and horizon {options.horizon} take {reach} snapshots, and there are {steps}: shorten them"
        )
    test, val = round(options.test * steps), round(options.val * steps)
    return {"train": (0, steps - test - val), "val": (steps - test - val, steps - test), "test": (steps - test, steps)}


def _groups(name: str, begin: int, end: int, options: SnapshotOptions, steps: int) -> list[Group]:
    reach = options.window + options.horizon
    first = begin if options.history == "part" else max(begin - options.window, 0)
    groups = [Group(at, options.window) for at in range(first, end - reach + 1, options.stride if name == "train" else 1)]
    if not groups and (name == "train" or end > begin):
        raise ValueError(
            f"the {name} part has {end - begin} of {steps} snapshots, too few for window {options.window} and horizon "
            f"{options.horizon}: change window, horizon, val or test"
        )
    return groups


def _check_targets(mask: Tensor | None, groups: dict[str, list[Group]], options: SnapshotOptions) -> None:
    for name, own in groups.items():
        if mask is not None and own:
            last = own[-1]
            begin, end = own[0].first + own[0].window, last.first + last.window + options.horizon
            if not bool(mask[begin:end].any()):
                raise ValueError(f"all targets of the {name} part are missing (snapshots {begin} to {end - 1}): change val or test")
