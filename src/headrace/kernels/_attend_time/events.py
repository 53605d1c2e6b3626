"""What attention over events reads: every pass over the entries takes the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Events:
    """The arguments of `attend_time`, checked, contiguous and in the type of `x`."""

    query: Tensor  # [heads, rows, columns]
    indptr: Tensor  # [rows + 1]
    indices: Tensor  # [entries]
    dt: Tensor  # [entries]
    x: Tensor  # [n, d]
    time_weight: Tensor  # [times]
    time_bias: Tensor  # [times]
    edge_x: Tensor | None  # [entries, edge columns], or [edges, edge columns] with edge_id
    edge_id: Tensor | None  # [entries]
    slope: float
    dropout: float
    seed: int | Tensor

    @property
    def named(self) -> dict[str, Tensor | None]:
        return {
            "query": self.query,
            "indptr": self.indptr,
            "indices": self.indices,
            "dt": self.dt,
            "x": self.x,
            "time_weight": self.time_weight,
            "time_bias": self.time_bias,
            "edge_x": self.edge_x,
            "edge_id": self.edge_id,
        }

    @property
    def tensors(self) -> tuple[Any, ...]:
        return tuple(self.named.values())

    @property
    def options(self) -> dict[str, Any]:
        return {"slope": self.slope, "dropout": self.dropout, "seed": self.seed}
