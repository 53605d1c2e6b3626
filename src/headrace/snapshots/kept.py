"""`KeptSums`: sums of features of snapshots that never change, as `nn.FirstSum` keeps those of one array over one graph."""

from __future__ import annotations

import threading

from torch import Tensor


class KeptSums:
    """Sums of the features of snapshots that never change, within `budget` bytes: a snapshot is in `window` groups of every epoch.

    What does not fit is summed at every use; `reason` says so. (`nn.FirstSum` decides for one array over one graph, by layer and
    type of products; here a cell has one such sum, and arrays and graphs are many, so that bytes decide.)
    """

    def __init__(self, budget: float = float("inf")) -> None:
        if not budget >= 0:
            raise ValueError(f"the budget of kept sums must be a number of bytes from 0 on, not {budget}")
        self.budget, self.nbytes = budget, 0
        self._kept: dict[int, Tensor] = {}
        self._lock = threading.Lock()  # two workers may come with sums at a time
        self.refused = 0

    def get(self, at: int) -> Tensor | None:
        return self._kept.get(at)

    def put(self, at: int, sums: Tensor) -> None:
        """Keep the sums of a snapshot, where there is room."""
        with self._lock:
            if at in self._kept:
                return
            if self.nbytes + sums.nbytes > self.budget:
                self.refused += 1
                return
            self._kept[at] = sums.contiguous()
            self.nbytes += sums.nbytes

    @property
    def reason(self) -> str:
        kept = f"sums of {len(self._kept)} snapshots kept in {self.nbytes:,} bytes"
        if self.refused and not self._kept:
            return f"no sums kept: one takes more than the budget of {self.budget:,.0f} bytes"
        return kept + (f"; others are made at every use (budget {self.budget:,.0f} bytes)" if self.refused else "")
