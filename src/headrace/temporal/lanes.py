"""`LaneMemory`: all copies of the memory as slices of one table, which the lanes of a process read and write together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.kernels import gather
from headrace.temporal.batch import EventBatch
from headrace.temporal.joint import Ids, JointBatch, JointEvents, Lane
from headrace.temporal.memory import LOGGED, Operation
from headrace.temporal.schedule import Schedule, Turn


@dataclass(eq=False)
class LaneCopy:
    """One copy of the memory: its rows of the table, and what was read and written, as `NodeMemory` has it."""

    rows: Tensor  # [nodes, memory + mail]
    log: deque[Operation] = field(default_factory=lambda: deque(maxlen=LOGGED))


class LaneMemory:
    """Row v of copy c is row c * nodes + v. Then come a row for padding and, where lanes stay on a batch, rows that they hold.

    The order of tickets is that of the work itself: in an iteration all rows are read (and put aside, for the other sets of
    negatives of those who read) before any is written. One thread launches all of it on one stream of a GPU, so iterations follow
    one another there, and no thread beside it touches the table.

    held: the most rows of a lane's batch.
    """

    def __init__(
        self, schedule: Schedule, nodes: int, *, memory: int, mail: int, held: int, device: str | torch.device = "cpu"
    ) -> None:
        self.schedule, self.nodes, self.held = schedule, nodes, held if schedule.j > 1 else 0
        self.spare_row = schedule.k * nodes
        slots = schedule.trainers * (schedule.j - 1)
        width = memory + mail
        count = self.spare_row + 1 + slots * self.held if width else 0
        self.table = torch.zeros(count, width, device=device)
        self.memories: dict[int, LaneCopy] = {}
        if width:
            self.memories = {copy: LaneCopy(self.table[copy * nodes : (copy + 1) * nodes]) for copy in range(schedule.k)}
        self.owners = [0] * schedule.trainers
        self._in_slot: dict[tuple[int, int], int] = {}  # by trainer and stay, rows that are held

    @property
    def rows(self) -> dict[int, Tensor]:
        """Of each copy."""
        return {copy: memory.rows for copy, memory in self.memories.items()}

    @property
    def trainers(self) -> list[int]:
        return list(range(self.schedule.trainers))

    def lane(self, turn: Turn, sets: Sequence[EventBatch]) -> Lane:
        """A trainer's part of an iteration; where it reads, `sets` are the batch with each set of negatives."""
        events, nothing = sets[turn.stay], np.empty(0, np.int64)
        if not self.memories:
            return Lane(turn, events, np.zeros(len(events.nodes), np.int64), nothing, nothing, nothing)
        base = turn.copy * self.nodes
        own = events.nodes.numpy() + base if turn.reads else self._slot(turn.trainer, turn.stay, events)
        target = own[events.written.numpy()] if turn.writes else nothing
        if not turn.reads:
            return Lane(turn, events, own, target, nothing, nothing)
        later = sets[1:]
        hold_from = [other.nodes.numpy() + base for other in later]
        hold_to = [self._slot(turn.trainer, stay, other) for stay, other in enumerate(later, 1)]
        held = tuple(len(other.nodes) for other in later)
        resets = turn.resets and turn.batch == 0
        return Lane(turn, events, own, target, _joined(hold_from), _joined(hold_to), resets, len(events.nodes) + sum(held), held)

    def _slot(self, trainer: int, stay: int, events: EventBatch) -> Ids:
        begin = self._begin(trainer, stay)
        return np.arange(begin, begin + len(events.nodes))

    def _begin(self, trainer: int, stay: int) -> int:
        return self.spare_row + 1 + (trainer * (self.schedule.j - 1) + stay - 1) * self.held

    def reset(self, batch: JointBatch) -> None:
        """Zero the copies that begin anew with this batch."""
        for lane in batch.parts:
            if lane.resets:
                self.memories[lane.turn.copy].rows.zero_()

    def read(self, events: JointEvents) -> Tensor | None:
        """Rows of a batch's nodes; None without memory. What its lanes will ask for later is put aside.  # -> [n, memory + mail]"""
        if not self.memories:
            return None
        if len(events.hold_to):
            self.table.index_copy_(0, events.hold_to, gather(self.table, events.hold_from, check=False))
        return gather(self.table, events.place, check=False)

    def write(self, events: JointEvents, rows: Tensor) -> None:
        """Put new rows in place, in the copies that they are of."""
        self.table.index_copy_(0, events.target, rows)

    def note(self, batch: JointBatch, base: int) -> None:
        """Log what a batch has read and written, and remember what is held. `base`: the first ticket of the sweep."""
        if not self.memories:
            return
        reading = sorted((lane for lane in batch.parts if lane.turn.reads), key=lambda lane: lane.turn.ticket)
        for lane in reading:
            turn = lane.turn
            self.memories[turn.copy].log.append(Operation(base + turn.ticket, "read", turn.batch, lane.read))
            self._in_slot |= {(turn.trainer, stay): count for stay, count in enumerate(lane.held, 1)}
        for lane in reading:
            turn = lane.turn
            written = Operation(base + turn.ticket + turn.group, "write", turn.batch, len(lane.target))
            self.memories[turn.copy].log.append(written)

    def state_dict(self) -> dict[str, Any]:
        """Copies of the rows of all copies, and of what trainers hold."""
        slots = {slot: self._begin(*slot) for slot in self._in_slot} if self.memories else {}
        held = {slot: self.table[begin : begin + self._in_slot[slot]].cpu().clone() for slot, begin in slots.items()}
        return {"memory": [rows.cpu().clone() for rows in self.rows.values()], "slots": held}

    def load_state_dict(self, memory: Sequence[Tensor], slots: dict[tuple[int, int], Tensor]) -> None:
        """Go on from what `state_dict` returned."""
        for own, rows in zip(self.rows.values(), memory, strict=True):
            own.copy_(rows)
        for slot, rows in slots.items():
            begin = self._begin(*slot)
            self.table[begin : begin + len(rows)] = rows.to(self.table.device)
            self._in_slot[slot] = len(rows)

    def begin(self, first: Callable[[int], int]) -> None:
        """There are no tickets that wait."""

    def settle(self) -> None:
        """Whoever asks for rows does so on the stream that they are written on."""

    def waits(self) -> str:
        return ""

    def close(self) -> None:
        """There is no thread to end."""


def _joined(parts: Sequence[Ids]) -> Ids:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
