"""Batches that ranks make together: `PushPullBatches` have the sums of their first layer, which go back to all as gradients.

All ranks go through the rounds of an epoch together. In a round of which a rank has no batch it takes part all the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from headrace import _native
from headrace.cluster.grid import Grid
from headrace.cluster.partial import Pushed
from headrace.cluster.push_pull import Arriving, Drawn, Flight, Gradients, PushPull
from headrace.cluster.rounds import IN_FLIGHT, Round, may_begin
from headrace.loader import Batch, Shard
from headrace.ranks import Pending, Turns
from headrace.store import Remote

_AHEAD = 1  # rounds that are fetched while one is computed
_NOTHING = torch.empty(0, dtype=torch.int64)


class Structures(Protocol):
    """Where the batches of a round come from."""

    def take(self, round: Round) -> Callable[[], Drawn]:
        """A function that gives the round's batches. It is called in turn, on a thread that may communicate."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class TeamShard(Shard):
    """The batches of all members of a team, in the order of the list."""

    members: range = range(1)

    def indices(self, batches: int, first: int = 0) -> Iterator[int]:
        for begin in range(first - first % self.step_size, batches, self.step_size):
            for position in range(begin, min(begin + self.step_size, batches)):
                if position >= first and (position - begin) % self.ranks in self.members:
                    yield position


class Redrawn:
    """Batches that every rank draws for itself, since a sample is a function of (seed, epoch, batch): nothing is pushed.

    batches: of a loader with a `TeamShard`.
    """

    def __init__(self, batches: Iterator[Batch], grid: Grid, layer: nn.Module, *, seed: int, epoch: int) -> None:
        self._batches, self._grid, self._seed, self._epoch = batches, grid, seed, epoch
        self._degrees = bool(getattr(layer.conv, "wants_degree", False))

    def take(self, round: Round) -> Callable[[], Drawn]:
        own: Batch | None = None
        blocks: list[Pushed | None] = []
        for rank in self._grid.members:
            index = round.batch(rank)
            if index is None:
                blocks.append(None)
                continue
            batch = next(self._batches)
            assert batch.index == index, "the loader deals other batches"
            blocks.append(pushed_of(batch, seed=self._seed, epoch=self._epoch, degrees=self._degrees))
            if rank == self._grid.rank:
                own = batch
        return partial(Drawn, own, blocks)

    def close(self) -> None:
        self._batches.close()  # type: ignore[attr-defined]


def pushed_of(batch: Batch, *, seed: int, epoch: int, degrees: bool) -> Pushed:
    """The first layer's block of a batch."""
    block = batch.blocks[-1]
    if degrees and block.degree is None:
        block = replace(block, degree=batch.degree[: block.num_src])
    return Pushed(batch.n_id, block, _native.stream_key(seed, epoch, batch.index, _native.Purpose.step))


class RoundBatches(ABC):
    """The batches of this rank, whose rounds all ranks begin in the same order, some of them ahead of the one that is computed.

    rounds: what is left of an epoch.
    """

    def __init__(self, structures: Structures, rounds: list[Round], *, rank: int) -> None:
        self._structures, self._rounds, self._rank = structures, rounds, rank
        self._current = 0  # the round that is computed
        self._done = 0  # steps
        self._coming: dict[int, Pending[Any] | Arriving[Any]] = {}
        self._begun = 0  # rounds
        self._whole = True  # whether all ranks have begun the same

    @abstractmethod
    def _begin(self, round: Round) -> Pending[Any] | Arriving[Any]:
        """Begin a round."""

    @abstractmethod
    def _most(self) -> int:
        """How many rounds may have begun while the current one is computed."""

    @abstractmethod
    def _taken(self, arrived: Any) -> Batch:
        """The batch of a round that has come."""

    def _skip(self, arrived: Any) -> None:
        """End a round of which this rank has no batch."""
        self._current += 1

    def __iter__(self) -> RoundBatches:
        return self

    def __next__(self) -> Batch:
        if self._current >= len(self._rounds) or self._rounds[self._current].batch(self._rank) is None:
            raise StopIteration
        return self._taken(self._arrived())

    def end_rounds(self) -> None:
        """When this rank has no more batches of a step: take part in the rounds of those that have."""
        while self._current < len(self._rounds) and self._rounds[self._current].step <= self._done:
            self._skip(self._arrived())

    def close_step(self) -> None:
        """After `end_rounds`: the update may follow."""
        self._done += 1
        self._whole = True

    def close(self) -> None:
        """Between steps, wait for the rounds that have begun: other ranks do. Within one, this rank has failed."""
        for pending in self._coming.values() if self._whole else ():
            pending.wait()
        self._structures.close()

    def _arrived(self) -> Any:
        """The current round, once it is there; others begin meanwhile."""
        self._whole = False
        self._begin_to(self._most())
        return self._coming.pop(self._current).wait()

    def _begin_to(self, most: int) -> None:
        for number in range(self._begun, most):
            self._coming[number] = self._begin(self._rounds[number])
        self._begun = max(self._begun, most)


