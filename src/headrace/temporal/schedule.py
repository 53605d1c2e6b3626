"""Who reads and writes which batch's memory when: i x j x k trainers over one stream (Zhou et al., "DistTGL", SC 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


class Turn(NamedTuple):
    """What one trainer does in one iteration of a sweep."""

    iteration: int
    trainer: int
    copy: int  # of the memory
    batch: int  # local, as the stream is cut
    stay: int  # the how-maniest iteration on this batch, from 0: j sets of negatives, one each
    reads: bool
    writes: bool
    position: int  # of the batch's group in the copy's sweep
    resets: bool  # the copy's memory is zero before this batch is read
    ticket: int  # of the read, within the sweep; the write's is `group` later
    group: int  # local batches that are read together, before any of them is written


class Holder(NamedTuple):
    """What a ticket of a copy's sweep is for, and whose it is."""

    trainer: int
    operation: Literal["read", "write"]
    batch: int


@dataclass(frozen=True)
class Schedule:
    """A sweep: every copy of the memory sees all `batches` once, and every batch j sets of negatives.

    i consecutive batches are read together and then written (their memory is as old as that of one batch i times as long). j
    trainers take such groups in turn and stay on each for j iterations, reading and writing in the first. k copies of the memory
    begin at different places of the stream. Where DistTGL trains padding a trainer idles, and the last `batches` mod i, which it
    forgets, are a shorter group. Trainer number = (copy * j + place in the epoch) * i + place in the group.
    """

    i: int
    j: int
    k: int
    batches: int

    def __post_init__(self) -> None:
        for name in ("i", "j", "k", "batches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.j > self.groups:
            raise ValueError(f"j is {self.j}, above the {self.groups} batches that there are to take in turn: lower it")
        if self.k > self.groups:
            raise ValueError(f"k is {self.k}, above the {self.groups} batches at which copies of the memory could begin: lower k")

    @property
    def trainers(self) -> int:
        return self.i * self.j * self.k

    @property
    def groups(self) -> int:
        return -(-self.batches // self.i)

    @property
    def iterations(self) -> int:
        """Of a sweep: the last group is taken up at `groups` - 1 and stayed on for j."""
        return self.groups + self.j - 1

    def sweeps(self, epochs: int) -> int:
        """That make at least so many epochs: a sweep is j of them for each copy."""
        return -(-epochs // (self.j * self.k))

    def start(self, copy: int) -> int:
        """The group at which a copy begins each sweep."""
        return self.groups * (self.k - copy) // self.k % self.groups

    def members(self, group: int) -> range:
        """The local batches of a group."""
        return range(group * self.i, min((group + 1) * self.i, self.batches))

    def turn(self, iteration: int, trainer: int) -> Turn | None:
        """What a trainer does in an iteration; None where it idles."""
        member, of_copy = trainer % self.i, trainer // self.i
        place, copy = of_copy % self.j, of_copy // self.j
        stay = (iteration - place) % self.j
        position = iteration - stay
        if not 0 <= position < self.groups:
            return None
        group = (self.start(copy) + position) % self.groups
        members = self.members(group)
        if member >= len(members):
            return None
        ticket, first = self.first_ticket(copy, position) + member, stay == 0
        return Turn(iteration, trainer, copy, members[member], stay, first, first, position, group == 0, ticket, len(members))

    def first_ticket(self, copy: int, position: int) -> int:
        """Of a position in a copy's sweep: all before it are for earlier iterations, it and all later ones are not."""
        if position >= self.groups:
            return 2 * self.batches
        wrapped = self.start(copy) + position >= self.groups  # the last group, which may be shorter, came before
        return 2 * (position * self.i - (self._missing if wrapped else 0))

    def holder(self, copy: int, ticket: int) -> Holder:
        """Who has a ticket of a copy's sweep: for each group in turn, a read for each of its batches, then as many writes."""
        if not 0 <= ticket < 2 * self.batches:
            raise ValueError(f"a sweep over {self.batches} batches has tickets 0 to {2 * self.batches - 1}, not {ticket}")
        last = self.groups - 1 - self.start(copy)  # the position of the last group
        end = self.first_ticket(copy, last) + 2 * len(self.members(self.groups - 1))
        position = min(ticket // (2 * self.i), last) if ticket < end else (ticket + 2 * self._missing) // (2 * self.i)
        members = self.members((self.start(copy) + position) % self.groups)
        which = ticket - self.first_ticket(copy, position)
        member = which % len(members)
        trainer = (copy * self.j + position % self.j) * self.i + member
        return Holder(trainer, "read" if which < len(members) else "write", members[member])

    @property
    def _missing(self) -> int:
        """By how many batches the last group is shorter than the others."""
        return self.groups * self.i - self.batches

    def turns(self, iteration: int) -> list[Turn | None]:
        """Of all trainers in one iteration."""
        return [self.turn(iteration, trainer) for trainer in range(self.trainers)]

    def table(self) -> str:
        """The sweep as a table: a row per trainer, the batch of every iteration, W where it writes, . where it idles."""
        rows = []
        for trainer in range(self.trainers):
            turns = [self.turn(iteration, trainer) for iteration in range(self.iterations)]
            cells = ["." if turn is None else f"{turn.batch}{'W' if turn.writes else ''}" for turn in turns]
            rows.append(f"{trainer}: " + " ".join(f"{cell:<3}" for cell in cells).rstrip())
        return "\n".join(rows)


def schedule(i: int, j: int, k: int, batches: int) -> Schedule:
    """The schedule of i x j x k trainers over so many batches.

    >>> import headrace as hr
    >>> print(hr.temporal.schedule(1, 3, 1, 6).table())
    0: 0W  0   0   3W  3   3   .   .
    1: .   1W  1   1   4W  4   4   .
    2: .   .   2W  2   2   5W  5   5
    """
    return Schedule(i, j, k, batches)


def parse_parallel(text: str) -> tuple[int, int, int]:
    """i, j and k of "1x2x2"; a ValueError says how it is written."""
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.isdigit() and int(part) for part in parts):
        raise ValueError(f"parallel is written ixjxk, as 1x2x2 (batches, epochs, copies of the memory), not {text!r}")
    i, j, k = map(int, parts)
    return i, j, k
