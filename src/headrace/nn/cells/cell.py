"""`Cell`: a recurrent cell over graphs, and what it says of its operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from headrace.nn.neighbor_sum import Steps, Where

State = tuple[Any, ...]


@dataclass(frozen=True)
class Operator:
    """A part of a cell: bound by memory ("graph") or by arithmetic ("dense"), and what it reads."""

    name: str
    kind: Literal["graph", "dense"]
    reads: frozenset[Literal["x", "state", "weights"]]

    @property
    def can_run_ahead(self) -> bool:
        """Whether it waits for no earlier snapshot."""
        return "state" not in self.reads

    @property
    def can_be_kept(self) -> bool:
        """Whether its result is the same at every step."""
        return self.kind == "graph" and self.reads == {"x"}


def graph(name: str, *reads: Literal["x", "state", "weights"]) -> Operator:
    """An operator that sums over neighbors."""
    return Operator(name, "graph", frozenset(reads))


def dense(name: str, *reads: Literal["x", "state", "weights"]) -> Operator:
    """An operator of products and elementwise maps."""
    return Operator(name, "dense", frozenset(reads))


class Cell(nn.Module):
    """A step of a recurrent model: `state = cell(x, graph, state)`, and `cell.rows(state)` is a row per node.

    A step is made of three parts, so that a schedule can run them apart: `fixed`, sums of x alone, which never change;
    `ahead`, what else waits for no state, of several snapshots together; `step`, the rest. `forward` is all of them for
    one snapshot. `operators` says what each part does: `headrace.snapshots.check_cell` runs the parts against `forward`.

    in_channels, out_channels: width of x and of `rows`.
    """

    operators: ClassVar[tuple[Operator, ...]] = ()
    per_node: ClassVar[tuple[int, ...]] = (0,)  # which parts of the state have a row per node
    stacks: ClassVar[bool] = True  # whether several groups can be one: no state is shared between nodes
    splits_rows: ClassVar[bool] = True  # whether ranks can hold some of the rows each
    in_channels: int
    out_channels: int

    def fixed(self, x: Tensor, where: Where) -> Tensor | None:  # [n, in] -> [n, wide]
        """Sums of x alone; None where there are none."""
        return None

    def ahead(self, x: Tensor, fixed: Tensor | None, where: Where | None, counts: Sequence[int]) -> list[Any]:
        """What a step reads that waits for no state: of snapshots with `counts` rows each, one after the other in x."""
        raise NotImplementedError

    def step(self, ahead: Any, where: Where, state: State) -> State:
        """The state after a snapshot."""
        raise NotImplementedError

    def stepwise(self, ahead: Any, where: Where, state: State) -> Steps[State]:
        """The same, with its sums asked for: a schedule may do something else meanwhile. Where a step sums nothing, this serves."""
        yield from ()
        return self.step(ahead, where, state)

    def start(self, rows: int, like: Tensor) -> State:
        """The state before the first snapshot."""
        return (like.new_zeros(rows, self.out_channels),)

    def rows(self, state: State) -> Tensor:  # -> [n, out]
        """What a head reads."""
        first: Tensor = state[0]
        return first

    def forward(self, x: Tensor, where: Where, state: State | None = None) -> State:
        (ready,) = self.ahead(x, self.fixed(x, where), where, [len(x)])
        return self.step(ready, where, self.start(len(x), x) if state is None else state)
