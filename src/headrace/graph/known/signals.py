"""Signals over graphs as datasets keep them: the edges of each time, and what is missing of a signal."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from headrace._arrays import as_tensor

Missing = Literal["refuse", "mask"]


def as_rows(values: Any, name: str) -> Tensor:
    """Numbers as a model computes with them: float64, which numpy makes of them, becomes float32."""
    rows = as_tensor(np.stack([np.asarray(part) for part in values]) if isinstance(values, list) else values, name)
    return rows.float() if rows.dtype == torch.float64 else rows


def graphs_of(arrays: dict[str, Any], steps: int) -> list[tuple[Any, ...]]:
    """The edges of each snapshot: those of its range, or the same for all."""
    if "adj" in arrays:
        src, dst = np.nonzero(arrays["adj"])
        return [(src, dst, arrays["adj"][src, dst])] * steps
    src, dst = arrays["edge_index"]
    weight = arrays.get("edge_weight")
    ends = arrays.get("snapshot_ptr")
    if ends is None:
        return [(src, dst) if weight is None else (src, dst, weight)] * steps
    if len(ends) != steps + 1:
        raise ValueError(f"snapshot_ptr tells of {len(ends) - 1} snapshots, and the signal of {steps}")
    ranges = [slice(int(ends[t]), int(ends[t + 1])) for t in range(steps)]
    return [(src[r], dst[r]) if weight is None else (src[r], dst[r], weight[r]) for r in ranges]


def without_missing(x: Tensor, y: Tensor | None, missing: Missing) -> tuple[Tensor, Tensor | None, Tensor | None, dict[str, int]]:
    """Features and targets without NaN, which targets count, and how many are missing; ValueError where none may be."""
    if missing not in ("refuse", "mask"):
        raise ValueError(f"missing must be 'refuse' or 'mask', not {missing!r}")
    mask = None
    lacks = [part for part in (x, y) if part is not None and bool(part.isnan().any())]
    if not lacks:
        return x, y, None, {}
    if missing == "refuse":
        at, node = (int(i) for i in lacks[0].isnan().nonzero()[0, :2])
        raise ValueError(
            f"the signal is NaN at snapshot {at}, node {node} ({int(lacks[0].isnan().sum())} in all): "
            "mend it, or pass missing='mask' (--missing mask)"
        )
    counted = int(x.isnan().sum()) if y is None else int(y.isnan().sum())
    if y is not None:
        mask, y = ~y.isnan(), y.nan_to_num(0.0)
    return x.nan_to_num(0.0), y, mask, {"missing": counted}
