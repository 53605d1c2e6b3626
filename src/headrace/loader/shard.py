"""Which of an epoch's batches a rank gets: they are one list, the same for any number of ranks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Shard:
    """Rank r of w takes batches r, r + w, r + 2 w, ... of the list that one process would go through.

    All ranks make the same number of steps, so that none waits for another that has ended. Where the list does not deal out evenly,
    `tail="repeat"` lets the last ranks repeat batches from its beginning (as torch's DistributedSampler does), and
    `tail="drop"` leaves out the last few.

    >>> from headrace.loader import Shard
    >>> [[Shard(r, 3).batch(step, 5) for step in range(Shard(r, 3).steps(5))] for r in range(3)]
    [[0, 3], [1, 4], [2, 0]]
    """

    rank: int = 0
    ranks: int = 1
    tail: Literal["repeat", "drop"] = "repeat"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"shard must be (rank, number of ranks) with the rank below, not ({self.rank}, {self.ranks})")
        if self.tail not in ("repeat", "drop"):
            raise ValueError(f"tail must be 'repeat' or 'drop', not {self.tail!r}")

    def steps(self, batches: int) -> int:
        """How many batches every rank gets, of so many in all."""
        return batches // self.ranks if self.tail == "drop" else -(-batches // self.ranks)

    def batch(self, step: int, batches: int) -> int:
        """The batch of this rank's step."""
        return (step * self.ranks + self.rank) % max(batches, 1)

    @classmethod
    def of(cls, given: Shard | tuple[int, int] | Literal["torchrun"] | None) -> Shard:
        """From what a loader is given: (rank, ranks), or "torchrun" for those of this process."""
        if given is None:
            return cls()
        if isinstance(given, Shard):
            return given
        if given == "torchrun":
            return cls(*_torchrun())
        if not isinstance(given, tuple | list) or len(given) != 2 or not all(isinstance(number, int) for number in given):
            raise ValueError(f"shard must be (rank, number of ranks), 'torchrun' or a Shard, not {given!r}")
        return cls(*given)


def _torchrun() -> tuple[int, int]:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    raise ValueError("shard='torchrun' needs a process that torchrun has started, or torch.distributed: else give (rank, ranks)")
