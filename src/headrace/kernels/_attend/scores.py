"""What the scores of attention are made of and how dropout thins its coefficients: what every pass over the entries needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from headrace.kernels._attend.whole import Whole


@dataclass(frozen=True, eq=False)
class Scores:
    """GAT has `source` and `target`, GATv2 `target` and `attention`."""

    target: Tensor  # [rows, heads], of GATv2 [rows, heads, channels]
    source: Tensor | None = None  # [n, heads]
    attention: Tensor | None = None  # [heads, channels]
    slope: float = 0.2
    self_loops: bool = False
    dropout: float = 0.0
    seed: int | Tensor = 0
    shift: Tensor | None = None  # [rows], of rows that are part of a whole: from an entry's position to that in the whole
    whole_rows: Tensor | None = None  # [rows]: which row of the whole each one is
    whole_entries: int = 0

    def placed(self, indptr: Tensor, whole: Whole) -> Scores:
        """The same, of rows with this `indptr` that are part of a whole. Without dropout nothing depends on it."""
        if not self.dropout:
            return self
        whole.check_shape(len(indptr) - 1)
        return replace(self, shift=whole.shift(indptr), whole_rows=whole.rows, whole_entries=whole.entries)

    @property
    def pairs(self) -> bool:
        """Whether these are the scores of GATv2."""
        return self.attention is not None

    @property
    def tensors(self) -> dict[str, Tensor | None]:
        return {"source": self.source, "target": self.target, "attention": self.attention}