class PushPullBatches(RoundBatches):
    """Batches with `pulled`: the sums of their first layer, whose gradient goes to `push`. `versions` say what may begin."""

    def __init__(self, engine: PushPull, structures: Structures, rounds: list[Round], *, rank: int) -> None:
        super().__init__(structures, rounds, rank=rank)
        self._engine = engine
        self._base = engine.updates  # before the first of these rounds
        self._flight: Flight | None = None  # the current round's
        self._returning: list[Pending[Gradients]] = []

    def _most(self) -> int:
        return self._may_begin(IN_FLIGHT - 1)  # one more when the current round's gradient travels

    def _may_begin(self, in_flight: int) -> int:
        engine = self._engine
        now = {"updates": engine.updates, "done": self._done}
        return may_begin(self._rounds, self._current, engine.versions, in_flight=in_flight, **now)

    def _begin(self, round: Round) -> Arriving[tuple[Flight, list[Tensor]]]:
        return self._engine.forward(self._structures.take(round), self._base + round.step)

    def _taken(self, arrived: tuple[Flight, list[Tensor]]) -> Batch:
        self._flight, sums = arrived
        batch: Batch = self._flight.own.to(self._engine.device)
        batch.pulled = [part.requires_grad_() for part in sums]  # type: ignore[attr-defined]
        return batch

    def _skip(self, arrived: tuple[Flight, list[Tensor]]) -> None:
        self._flight = arrived[0]
        self.push(None)

    def push(self, gradients: Sequence[Tensor] | None) -> None:
        """Send back the gradient of the current round's sums, and go on to the next round.

        While it travels another round is begun, if its weights are there: it is computed in the meantime.
        """
        flight, self._flight = self._flight, None
        assert flight is not None
        flight.own = None
        told = self._engine.push(flight, gradients)
        self._begin_to(self._may_begin(IN_FLIGHT))
        self._returning.append(self._engine.gradients(flight, told))
        self._current += 1

    def returned(self) -> list[Gradients]:
        """After `end_rounds`: gradients of the maps, of the step's rounds in order."""
        gradients = [pending.wait() for pending in self._returning]
        self._returning.clear()
        return gradients


class FetchedBatches(RoundBatches):
    """Batches whose features are spread over ranks, fetched while the one before is computed."""

    def __init__(self, remote: Remote, structures: Structures, rounds: list[Round], *, rank: int) -> None:
        super().__init__(structures, rounds, rank=rank)
        self._remote = remote
        self._turns = Turns(ahead=_AHEAD + 1, name="headrace.FetchedBatches", device=remote.device)

    def _most(self) -> int:
        return min(self._current + 1 + _AHEAD, len(self._rounds))

    def _begin(self, round: Round) -> Pending[tuple[Batch | None, Tensor]]:
        drawn = self._structures.take(round)

        def fetched() -> tuple[Batch | None, Tensor]:
            batch: Batch | None = drawn().own
            return batch, self._remote.gather(_NOTHING if batch is None else batch.n_id)

        return self._turns.submit(fetched)

    def _taken(self, arrived: tuple[Batch | None, Tensor]) -> Batch:
        batch, rows = arrived
        assert batch is not None
        batch.x = rows
        self._current += 1
        return batch

    def close(self) -> None:
        super().close()
        if self._whole:
            self._turns.close()


class OwnBatches:
    """Batches that this rank draws from a graph of its own. `batches`: of a loader with its shard."""

    def __init__(self, batches: Iterator[Batch], rank: int) -> None:
        self._batches, self._rank = batches, rank

    def take(self, round: Round) -> Callable[[], Drawn]:
        return partial(Drawn, None if round.batch(self._rank) is None else next(self._batches), [])

    def close(self) -> None:
        self._batches.close()  # type: ignore[attr-defined]


def in_order(rounds: Sequence[Gradients], kind: int) -> list[Tensor]:
    """The sum of gradients over rounds and their batches, in the order of batches: of maps (0), or of what is shared (1)."""
    total: list[Tensor] = []
    for gradients in rounds:
        for of_batch in gradients:
            some = of_batch[kind]
            if some and not total:
                total = [gradient.clone() for gradient in some]
            elif some:
                for sum_, gradient in zip(total, some, strict=True):
                    sum_.add_(gradient)
    return total
