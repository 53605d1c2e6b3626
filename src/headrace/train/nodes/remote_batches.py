"""`RemoteBatches`: batches whose features are spread over ranks, with one exchange a round of batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor

from headrace.loader import Batch, Shard
from headrace.ranks import Pending
from headrace.store import Remote

_AHEAD = 1  # rounds of the next step that are asked for while this one is trained


class RemoteBatches:
    """The batches of this rank with their rows, from batch `first` of an epoch of `batches` on.

    An exchange needs all ranks, so in a round of which this rank has no batch it asks for no rows. It does so ahead of time:
    whenever a step ends, all ranks have asked for the same rounds, and all of them may stop there.
    """

    def __init__(self, loader: Iterator[Batch], remote: Remote, shard: Shard, *, batches: int, first: int) -> None:
        self._loader, self._remote = loader, remote
        self._turns = _turns(shard, batches, first)
        self._ends = {step: number + 1 for number, (step, _) in enumerate(self._turns)}  # rounds up to the end of a step
        self._mine = deque(step for step, mine in self._turns if mine)
        self._asked = 0
        self._coming: deque[tuple[Batch, Pending[Tensor]]] = deque()
        self._empty: list[Pending[Tensor]] = []
        if self._turns:
            self._ask(self._turns[0][0])

    def __iter__(self) -> RemoteBatches:
        return self

    def __next__(self) -> Batch:
        if not self._mine:
            raise StopIteration
        self._ask(self._mine.popleft())
        batch, rows = self._coming.popleft()
        batch.x = rows.wait()
        return batch

    def _ask(self, step: int) -> None:
        """Ask for the rows of all rounds of a step, and of some more."""
        while self._asked < min(self._ends[step] + _AHEAD, len(self._turns)):
            if self._turns[self._asked][1]:
                batch = next(self._loader)
                self._coming.append((batch, self._remote.prefetch(batch.n_id)))
            else:
                self._empty.append(self._remote.prefetch(torch.empty(0, dtype=torch.int64)))
            self._asked += 1

    def close(self) -> None:
        """Wait for what was asked for: other ranks do."""
        for pending in [*self._empty, *(rows for _, rows in self._coming)]:
            pending.wait()
        self._empty, self._coming = [], deque()
        self._loader.close()  # type: ignore[attr-defined]


def _turns(shard: Shard, batches: int, first: int) -> list[tuple[int, bool]]:
    """The rounds that are left of an epoch: the step of each, and whether this rank has a batch of it."""
    turns = []
    for begin in range(first, batches, shard.step_size):
        count = min(shard.step_size, batches - begin)
        turns += [(begin // shard.step_size, place + shard.rank < count) for place in range(0, count, shard.ranks)]
    return turns
