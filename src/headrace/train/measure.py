"""`Measure`: a figure that says how good a model is, which way is better, and how it is written."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Measure:
    """A named figure. `format` is Python's: `.4f` for a number, `.2%` for a share.

    >>> from headrace.train import Measure
    >>> Measure("accuracy", format=".2%").shown(0.8125), Measure("loss", better="lower").shown(0.5)
    ('81.25 %', '0.5000')
    """

    name: str
    better: Literal["higher", "lower"] = "higher"
    format: str = ".4f"

    def __post_init__(self) -> None:
        if self.better not in ("higher", "lower"):
            raise ValueError(f"measure {self.name}: better must be 'higher' or 'lower', not {self.better!r}")
        format(0.0, self.format)  # ValueError if it is none

    def shown(self, value: float) -> str:
        """The value as it is written for people."""
        return format(value, self.format).replace("%", " %")

    def plain(self) -> dict[str, str]:
        """The measure as `options.json` writes it."""
        return asdict(self)


class Spread(float):
    """The mean of a measure over repeats: a number, with the `values` it is the mean of, and their deviation `std`.

    >>> from headrace.train.measure import Spread
    >>> accuracy = Spread([0.80, 0.82])
    >>> print(f"{accuracy:.2%}", accuracy, len(accuracy.values))
    81.00% 0.8100 ± 0.0141 2
    """

    values: tuple[float, ...]

    def __new__(cls, values: Sequence[float]) -> Spread:
        self = super().__new__(cls, statistics.fmean(values))
        self.values = tuple(values)
        return self

    @property
    def std(self) -> float:
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    def plain(self) -> dict[str, Any]:
        """The spread as `result.json` writes it."""
        return {"mean": float(self), "std": self.std, "values": list(self.values)}

    def __str__(self) -> str:
        return f"{float(self):.4f}" + (f" ± {self.std:.4f}" if len(self.values) > 1 else "")


def spreads(measures: Sequence[Measure], ends: Sequence[Mapping[str, Any]]) -> dict[str, Spread]:
    """`test_accuracy` and the like over the repeats that end with these lines, where a split and its measure are known."""
    names = [f"{split}_{measure.name}" for measure in measures for split in ("test", "val", "train")]
    values = {name: [end[name] for end in ends if end.get(name) is not None] for name in names}
    return {name: Spread(known) for name, known in values.items() if known}


def is_better(measures: Sequence[Measure], scores: Mapping[str, float], best: Mapping[str, float] | None) -> bool:
    """Whether `scores` beat `best`: by the first measure, and where that is equal by the next."""
    if best is None:
        return True
    for measure in measures:
        if measure.name in scores and scores[measure.name] != best.get(measure.name):
            sign = 1 if measure.better == "higher" else -1
            return sign * scores[measure.name] > sign * best.get(measure.name, -sign * float("inf"))
    return False


def split_scores(measures: Sequence[Measure], splits: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any]:
    """`test_accuracy` and the like for every split and measure; a split with more to say than its measures stays whole, too."""
    names = [measure.name for measure in measures]
    line: dict[str, Any] = {f"{split}_{name}": None if s is None else s.get(name) for split, s in splits.items() for name in names}
    return line | {split: scores for split, scores in splits.items() if scores is not None and set(scores) - set(names)}


def auc(scores: Tensor, true: Tensor) -> float | None:
    """The share of pairs of a true and another example in which the true one scores higher; ties count a half.  # [n], [n] bool

    None where all or none are true.
    """
    trues = int(true.sum())
    others = len(true) - trues
    if not trues or not others:
        return None
    _, place, count = scores.unique(return_inverse=True, return_counts=True)  # in rising order
    rank = count.cumsum(0).double() - (count - 1) / 2  # from 1, the mean of those that are equal
    return (float(rank[place[true]].sum()) - trues * (trues + 1) / 2) / (trues * others)


def average_precision(scores: Tensor, true: Tensor) -> float | None:
    """The mean, over the true examples, of the share of true ones among all that score as high or higher.  # [n], [n] bool

    None where none are true.
    """
    if not bool(true.any()):
        return None
    _, place, count = (-scores).unique(return_inverse=True, return_counts=True)  # the highest first
    trues = torch.bincount(place[true], minlength=len(count)).double()
    return float((trues * trues.cumsum(0) / count.cumsum(0)).sum() / trues.sum())
