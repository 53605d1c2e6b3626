"""Which of an epoch's batches a rank gets: they are one list, the same for any number of ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Shard:
    """Deals the list of batches that one process would go through to `ranks` ranks, and says which of them `rank` gets.

    A step takes `accumulate` consecutive batches of the list, by default one for each rank. Within a step, rank r takes batches r,
    r + ranks, r + 2 ranks, ... So which batches form a step does not depend on the number of ranks, and after any step the rest of
    the list can be dealt to another number of them.

    A round is one turn of all ranks: each makes one batch, or none if the step has no more. All ranks go through the same number of
    rounds and steps, so that none waits for another that has ended. `tail` says what happens where the list does not end with a
    whole step: "repeat" fills the step with batches from the beginning of the list (as torch's DistributedSampler does), "drop"
    leaves the step out, and "empty" makes it with the batches there are, so that every batch is made exactly once.

    >>> from headrace.loader import Shard
    >>> [list(Shard(rank, 3).indices(5)) for rank in range(3)]
    [[0, 3], [1, 4], [2, 0]]
    >>> shards = [Shard(rank, 3, "empty", accumulate=4) for rank in range(3)]
    >>> [list(shard.indices(6)) for shard in shards], [list(shard.indices(6, first=4)) for shard in shards]
    ([[0, 3, 4], [1, 5], [2]], [[4], [5], []])
    >>> shards[2].steps(6), shards[2].rounds(6), [shards[2].batch(round, 6) for round in range(3)]
    (2, 3, [2, None, None])
    """

    rank: int = 0
    ranks: int = 1
    tail: Literal["repeat", "drop", "empty"] = "repeat"
    accumulate: int | None = None  # batches of a step, over all ranks; None: one for each rank

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"shard must be (rank, number of ranks) with the rank below, not ({self.rank}, {self.ranks})")
        if self.tail not in ("repeat", "drop", "empty"):
            raise ValueError(f"tail must be 'repeat', 'drop' or 'empty', not {self.tail!r}")
        if self.accumulate is not None and self.accumulate < 1:
            raise ValueError(f"accumulate must be at least 1 batch a step, not {self.accumulate}")

    @property
    def step_size(self) -> int:
        """Batches of a whole step, over all ranks."""
        return self.ranks if self.accumulate is None else self.accumulate

    def total(self, batches: int) -> int:
        """How many batches all ranks make together, of a list of so many: `tail` may drop or repeat some."""
        if self.tail == "empty":
            return batches
        return batches - batches % self.step_size if self.tail == "drop" else -(-batches // self.step_size) * self.step_size

    def steps(self, batches: int) -> int:
        """How many steps an epoch has. Where a step takes one batch of every rank, this is how many batches each rank makes."""
        return -(-self.total(batches) // self.step_size)

    def rounds(self, batches: int, first: int = 0) -> int:
        """How many rounds an epoch has, or what is left of it from position `first` of the list on."""
        total = self.total(batches)
        return self._round(total - 1) + 1 - self._round(first) if first < total else 0

    def count(self, batches: int) -> int:
        """How many batches this rank makes."""
        steps, rest = divmod(self.total(batches), self.step_size)
        return steps * len(range(self.rank, self.step_size, self.ranks)) + len(range(self.rank, rest, self.ranks))

    def batch(self, round: int, batches: int) -> int | None:
        """The batch that this rank makes in a round, by its index in the list, or None if it makes none."""
        step, turn = divmod(round, self._rounds_of_step)
        begin, within = step * self.step_size, turn * self.ranks + self.rank
        if within >= self.step_size or begin + within >= self.total(batches):
            return None
        return (begin + within) % batches

    def indices(self, batches: int, first: int = 0) -> Iterator[int]:
        """The batches of this rank, by their index in the list, from position `first` of the list on."""
        total, size = self.total(batches), self.step_size
        for begin in range(first - first % size, total, size):
            for position in range(begin + self.rank, min(begin + size, total), self.ranks):
                if position >= first:
                    yield position % batches

    def _round(self, position: int) -> int:
        """The round in which a position of the list is dealt."""
        return position // self.step_size * self._rounds_of_step + position % self.step_size // self.ranks

    @property
    def _rounds_of_step(self) -> int:
        return -(-self.step_size // self.ranks)

    @classmethod
    def of(cls, shard: Shard | tuple[int, int] | Literal["torchrun"] | None) -> Shard:
        """The shard that a loader's `shard=` names: (rank, ranks), or "torchrun" for those of this process."""
        if shard is None:
            return cls()
        if isinstance(shard, Shard):
            return shard
        if shard == "torchrun":
            return cls(*_torchrun())
        if not isinstance(shard, tuple | list) or len(shard) != 2 or not all(isinstance(number, int) for number in shard):
            raise ValueError(f"shard must be (rank, number of ranks), 'torchrun' or a Shard, not {shard!r}")
        return cls(*shard)


def _torchrun() -> tuple[int, int]:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    raise ValueError("shard='torchrun' needs a process that torchrun has started, or torch.distributed: else give (rank, ranks)")
