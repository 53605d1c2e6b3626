"""`Lanes`: a piece of work in two halves, of which one multiplies while the other sums, launched by one thread.

The order of launches is that of `overlap`, by estimated seconds. It decides when an operator is launched, never what it makes: a
chain runs on to its end whatever the order leaves out. Gradients go the opposite way (`headrace.snapshots.streams`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace.nn.cells.cell import State
from headrace.nn.neighbor_sum import Asked, Steps
from headrace.snapshots.operators import Chain, Operators
from headrace.snapshots.overlap import Placed, Task, overlap
from headrace.snapshots.rows import Group
from headrace.snapshots.streams import OneStream, Place

_BYTES, _OPERATIONS = 3e12, 5e13  # a second of a GPU's, by which tasks are placed


class Turn(NamedTuple):
    """What a lane does next: launch its sum, or go on to the next one. `ahead`: the sum of features of a snapshot of its own."""

    lane: int
    snapshot: int
    kind: str
    ahead: bool


class Lanes:
    """Runs groups in `count` lanes, with sums made at `place`.

    queue: sums of features that may have run ahead at a time.
    """

    def __init__(self, operators: Operators, place: Place | None = None, *, count: int = 2, queue: int = 2) -> None:
        if count < 1:
            raise ValueError(f"there must be at least 1 lane, not {count}")
        self.operators, self.count, self.queue = operators, count, queue
        self.place: Place = OneStream() if place is None else place
        self._orders: dict[tuple[tuple[int, int], ...], list[Turn]] = {}

    def read(self, groups: Sequence[Group]) -> list[list[Chain]]:
        """The chains of each lane: groups in order, as many to each."""
        return [self.operators.chains(part) for part in self.deal(groups)]

    def deal(self, groups: Sequence[Group]) -> list[Sequence[Group]]:
        """The groups of each lane."""
        each, more = divmod(len(groups), self.count)
        ends = [number * each + min(number, more) for number in range(self.count + 1)]
        return [groups[begin:end] for begin, end in pairwise(ends) if end > begin]

    def rows(self, groups: Sequence[Group], chains: Sequence[Sequence[Chain]] | None = None) -> Tensor:
        """The rows of every node after the last snapshot of each group, as of `Operators.rows`.  # -> [groups, num_nodes, out]"""
        chains = self.read(groups) if chains is None else chains
        self.place.begin()
        lanes = [_Lane(self.operators, own, self.place) for own in chains]
        for turn in self.order(chains):
            lanes[turn.lane].take(turn)
        ended = [lane.finished() for lane in lanes]
        self.place.end()
        rows = [self.operators.ended(part, states) for part, states in zip(self.deal(groups), ended, strict=True)]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def order(self, chains: Sequence[Sequence[Chain]]) -> list[Turn]:
        """When each lane launches what: by the sizes of the first piece of its form, since it is an order and no more."""
        key = tuple((len(own), int(any(asked is not None for chain in own for asked in chain.asked))) for own in chains)
        if key not in self._orders:
            placed = overlap([task for lane, own in enumerate(chains) for task in self._tasks(lane, own)], queue=self.queue)
            self._orders[key] = turns(placed.placed)
        return self._orders[key]

    def _tasks(self, lane: int, chains: Sequence[Chain]) -> list[Task]:
        operators, cell = self.operators, self.operators.cell
        sums = [op.name for op in cell.operators if op.kind == "graph" and not op.can_run_ahead]
        sums = [name for name in sums for _ in range(max(getattr(cell, "K", 2) - 1, 1))]
        weights, tasks, number = sum(parameter.numel() for parameter in cell.parameters()), [], 0
        edges = operators.snapshots.num_edges
        for chain in chains:
            for place, x in enumerate(chain.x):
                entries = sum(edges[group.first + place] for group in chain.groups)
                dense = 2 * len(x) * weights / _OPERATIONS / max(len(sums), 1)
                if chain.asked[place] is not None:
                    tasks.append(Task(lane, number, "neighbors", "graph", 4 * entries * x.shape[1] / _BYTES, ahead=True))
                for name in sums or [None]:  # type: ignore[list-item]
                    if name is not None:
                        tasks.append(Task(lane, number, name, "graph", 4 * entries * cell.out_channels / _BYTES))
                    tasks.append(Task(lane, number, "products", "dense", dense))
                number += 1
        return tasks


def turns(placed: Sequence[Placed]) -> list[Turn]:
    """Tasks in the order in which they begin."""
    begun = sorted(placed, key=lambda one: (one.begin, one.end))
    return [Turn(one.task.group, one.task.snapshot, one.task.kind, one.task.ahead) for one in begun]


class _Lane:
    """Chains one after the other, which stop at each sum until it was made."""

    def __init__(self, operators: Operators, chains: Sequence[Chain], place: Place) -> None:
        self.place = place
        self._ahead = [asked for chain in chains for asked in chain.asked]  # of every snapshot, as the chains ask for them
        self._made: dict[int, Any] = {}  # by place in that list: sums that ran ahead and wait to be used
        self._used: set[int] = set()
        self._steps, self._left, self._issued = _all(operators, chains), None, None
        self._asked: Asked | None = None
        self._states: list[State] | None = None
        self._resume(None)

    def take(self, turn: Turn) -> None:
        """Do what the order says, as far as there is anything to do."""
        if turn.ahead:
            self._run_ahead(turn.snapshot)
        elif turn.kind == "graph":
            self._issue()
        else:
            self._go_on()

    def finished(self) -> list[State]:
        """Go on to the end; the state of each chain."""
        while self._states is None:
            self._go_on()
        return self._states

    def _run_ahead(self, number: int) -> None:
        asked = self._ahead[number]
        if asked is not None and number not in self._made and number not in self._used:
            self._made[number] = self.place.issue(self.place.leave(asked))

    def _issue(self) -> None:
        if self._asked is None or self._issued is not None:
            return
        number = self._number()
        if number is not None:
            self._run_ahead(number)
            self._issued = self._made.pop(number)
            self._used.add(number)
        else:
            self._issued = self.place.issue(self._left)

    def _go_on(self) -> None:
        if self._states is not None:
            return
        self._issue()
        self._resume(self.place.take(self._issued))

    def _number(self) -> int | None:
        """Which of the sums of features is asked for; None for another."""
        return next((number for number, asked in enumerate(self._ahead) if asked is self._asked), None)

    def _resume(self, made: Tensor | None) -> None:
        self._left = self._issued = None
        try:
            self._asked = next(self._steps) if made is None else self._steps.send(made)
        except StopIteration as ended:
            self._asked, self._states = None, ended.value
            return
        if self._number() is None:
            self._left = self.place.leave(self._asked)


def _all(operators: Operators, chains: Sequence[Chain]) -> Steps[list[State]]:
    states = []
    for chain in chains:
        states.append((yield from operators.stepwise(chain)))
    return states
