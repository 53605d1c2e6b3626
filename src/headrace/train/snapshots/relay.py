"""`Relay`: snapshots of every window spread over ranks, states shipped where one rank's run ends and the next one's begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from headrace.nn.cells.cell import State
from headrace.ranks import Exchange, Transfer
from headrace.snapshots.classes import TwoWorkers, Work
from headrace.snapshots.operators import Operators
from headrace.snapshots.relay import Turn, runs, ticks
from headrace.snapshots.rows import Group
from headrace.train.snapshots.joint import Loss, Outcome, ahead, flat, summed


class Relay:
    """A rank does a run of each window's snapshots, from the state that the rank before it ended with.

    cost: of a snapshot, by which runs are cut. It must follow from sizes alone: where a run ends decides in which order a gradient
        is added up.
    """

    def __init__(
        self,
        operators: Operators,
        loss: Loss,
        parameters: Sequence[Tensor],
        exchange: Exchange,
        cost: Callable[[int], float],
        window: int,
        workers: TwoWorkers | None = None,
    ) -> None:
        self.operators, self.loss, self.parameters, self.exchange = operators, loss, list(parameters), exchange
        self.cost, self.workers, self.rank = cost, workers, exchange.rank
        self.reporter = min(exchange.size, window) - 1  # the last rank that has a run
        self._together = 1 if workers is None else 2  # pieces of a turn

    def run(self, pieces: Sequence[Sequence[Group]]) -> Outcome:
        return _Relayed(self, pieces).run()


class _Relayed:
    """A step of a relay: pieces in bundles, one for each worker."""

    def __init__(self, relay: Relay, pieces: Sequence[Sequence[Group]]) -> None:
        self.relay, self.pieces, self.rank = relay, pieces, relay.rank
        self.last = relay.reporter
        each = relay._together
        self.bundles = [range(begin, min(begin + each, len(pieces))) for begin in range(0, len(pieces), each)]
        self.runs = [self._runs(groups) for groups in pieces]
        self.sizes = [_flattened(relay.operators.start(groups)).numel() for groups in pieces]
        self.come: dict[int, Tensor] = {}  # the state that a piece begins with, or the gradient of that it ended with
        self.begun: dict[int, tuple[Tensor, Tensor | None]] = {}  # by piece: what it ended with, and began with
        self.gradients: dict[int, Tensor] = {}
        self.losses = [0.0] * len(pieces)
        self.busy = 0.0

    def _runs(self, groups: Sequence[Group]) -> list[range]:
        costs = [sum(self.relay.cost(group.first + place) for group in groups) for place in range(groups[0].window)]
        return runs(costs, self.relay.exchange.size)

    def run(self) -> Outcome:
        arriving: list[Callable[[], None]] = []
        for tick in ticks(len(self.bundles), self.last + 1):
            turn = tick[self.rank] if self.rank <= self.last else None
            if turn is not None:
                while arriving and not all(piece in self.come for piece in self._needs(turn)):
                    arriving.pop(0)()
                self._do(turn)
            arriving += self._send(tick, turn)
        for arrive in arriving:
            arrive()
        gradient = summed([self.gradients[number] for number in sorted(self.gradients)], self.relay.parameters)
        return Outcome(self.losses, gradient, self.busy)

    def _needs(self, turn: Turn) -> list[int]:
        """Pieces whose state or gradient must have come."""
        waits = self.rank > 0 if turn.way == "forward" else self.rank < self.last
        return list(self.bundles[turn.piece]) if waits else []

    def _do(self, turn: Turn) -> None:
        begin, bundle = perf_counter(), self.bundles[turn.piece]
        if turn.way == "forward":
            work = [Work(partial(self._forward, number), self._ahead(number)) for number in bundle]
        else:
            work = [Work(partial(self._back, number)) for number in bundle]
        if self.relay.workers is None:
            for piece in work:
                piece.chain(None)
        else:
            for future in self.relay.workers.start(work):
                future.result()
        self.busy += perf_counter() - begin

    def _ahead(self, number: int) -> Callable[[], Any] | None:
        return ahead(self.relay.operators, self.pieces[number], self.runs[number][self.rank])

    def _forward(self, number: int, sums: Any) -> None:
        groups, operators = self.pieces[number], self.relay.operators
        states, came = operators.start(groups), None
        if self.rank > 0:
            came = self.come.pop(number).requires_grad_()
            states = _restored(came, states)
        states = operators.advance(groups, states, self.runs[number][self.rank], sums)
        if self.rank < self.last:
            self.begun[number] = _flattened(states), came
            return
        loss = self.relay.loss(groups, operators.ended(groups, states))
        self.losses[number] = float(loss.detach())
        self.begun[number] = loss, came

    def _back(self, number: int, _: Any = None) -> None:
        ended, came = self.begun.pop(number)
        given = self.come.pop(number) if self.rank < self.last else None
        inputs = [*self.relay.parameters, *([] if came is None else [came])]
        made = list(torch.autograd.grad(ended, inputs, given, allow_unused=True))
        scale = len(self.pieces[number])
        if came is not None:
            gradient = made.pop()
            self.begun[number] = torch.zeros_like(came) if gradient is None else gradient, None
        self.gradients[number] = flat(made, self.relay.parameters).mul_(scale)

    def _send(self, tick: Sequence[Turn | None], turn: Turn | None) -> list[Callable[[], None]]:
        """Start to send what this tick made, states on and gradients back; what is returned waits for what others made."""
        arriving: list[Callable[[], None]] = []
        for way, phase, step in (("forward", "states", 1), ("back", "state gradients", -1)):
            senders = [
                rank
                for rank, theirs in enumerate(tick)
                if theirs is not None and theirs.way == way and 0 <= rank + step <= self.last
            ]
            if not senders:
                continue
            exchange, sending, receiving = self.relay.exchange, [0] * self.relay.exchange.size, [0] * self.relay.exchange.size
            parts: list[Tensor] = []
            if self.rank in senders:
                assert turn is not None
                for number in self.bundles[turn.piece]:
                    ended = self.begun[number][0] if way == "forward" else self.begun.pop(number)[0]
                    parts.append(ended.detach())
                sending[self.rank + step] = sum(map(len, parts))
            numbers: range = range(0)
            if self.rank - step in senders:
                theirs = tick[self.rank - step]
                assert theirs is not None
                numbers = self.bundles[theirs.piece]
                receiving[self.rank - step] = sum(self.sizes[number] for number in numbers)
            exchange.begin()
            sent = torch.cat(parts) if parts else torch.zeros(0, dtype=self.relay.parameters[0].dtype)
            transfer = exchange.all_to_all(phase, sent, sending=sending, receiving=receiving)
            arriving.append(partial(self._arrived, transfer, numbers))
        return arriving

    def _arrived(self, transfer: Transfer, numbers: range) -> None:
        for number, part in zip(numbers, transfer.wait().split([self.sizes[number] for number in numbers]), strict=True):
            self.come[number] = part.clone()


def _flattened(states: Sequence[State]) -> Tensor:
    """The parts of states end to end, numbers among them."""
    like = next(part for part in states[0] if isinstance(part, Tensor))
    return torch.cat([_as_flat(part, like) for state in states for part in state])


def _as_flat(part: Any, like: Tensor) -> Tensor:
    return part.reshape(-1) if isinstance(part, Tensor) else like.new_tensor([float(part)])


def _restored(values: Tensor, like: Sequence[State]) -> list[State]:
    """States of the form of `like`, from what `_flattened` gave."""
    counts = [part.numel() if isinstance(part, Tensor) else 1 for state in like for part in state]
    pieces = iter(values.split(counts))
    return [tuple(_as_part(next(pieces), part) for part in state) for state in like]


def _as_part(values: Tensor, like: Any) -> Any:
    return values.view(like.shape) if isinstance(like, Tensor) else int(values.detach())
