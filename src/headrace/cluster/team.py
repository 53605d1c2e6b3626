"""`Team`: sums that ranks make together, each for the one that owns it; and what each of them tells all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.ranks import Exchange


class Team:
    """Ranks that hold all columns together. Without an exchange, one rank alone.

    wire: the type in which numbers travel, where that is not their own. A rank's own numbers are not rounded.
    All methods are collective, and must be called in the same order by all members.
    """

    def __init__(self, exchange: Exchange | None, *, wire: torch.dtype | None = None) -> None:
        self.exchange, self.wire = exchange, wire
        self.place, self.size = (0, 1) if exchange is None else (exchange.rank, exchange.size)

    def reduce(self, phase: str, parts: Sequence[Tensor]) -> Tensor:  # each [numbers of its member] -> [numbers of this one]
        """Give every member its part, and return the sum of the parts of this one, added in the order of members."""
        mine = parts[self.place]
        if self.exchange is None:
            return mine
        others = [mine[:0] if member == self.place else part for member, part in enumerate(parts)]
        received = self._sent(phase, others, receiving=[0 if m == self.place else len(mine) for m in range(self.size)])
        total: Tensor | None = None
        for member, part in enumerate(received):
            part = mine if member == self.place else part
            total = part.clone() if total is None else total.add_(part)
        assert total is not None
        return total

    def spread(self, phase: str, mine: Tensor, sizes: Sequence[int]) -> list[Tensor]:  # [sizes[place]] -> each [its size]
        """Tell all members, and return what each of them told; all know how many numbers that is."""
        if self.exchange is None:
            return [mine]
        others = [mine[:0] if member == self.place else mine for member in range(self.size)]
        received = self._sent(phase, others, receiving=[0 if m == self.place else size for m, size in enumerate(sizes)])
        received[self.place] = mine
        return received

    def _sent(self, phase: str, parts: Sequence[Tensor], *, receiving: list[int]) -> list[Tensor]:
        assert self.exchange is not None
        like = parts[0]
        kind = like.dtype if self.wire is None else self.wire
        sent = torch.cat([part.to(kind) for part in parts]).to(self.exchange.wire)
        transfer = self.exchange.all_to_all(phase, sent, sending=[len(part) for part in parts], receiving=receiving)
        return list(transfer.wait().to(like.device).to(like.dtype).split(receiving))
