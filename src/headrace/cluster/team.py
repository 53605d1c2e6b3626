"""`Team`: sums that ranks make together, each for the one that owns it; and what each of them tells all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headrace.ranks import Exchange


class Team:
    """Ranks that hold all columns together. Without an exchange, one rank alone.

    wire: the type in which numbers travel, where that is not their own. A rank's own numbers are not rounded.
    Both methods are collective, and must be called in the same order by all members. They send and return at once; what they return
    waits for what comes from the others, on any thread.
    """

    def __init__(self, exchange: Exchange | None, *, wire: torch.dtype | None = None) -> None:
        self.exchange, self.wire = exchange, wire
        self.place, self.size = (0, 1) if exchange is None else (exchange.rank, exchange.size)

    def reduce(self, phase: str, parts: Sequence[Tensor]) -> Callable[[], Tensor]:  # each [numbers of its member] -> [of this one]
        """Give every member its part; call what this returns for the sum of the parts of this one, in the order of members."""
        mine = parts[self.place]
        if self.exchange is None:
            return lambda: mine
        others = [mine[:0] if member == self.place else part for member, part in enumerate(parts)]
        arrived = self._sent(phase, others, receiving=[0 if m == self.place else len(mine) for m in range(self.size)])

        def total() -> Tensor:
            received = arrived()
            received[self.place] = _used_here(mine)
            sums = received[0].clone()
            for part in received[1:]:
                sums.add_(part)
            return sums

        return total

    def spread(self, phase: str, mine: Tensor, sizes: Sequence[int]) -> Callable[[], list[Tensor]]:  # [sizes[place]] -> [size] each
        """Tell all members; call what this returns for what each of them told. All know how many numbers that is."""
        if self.exchange is None:
            return lambda: [mine]
        others = [mine[:0] if member == self.place else mine for member in range(self.size)]
        arrived = self._sent(phase, others, receiving=[0 if m == self.place else size for m, size in enumerate(sizes)])

        def told() -> list[Tensor]:
            received = arrived()
            received[self.place] = _used_here(mine)
            return received

        return told

    def _sent(self, phase: str, parts: Sequence[Tensor], *, receiving: list[int]) -> Callable[[], list[Tensor]]:
        assert self.exchange is not None
        like = parts[0]
        kind = like.dtype if self.wire is None else self.wire
        sent = torch.cat([part.to(kind) for part in parts]).to(self.exchange.wire)
        transfer = self.exchange.all_to_all(phase, sent, sending=[len(part) for part in parts], receiving=receiving)
        return lambda: list(_used_here(transfer.wait()).to(like.device).to(like.dtype).split(receiving))


def _used_here(tensor: Tensor) -> Tensor:
    """The same, whose memory may be of another thread's stream: it is not handed out again before this thread's has used it."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensor
