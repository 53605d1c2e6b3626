"""`Scaling`: how features are scaled before a model sees them, where that was asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from headrace.graph import Dataset

_PIECE = 1 << 22  # numbers that are looked at together


@dataclass(frozen=True, eq=False)
class Scaling:
    """Scales rows: each to sum to one (`rows`), or each column to mean 0 and deviation 1 over all nodes (`standardize`).

    Means and deviations are those of the data that was trained on, whatever data a model is used on later: a run keeps them.

    >>> import torch
    >>> Scaling("rows")(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
    tensor([[0.2500, 0.7500],
            [0.0000, 0.0000]])
    >>> x = torch.tensor([[1.0, 7.0], [3.0, 7.0]])
    >>> Scaling.of("standardize", x)(x)
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """

    kind: Literal["rows", "standardize"]
    mean: Tensor | None = None  # [d]
    deviation: Tensor | None = None  # [d], 1 where a column is constant

    @classmethod
    def of(cls, kind: Literal["as_is", "rows", "standardize"], x: Tensor) -> Scaling | None:  # [n, d]
        """The scaling that is called `kind`, for these features; None for `as_is`."""
        if kind == "as_is":
            return None
        if kind == "rows":
            return cls(kind)
        pieces = x.split(max(1, _PIECE // max(x.shape[1], 1)))
        count = max(len(x), 1)
        mean = sum((piece.double().sum(dim=0) for piece in pieces), torch.zeros(x.shape[1], dtype=torch.float64)) / count
        square = sum(((piece.double() - mean).square_().sum(dim=0) for piece in pieces), torch.zeros_like(mean)) / count
        deviation = square.sqrt_()
        # Of a constant column the rounding of the mean is all that is left.
        constant = deviation <= 1e-12 * mean.abs()
        return cls(kind, mean.float(), deviation.masked_fill_(constant, 1.0).float())

    def __call__(self, rows: Tensor) -> Tensor:  # [n, d] -> [n, d]
        if self.kind == "rows":
            return rows / rows.sum(dim=1, keepdim=True).clamp_min(1e-12)
        assert self.mean is not None
        assert self.deviation is not None
        return ((rows.float() - self.mean) / self.deviation).to(rows.dtype)

    def statistics(self) -> dict[str, Any]:
        """What `options.json` has to keep of it."""
        if self.mean is None or self.deviation is None:
            return {}
        return {"scaling": {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()}}

    @classmethod
    def of_run(cls, header: dict[str, Any]) -> Scaling | None:
        """How the run with this `options.json` scaled features."""
        kind = header["options"]["features"]
        if kind == "as_is":
            return None
        return cls(kind, **{name: torch.tensor(numbers) for name, numbers in header.get("scaling", {}).items()})

    def __str__(self) -> str:
        return {
            "rows": "each node's features are scaled to sum to one",
            "standardize": "each feature is shifted and scaled to mean 0 and deviation 1 over all nodes",
        }[self.kind]


def scaled(data: Dataset, scaling: Scaling | None) -> Dataset:
    """The dataset with scaled features; itself where they stay as they are."""
    return data if scaling is None or data.x is None else replace(data, x=scaling(data.x))
