"""Strategies in which all ranks work on every piece, such as `Vertex`, which splits rows. What `balanced` is compared with.

Each runs the pieces of a step on all ranks together and leaves this rank's share of the gradient, which ranks then add.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from headrace.snapshots.classes import TwoWorkers, Work
from headrace.snapshots.halo import Lanes
from headrace.snapshots.operators import Operators
from headrace.snapshots.rows import Group

Loss = Callable[[Sequence[Group], Tensor], Tensor]  # of groups and the rows of their nodes that are here


@dataclass(frozen=True, eq=False)
class Outcome:
    """A step: losses of its pieces (on the rank that reports them), this rank's share of the gradient, and its seconds at work.

    The gradient is of the sum over groups.  # [parameters]
    """

    losses: list[float]
    gradient: Tensor
    busy: float


class Joint(Protocol):
    """A strategy. `reporter` is the rank that tells the losses."""

    reporter: int

    def run(self, pieces: Sequence[Sequence[Group]]) -> Outcome:
        """A step, on all ranks together."""
        ...


def differentiated(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradient by each parameter, None where the loss does not depend on it."""
    return list(torch.autograd.grad(loss, list(parameters), allow_unused=True))


def flat(gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """Gradients end to end, zeros where there are none."""
    parts = zip(gradients, parameters, strict=True)
    return torch.cat([torch.zeros_like(p).reshape(-1) if g is None else g.reshape(-1) for g, p in parts])


class Vertex:
    """Every rank does its rows of every snapshot. The loss of a group is a sum over ranks."""

    reporter = 0

    def __init__(
        self,
        operators: Operators,
        loss: Loss,
        parameters: Sequence[Tensor],
        lanes: Lanes,
        workers: TwoWorkers | None = None,
    ) -> None:
        self.operators, self.loss, self.parameters, self.lanes, self.workers = operators, loss, list(parameters), lanes, workers

    def run(self, pieces: Sequence[Sequence[Group]]) -> Outcome:
        begin, waited = perf_counter(), self._waited()
        if self.workers is None:
            made = [self._piece(groups, None) for groups in pieces]
        else:
            work = [Work(partial(self._piece, groups), ahead(self.operators, groups)) for groups in pieces]
            made = [future.result() for future in self.workers.start(work, pinned=True, on=self.lanes.take)]
        gradient = summed([part for _, part in made], self.parameters)
        busy = perf_counter() - begin - (self._waited() - waited)
        exchange = self.lanes.exchanges[0]
        losses = torch.tensor([loss for loss, _ in made], dtype=torch.float64)
        exchange.begin()
        total = exchange.all_gather("losses", losses).view(exchange.size, -1).sum(0)
        return Outcome(total.tolist(), gradient, max(busy, 0.0))

    def _piece(self, groups: Sequence[Group], sums: Any) -> tuple[float, Tensor]:
        loss = self.loss(groups, self.operators.rows(groups, sums))
        return float(loss.detach()), flat(differentiated(loss, self.parameters), self.parameters).mul_(len(groups))

    def _waited(self) -> float:
        return sum(traffic.seconds for exchange in self.lanes.exchanges for traffic in list(exchange.traffic.values()))


def ahead(operators: Operators, groups: Sequence[Group], span: range | None = None) -> Callable[[], Any] | None:
    """What of some groups can be made before their turn: sums of their features, where they come first."""
    if not (operators.hoist and operators.can_keep):
        return None
    times = operators.times(groups, range(groups[0].window) if span is None else span)
    return lambda: operators.fixed(times)


def summed(parts: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """In the order of pieces."""
    if not parts:
        return flat([None] * len(parameters), parameters)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
