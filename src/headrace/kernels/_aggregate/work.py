"""What is aggregated, as tensors of one device: the arguments of `aggregate`, and what its gradient has besides."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def sum_type(dtype: torch.dtype) -> torch.dtype:
    """The type that sums and scores of rows of this type are kept in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def row_share(indptr: Tensor, row_scale: Tensor | None, reduce: str, wide: torch.dtype) -> Tensor | None:
    """What the gradient of each row is multiplied by before anything else: row_scale, over the entries for a mean.  # -> [rows]"""
    if reduce != "mean":
        return row_scale
    share = indptr.diff().clamp_min(1).to(wide).reciprocal()
    return share if row_scale is None else share * row_scale


@dataclass(frozen=True, eq=False)
class Work:
    """out[v] = row_scale[v] * reduce over e in row v of weight[e] * scale[s] * x[ids[s]], s = indices[e].

    With `position` the weight is weight[position[e]]: of a transpose, where the entry stands in the graph itself. With `taken` an
    element counts only where taken[s] is position[e] - forward[s]: it is the one that a maximum over the graph itself took.
    """

    x: Tensor  # [n, d]
    indptr: Tensor  # [rows + 1]
    indices: Tensor  # [entries]
    weight: Tensor | None = None  # [entries]
    ids: Tensor | None = None  # [sources]
    scale: Tensor | None = None  # [sources]
    row_scale: Tensor | None = None  # [rows]
    reduce: str = "sum"
    position: Tensor | None = None  # [entries]
    taken: Tensor | None = None  # int32, [n, d]
    forward: Tensor | None = None  # [n + 1]

    @property
    def rows(self) -> int:
        return max(len(self.indptr) - 1, 0)

    @property
    def sources(self) -> int:
        return len(self.x) if self.ids is None else len(self.ids)

    @property
    def mean_degree(self) -> float:
        """As far as it shows without a look at the device: of a range of a graph's rows it is too large."""
        return len(self.indices) / max(self.rows, 1)
