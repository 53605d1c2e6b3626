"""`Rounds`: the turns that ranks take together in an epoch, and which of them may begin. Pure functions of numbers."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.pipeline import Versions

IN_FLIGHT = 3  # rounds whose linear part has begun and whose gradient has not come back (P3)


@dataclass(frozen=True)
class Round:
    """One turn of all ranks: batch `first + r` of an epoch is rank r's, while r is below `count`."""

    number: int  # among the rounds that are left of the epoch
    step: int  # to whose update it belongs, counted from the beginning of the epoch's rest
    first: int
    count: int

    def batch(self, rank: int) -> int | None:
        """The batch that a rank makes, or None."""
        return self.first + rank if rank < self.count else None


def rounds_of(batches: int, *, first: int, accumulate: int, ranks: int) -> list[Round]:
    """The remaining rounds of an epoch of `batches`, from batch `first` on, which begins a step of `accumulate` batches.

    >>> [(round.step, round.first, round.count) for round in rounds_of(7, first=0, accumulate=4, ranks=3)]
    [(0, 0, 3), (0, 3, 1), (1, 4, 3)]
    """
    rounds: list[Round] = []
    for step, begin in enumerate(range(first, batches, accumulate)):
        end = min(begin + accumulate, batches)
        rounds += [
            Round(len(rounds) + number, step, at, min(ranks, end - at)) for number, at in enumerate(range(begin, end, ranks))
        ]
    return rounds


def may_begin(rounds: list[Round], current: int, versions: Versions, *, updates: int, done: int, in_flight: int = IN_FLIGHT) -> int:
    """How many rounds may have begun while round `current` is computed: those that read a version there is, few at a time.

    updates: made in the whole run; done: of these, in this part of the epoch.

    >>> rounds = rounds_of(8, first=0, accumulate=1, ranks=1)
    >>> [may_begin(rounds, 0, v, updates=0, done=0) for v in (Versions.flush(), Versions.stash(1), Versions.stash(3))]
    [1, 2, 3]
    """
    begun = current + 1
    while begun < min(len(rounds), current + in_flight) and versions.of_update(updates + rounds[begun].step - done) <= updates:
        begun += 1
    return begun
