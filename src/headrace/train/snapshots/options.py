"""`SnapshotOptions`: what `headrace train snapshot` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.train.options import RunOptions, option


@dataclass(frozen=True)
class SnapshotOptions(RunOptions):
    """Options of `hr.train.snapshot`."""

    epochs: int = option(50, "passes over the training groups")
    lr: float = option(0.01, "learning rate")
    model: Literal["tgcn", "a3tgcn", "lrgcn", "gconvgru", "gclstm", "mpnnlstm", "wdgcn", "cdgcn", "evolvegcno", "evolvegcnh"] = (
        option("tgcn", "recurrent cell")
    )
    hidden: int = option(32, "width of a node's state")
    terms: int = option(2, "terms of Chebyshev filters (gconvgru, gclstm)")
    dropout: float = option(0.0, "share of values that are dropped (mpnnlstm)")
    window: int = option(12, "snapshots of a group")
    horizon: int = option(1, "snapshots that are forecast")
    predict: Literal["auto", "values", "classes", "links"] = option(
        "auto", "what is forecast (auto: links where there are neither features nor targets, classes where targets are integers)"
    )
    history: Literal["all", "part"] = option(
        "all", "windows of validation and testing may reach back before their part (all), or lie within it (part)"
    )
    negatives: int = option(1000, "nodes that the target of a link is compared with in training (links; 0: all)")
    groups: int = option(32, "groups of a step, over all ranks")
    stride: int = option(1, "snapshots from one group's begin to the next")
    stack: int = option(8, "groups that are one piece of work where they share a graph: ranks are dealt whole pieces")
    strategy: Literal["balanced", "equal", "sequential", "vertex", "snapshot"] = option(
        "balanced",
        "whole groups to ranks, by cost (balanced) or as many to each (equal), or all to one; or every group over all ranks, "
        "by rows (vertex) or by snapshots (snapshot), to compare with",
    )
    hoist: bool = option(True, "sums that read features alone come before the recurrent steps")
    keep: float = option(1024.0, "MiB for sums of features that are kept over windows and epochs (0: none)")
    overlap: bool = option(
        False,
        "one half of the groups sums over neighbors while the other multiplies: by two workers, which changes no result, or on two "
        "streams of a GPU, which changes its rounding",
    )
    programs: int = option(0, "programs of a sum at a time, so that products find room beside it (overlap on a GPU; 0: all)")
    capture: Literal["auto", "always", "never"] = option(
        "auto", "replay forward and backward as one CUDA graph (auto: where groups share a graph)"
    )
    skip: bool = option(
        True,
        "add a linear map of what came last (a node's values; counts of a pair and its target), shared by all; it begins fitted",
    )
    val: float = option(0.1, "share of the snapshots that is for validation, before those for testing")
    test: float = option(0.2, "share of the snapshots that is for testing: the last ones")
    every: float = option(0.0, "time unit of a snapshot, where the dataset is a list of events")
    missing: Literal["refuse", "mask"] = option(
        "refuse", "what is NaN in a dataset's signal: an error, or an input of 0 and a target that does not count"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(hidden=1, terms=1, window=1, horizon=1, groups=1, stride=1, stack=1)
        self._check_not_negative("programs", "keep", "every", "val", "test", "dropout", "negatives")
        if not self.val + self.test < 1:
            raise ValueError(f"val {self.val} and test {self.test} leave nothing to train on: they must add up to less than 1")
        if self.predict == "links" and self.horizon != 1:
            raise ValueError(f"links are forecast for the next snapshot: horizon must be 1, not {self.horizon}")
        if not self.dropout < 1:
            raise ValueError(f"dropout must be below 1, not {self.dropout}")
        if self.overlap and self.dropout:
            raise ValueError("overlap runs groups side by side, and dropout draws for one after the other: leave out one of them")
        if self.dropout and self.strategy in ("vertex", "snapshot"):
            raise ValueError(
                f"strategy {self.strategy} runs a group on several ranks, and dropout draws on one: leave out one of them"
            )
        on_cpu = self.device.partition(":")[0] == "cpu"
        if on_cpu and (self.programs or self.capture == "always"):
            raise ValueError("programs and capture say what a GPU does: they need device cuda")
        if not on_cpu and self.strategy in ("vertex", "snapshot"):
            raise ValueError(f"strategy {self.strategy} spreads a group over ranks, which are CPUs: a GPU takes whole groups")
        if self.accumulate not in (0, self.batches_per_step):
            raise ValueError(f"a step is of groups: set groups, not accumulate ({self.accumulate})")

    @property
    def batches_per_step(self) -> int:
        """Pieces of work in a step."""
        return -(-self.groups // self.stack)
