"""What the ranks of a `Remote` say to one another: counts, ids and rows, three collectives an exchange."""

from __future__ import annotations

from enum import IntEnum

import torch
import torch.distributed as dist
from torch import Tensor

from headrace.ranks.exchange import Exchange, Transfer
from headrace.ranks.ranks import Ranks

_ADVICE = (
    "Every rank must make the same calls of gather, prefetch, add_, put_ and finish; one without a batch passes empty ids, "
    "one that has no more calls finish()"
)


class Kind(IntEnum):
    """The call that a rank is making."""

    gather = 0
    add = 1
    finished = 2  # it has nothing to ask any more, and answers the others
    put = 3


class RowExchange(Exchange):
    """The collectives of a `Remote`: phases `counts`, `ids` and `rows`."""

    def __init__(self, group: dist.ProcessGroup | Ranks | None, *, device: torch.device, timeout: float) -> None:
        super().__init__(group, device=device, timeout=timeout, advice=_ADVICE)

    def ask(self, kind: Kind, counts: list[int]) -> tuple[list[Kind], list[int]]:  # [size] -> [size], [size]
        """Begin an exchange: tell every rank what for and how many ids it will get, and learn the same of the others."""
        self.begin()
        kinds, wanted = self.counts("counts", kind, counts)
        active = {k: kinds.index(k) for k in kinds if k != Kind.finished}
        if len(active) > 1:
            names = ", ".join(f"rank {rank} called {k.name}" for k, rank in active.items())
            raise RuntimeError(f"exchange {self.exchanges}: {names}. All ranks must make the same calls in the same order")
        return kinds, wanted

    def ids(self, ids: Tensor, *, sending: list[int], receiving: list[int]) -> Tensor:
        """Send ids, grouped by rank, to their ranks."""
        return self.all_to_all("ids", ids, sending=sending, receiving=receiving).wait()

    def rows(
        self, rows: Tensor, *, sending: list[int], receiving: list[int]
    ) -> Transfer:  # [sum(sending), d] -> [sum(receiving), d]
        """Send rows, grouped by rank, to their ranks, while the caller does other things."""
        return self.all_to_all("rows", rows, sending=sending, receiving=receiving)

    def use(self) -> dict[str, int]:
        """Return exchanges and bytes as `RemoteUse` names them."""
        fields = {"exchanges": self.exchanges}
        for phase in ("counts", "ids", "rows"):
            fields[f"{phase}_sent"], fields[f"{phase}_received"] = self.traffic[phase].sent, self.traffic[phase].received
        return fields

    def reset_use(self) -> None:
        self.exchanges = 0
        self.traffic.clear()
