"""`Head`: what is forecast of nodes, as the recipe sees it: the loss of groups, measures, baselines from the same windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from headrace.nn import Cell
from headrace.snapshots import Group
from headrace.train.measure import Measure
from headrace.train.recipe import Progress

RowsOf = Callable[[Sequence[Group]], Tensor]  # -> [groups, num_nodes, out]
Told = tuple[Tensor, ...]  # what losses of some groups are of, beside their rows
AT_A_TIME = 64  # groups that a validation runs together


class Head(Protocol):
    """A task of snapshot training. Its weights are in the model that it makes, beside those of the cell.

    What it draws is a function of (seed, epoch, group): the same whoever has the group, and whatever it is stacked with.
    """

    epoch: int  # set by the recipe
    fixed_shapes: bool  # whether shapes of `told` follow from the number of groups alone

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What `figures` returns values of, the one that decides first."""
        ...

    def make_model(self, cell: Cell) -> nn.Module:
        """The cell, as `cell`, and what maps its rows."""
        ...

    def losses(self, model: nn.Module, rows: Tensor, groups: Sequence[Group], nodes: Tensor | None = None) -> Tensor:
        """The loss of each group, from the rows after its last snapshot; or what some of the nodes add to it.

        [groups, num_nodes, out] -> [groups]; with `nodes`, [groups, n, out].
        """
        ...

    def told(self, groups: Sequence[Group]) -> Told:
        """What `losses_of` needs of groups."""
        ...

    def losses_of(self, model: nn.Module, rows: Tensor, told: Told, nodes: Tensor | None = None) -> Tensor:
        """`losses`, from what `told` gave: it looks at these tensors alone and waits for nothing."""
        ...

    def figures(self, model: nn.Module, split: str, rows_of: RowsOf, progress: Progress) -> dict[str, Any]:
        """Values of the measures on a split."""
        ...

    def baselines(self, split: str = "test") -> dict[str, dict[str, float]]:
        """Values of the measures for forecasts without a graph network, from the same windows."""
        ...

    def forecast(self, model: nn.Module, split: str, rows_of: RowsOf) -> dict[str, Any] | None:
        """Forecast against truth over the snapshots of a split, as the report draws it; None where there is nothing to draw."""
        ...
