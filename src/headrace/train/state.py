"""`State`: where a run stands, and what the scores of its epochs decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headrace.train.measure import Measure, is_better
from headrace.train.steps.sums import Sums


@dataclass
class State:
    """Where a run stands. With the weights, the optimizer and the recipe's state it is all that the rest of the run depends on."""

    epoch: int = 0
    batch: int = 0  # batches of the epoch that are done
    step: int = 0  # batches of all epochs that are done
    seconds: float = 0.0
    train_seconds: float = 0.0  # of whole epochs, without validation
    best: dict[str, float] | None = None  # values of the measures
    last: dict[str, float] | None = None
    best_epoch: int = -1
    stale: int = 0  # validations since the best
    stopped: bool = False  # by patience
    sums: Sums = field(default_factory=Sums)  # of the epoch so far

    @classmethod
    def load(cls, saved: dict[str, Any]) -> State:
        """From `asdict` of a state, as a checkpoint has it."""
        return cls(**{**saved, "sums": Sums(**saved["sums"])})

    def judge(self, measures: Sequence[Measure], scores: dict[str, Any], patience: int) -> bool:
        """Take the scores of an epoch; whether they are the best so far. Without a better one, `patience` ends some time."""
        self.last = {m.name: float(scores[m.name]) for m in measures if m.name in scores}
        if is_better(measures, self.last, self.best):
            self.best, self.best_epoch, self.stale = self.last, self.epoch, 0
            return True
        self.stale += 1
        self.stopped = self._is_over(patience)
        return False

    def goes_further(self, epochs: int, patience: int) -> bool:
        """Whether a run that ended here has more to do by these options."""
        return self.epoch < epochs and not self._is_over(patience)

    def still_improves(self, validate_every: int) -> bool:
        """At the end of a run: whether the last epoch was the best of several that were validated."""
        return not self.stopped and 0 < validate_every < self.epoch and self.best_epoch == self.epoch - 1

    def _is_over(self, patience: int) -> bool:
        return bool(patience) and self.stale >= patience


_CHUNK = 1 << 24  # numbers that are looked at together: what they are compared to takes memory


def first_not_finite(weights: Mapping[str, Tensor]) -> str | None:
    """The name of the first weights that hold NaN or infinity; None where all are finite."""
    looks = [_all_finite(values) for values in weights.values()]
    finite = torch.stack([look.to(looks[0].device) for look in looks]).tolist() if looks else []  # a GPU is waited for once
    return next((name for name, is_finite in zip(weights, finite, strict=True) if not is_finite), None)


def _all_finite(values: Tensor) -> Tensor:  # -> []
    parts = values.detach().reshape(-1).split(_CHUNK) if values.numel() > _CHUNK else (values.detach(),)
    return torch.stack([torch.isfinite(part).all() for part in parts]).all()
