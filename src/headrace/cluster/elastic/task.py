"""`Task`: the key of a piece of tensor work, and the stages that an interval goes through in an epoch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import total_ordering


class Direction(IntEnum):
    """What a task computes of its layer. Members are in the order in which an epoch needs them."""

    FORWARD = 0
    TURN = 1  # the last layer, the loss and their backward pass, in one task
    BACKWARD = 2
    VALIDATE = 3  # forward without dropout, after the epoch's update

    @property
    def letter(self) -> str:
        """One letter, as the text of a task has it."""
        return "ftbv"[self]


_LETTERS = {direction.letter: direction for direction in Direction}

Stages = tuple[tuple[int, Direction], ...]  # layer and direction, in the order of an interval's work


@total_ordering
@dataclass(frozen=True)
class Task:
    """A stateless piece of work: what is computed of `layer` for the rows of `interval` in `epoch`.

    It names the work wherever that goes: in queues, time limits, weight versions, dropout and traces. Interval ids are global, so a
    key means the same on every server. Tasks sort in the order in which one worker would compute them.

    >>> task = Task(3, 1, Direction.BACKWARD, 12)
    >>> str(task), Task.parse("3.b1.12") == task
    ('3.b1.12', True)
    >>> print(*sorted(map(Task.parse, ["1.f0.0", "0.b0.1", "0.t1.0", "0.b1.0", "0.f0.1", "0.f0.0"])))
    0.f0.0 0.f0.1 0.t1.0 0.b1.0 0.b0.1 1.f0.0
    """

    epoch: int
    layer: int
    direction: Direction
    interval: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.direction.letter}{self.layer}.{self.interval}"

    def __lt__(self, other: object) -> bool:
        return self._order < other._order if isinstance(other, Task) else NotImplemented

    @property
    def _order(self) -> tuple[int, int, int, int]:
        layer = -self.layer if self.direction == Direction.BACKWARD else self.layer
        return self.epoch, self.direction, layer, self.interval

    @property
    def starts_pass(self) -> bool:
        """Whether it is the first of its interval's training or validation in this epoch."""
        return self.layer == 0 and self.direction != Direction.BACKWARD

    @property
    def ends_training(self) -> bool:
        """Whether the gradients of its interval are complete with it."""
        return self.layer == 0 and self.has_gradients

    @property
    def has_gradients(self) -> bool:
        """Whether it makes gradients of weights."""
        return self.direction in (Direction.TURN, Direction.BACKWARD)

    @classmethod
    def parse(cls, text: str) -> Task:
        """From its text."""
        if (parts := re.fullmatch(r"(\d+)\.([ftbv])(\d+)\.(\d+)", text, re.ASCII)) is None:
            raise ValueError(f"a task reads epoch.direction+layer.interval, such as 3.b1.12 with f, t, b or v, not {text!r}")
        return cls(int(parts[1]), int(parts[3]), _LETTERS[parts[2]], int(parts[4]))


def unfused(fused: Stages) -> Stages:
    """The same with the last layer, and its backward pass, as tasks of their own; the server makes the loss between them.

    >>> print(*(f"{direction.letter}{layer}" for layer, direction in unfused(stages(2))))
    f0 f1 b1 b0
    """
    apart = []
    for layer, direction in fused:
        turns = direction == Direction.TURN
        apart += [(layer, Direction.FORWARD), (layer, Direction.BACKWARD)] if turns else [(layer, direction)]
    return tuple(apart)


def stages(layers: int, *, attention: bool = False, validate: bool = False) -> Stages:
    """The stages of an interval in an epoch: training, or the forward pass of a validation.

    Between two stages an interval gathers rows of its neighbors. The task of layer l is all tensor work from the gather of layer l
    to the next one. An attention layer gathers between its projection and its end, so there a task is the end of layer l - 1 and
    the projection of layer l: one more task in each direction.

    >>> print(*(f"{direction.letter}{layer}" for layer, direction in stages(3)))
    f0 f1 t2 b1 b0
    >>> [len(stages(layers)) for layers in (1, 2, 3)], [len(stages(layers, attention=True)) for layers in (1, 2, 3)]
    ([1, 3, 5], [3, 5, 7])
    >>> print(*(f"{direction.letter}{layer}" for layer, direction in stages(3, validate=True)))
    v0 v1 v2
    """
    if layers < 1:
        raise ValueError(f"layers must be at least 1, not {layers}")
    last = layers if attention else layers - 1
    if validate:
        return tuple((layer, Direction.VALIDATE) for layer in range(last + 1))
    forward = tuple((layer, Direction.FORWARD) for layer in range(last))
    backward = tuple((layer, Direction.BACKWARD) for layer in reversed(range(last)))
    return (*forward, (last, Direction.TURN), *backward)
