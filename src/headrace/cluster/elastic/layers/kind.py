"""`Layers`: what a server asks of its model's layers, whether they sum over neighbors or attend to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from headrace.cluster.elastic.draws import LayerDraws
from headrace.cluster.elastic.neighborhood import Reading
from headrace.cluster.elastic.task import Direction, Stages, Task

Weights = Mapping[str, Tensor]  # by the model's names


class Layers(Protocol):
    """The tables of a model's layers over a `Neighborhood`. Nothing in it waits: the schedule says when rows are there."""

    last: int  # the layer of the tasks that give predictions

    def stages(self, *, validate: bool = False) -> Stages:
        """Of an interval, in an epoch."""

    def payload(self, task: Task, weights: Weights, draws: Sequence[LayerDraws] | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Options and arrays of a task, of the rows that are here now. `draws`: the seeds of its epoch, None in a validation."""

    def constant(self, task: Task) -> tuple[str, ...]:
        """Arrays of a task's payload that are the same in every epoch."""

    def columns(self, layer: int, direction: Direction) -> tuple[int, int]:
        """Of the rows that a task of this kind sends to its worker, without what is `constant`, and of those that come back."""

    def gradients(self, task: Task, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gradients of weights, by the model's names, from the result of a task."""

    def keep(self, task: Task, arrays: Mapping[str, Tensor], weights: Weights, draws: Sequence[LayerDraws] | None) -> None:
        """Store what later tasks read of a result. `weights`: those that the task has pinned, if it still does."""

    def scattered(self, task: Task) -> tuple[Tensor, Reading] | None:
        """The table into which the rows of a task go, here and on servers that read them, and who does; None if nobody does."""

    def forget(self) -> None:
        """Nothing of the epochs so far is needed."""

    @property
    def constant_columns(self) -> int:
        """Of the rows that never change, of the first layer."""

    @property
    def working_bytes(self) -> int:
        """What the server itself needs for a while: features with an epoch's dropout, or rows that an interval's edges read."""

    @property
    def widths(self) -> tuple[list[int], list[int]]:
        """Of the rows that are sent in an epoch of training, forward and back (`bytes_per_epoch`)."""
