"""`SnapshotRecipe`: forecasts on snapshot groups in the loop. A batch is a piece of work: groups that one rank runs together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.nn.order import step_cost
from headrace.snapshots.balance import DEALS, dealt
from headrace.snapshots.classes import TwoWorkers
from headrace.snapshots.costs import Costs
from headrace.snapshots.operators import Group, KeptSums, Operators, check_cell
from headrace.train.fit import Setup
from headrace.train.recipe import Progress, Recipe, Step
from headrace.train.snapshots.by_step import BySteps
from headrace.train.snapshots.heads.classes import Classes
from headrace.train.snapshots.heads.head import Head
from headrace.train.snapshots.heads.links import Links
from headrace.train.snapshots.heads.values import Values
from headrace.train.snapshots.model import make_cell
from headrace.train.snapshots.options import SnapshotOptions
from headrace.train.snapshots.windows import Windows
from headrace.train.watching.clock import Clock

_HEADS: dict[str, Callable[[Windows, SnapshotOptions], Head]] = {"values": Values, "classes": Classes, "links": Links}


@dataclass(frozen=True)
class Piece:
    """A batch: groups that one rank runs together, as number `index` of the epoch."""

    index: int
    groups: tuple[Group, ...]


class _Queue(Iterator[Piece]):
    """Pieces of this rank, as they are dealt."""

    def __init__(self, pieces: deque[Piece]) -> None:
        self._pieces = pieces

    def __next__(self) -> Piece:
        if not self._pieces:
            raise StopIteration
        return self._pieces.popleft()


class SnapshotRecipe(Recipe):
    """A step is a set of groups, its loss the mean of theirs: the same under every strategy and for any number of ranks."""

    def __init__(self, windows: Windows, setup: Setup) -> None:
        options: SnapshotOptions = setup.options
        self.windows, self.options, self.ranks, self.exchange = windows, options, setup.ranks, setup.exchange
        cell = make_cell(options, windows.snapshots.num_features)
        check_cell(cell)
        self.head: Head = _HEADS[windows.predict](windows, options)
        self.measures = self.head.measures
        self.model = self.head.make_model(cell)
        self.kept = KeptSums(options.keep * 2**20) if options.hoist and options.keep else None
        self.operators = Operators(cell, windows.snapshots, hoist=options.hoist, kept=self.kept)
        self.costs = Costs(self.ranks.size, first=self._first_costs())
        self._edges = windows.snapshots.num_edges
        self._mine: deque[Piece] = deque()
        self._workers: TwoWorkers | None = None
        if options.overlap:
            self._workers = TwoWorkers()
            setup.opened.callback(self._workers.close)
        self._under_way: dict[int, Future[tuple[Tensor, list[Tensor | None], float]]] = {}
        self._seconds = torch.zeros(options.batches_per_step, dtype=torch.float64)  # of the last step, those of this rank
        self._last_deal: tuple[list[Piece], tuple[int, ...]] | None = None
        self._sums = {"makespan": 0.0, "bound": 0.0, "busy": 0.0, "steps": 0}
        self._balance: dict[str, Any] = {}
        self._by_step = BySteps()
        self._traffic = 0
        for line in self.operators.explain():
            setup.watcher.note(line)
        if self.kept is not None:
            self.operators.fixed([windows.groups["train"][0].first])
            if self.kept.refused:
                setup.watcher.note(self.kept.reason)

    def _first_costs(self) -> tuple[float, float, float]:
        """Multiply-adds of an edge and of a node, before any second was measured."""
        snapshots, cell = self.windows.snapshots, self.operators.cell
        graph = snapshots.own_graph(0)
        whole = step_cost(graph, cell.in_channels, cell.out_channels, "aggregate", "all")
        product = 3 * graph.num_nodes * cell.in_channels * cell.out_channels
        edge = (whole - product) / max(graph.num_edges, 1)
        return max(edge, 1.0), 3.0 * 4 * cell.out_channels * (cell.in_channels + cell.out_channels), 1000.0

    def _order(self, epoch: int) -> list[Piece]:
        """The pieces of an epoch: groups in a random order, each step's in order of time, cut into pieces."""
        options, groups = self.options, self.windows.groups["train"]
        draw = np.random.Generator(np.random.Philox(key=[options.seed, epoch]))
        order = draw.permutation(len(groups))
        pieces: list[Piece] = []
        for begin in range(0, len(order), options.groups):
            step = [groups[i] for i in sorted(order[begin : begin + options.groups])]
            parts = [step[i : i + options.stack] for i in range(0, len(step), options.stack)]
            pieces += [Piece(len(pieces) + number, tuple(part)) for number, part in enumerate(parts)]
        return pieces

    def num_batches(self, epoch: int) -> int:
        whole, rest = divmod(len(self.windows.groups["train"]), self.options.groups)
        return whole * self.options.batches_per_step + -(-rest // self.options.stack)

    def batches(self, epoch: int, first: int) -> Iterator[Piece]:
        self._pieces, self.head.epoch = self._order(epoch), epoch
        self._mine.clear()
        if self.ranks.size == 1:
            self._mine.extend(self._pieces[first:])
        return _Queue(self._mine)

    def owners(self, epoch: int, first: int, count: int) -> Sequence[int]:
        self._learn()
        pieces = self._pieces[first : first + count]
        deal = DEALS[self.options.strategy](
            self.costs.of([self._size(piece) for piece in pieces]), self.ranks.size, self.costs.speeds
        )
        self._last_deal = pieces, deal.owner
        self._seconds.zero_()
        mine = [piece for piece, owner in zip(pieces, deal.owner, strict=True) if owner == self.ranks.rank]
        if self.ranks.size > 1:
            self._mine.extend(mine)
        if self._workers is not None:
            work = [lambda piece=piece: self._differentiated(piece) for piece in mine]
            self._under_way = dict(zip((piece.index for piece in mine), self._workers.start(work), strict=True))
        return deal.owner

    def _size(self, piece: Piece) -> tuple[float, float, float]:
        snapshots = self.windows.snapshots
        times = [at for group in piece.groups for at in group.times]
        nodes = [snapshots.num_nodes if snapshots.nodes is None else len(snapshots.nodes[at]) for at in times]
        return float(sum(self._edges[at] for at in times)), float(sum(nodes)), float(len(times))

    def _learn(self) -> None:
        """Take the seconds of the last step, on all ranks alike."""
        if self._last_deal is None:
            return
        pieces, owner = self._last_deal
        self._last_deal = None
        seconds = self._seconds
        if self.exchange is not None:
            seconds = self.exchange.all_gather("costs", seconds).view(self.ranks.size, -1).sum(0)
        measured = seconds[: len(pieces)].tolist()
        for rank in range(self.ranks.size):
            own = [number for number, other in enumerate(owner) if other == rank]
            self.costs.measure(rank, [self._size(pieces[number]) for number in own], [measured[number] for number in own])
        came = dealt(measured, owner, self.ranks.size)
        self._by_step.add(came)
        self._sums["makespan"] += came.makespan
        self._sums["bound"] += came.bound
        self._sums["busy"] += sum(came.loads)
        self._sums["steps"] += 1

    def loss_of(self, groups: Sequence[Group], rows: Tensor | None = None, nodes: Tensor | None = None) -> Tensor:
        """The mean over groups of each one's loss.

        rows: of the groups' nodes, if they are known; nodes: which they are of, where not all: the loss is a sum over such parts.
        """
        rows = self.operators.rows(groups) if rows is None else rows
        return self.head.losses(self.model, rows, groups, nodes).mean()

    def loss(self, batch: Piece, clock: Clock) -> Step:
        with clock("forward", batch.index):
            loss = self.loss_of(batch.groups)
        return Step(loss, len(batch.groups))

    def gradients(self, batch: Piece, clock: Clock) -> Step:
        if (future := self._under_way.pop(batch.index, None)) is not None:
            with clock("overlapped", batch.index):
                loss, gradients, seconds = future.result()
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient
            self._measured(batch, seconds)
            return Step(loss, len(batch.groups), ready=True)
        begin = perf_counter()
        done = super().gradients(batch, clock)
        self._measured(batch, perf_counter() - begin)
        return done

    @property
    def _parameters(self) -> list[torch.nn.Parameter]:
        return list(self.model.parameters())

    def _differentiated(self, piece: Piece) -> tuple[Tensor, list[Tensor | None], float]:
        begin = perf_counter()
        loss = self.loss_of(piece.groups)
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        return loss.detach(), list(gradients), perf_counter() - begin

    def _measured(self, piece: Piece, seconds: float) -> None:
        if self._last_deal is not None:
            self._seconds[piece.index - self._last_deal[0][0].index] = seconds

    def validate(self, progress: Progress) -> dict[str, Any] | None:
        return self._score("val", progress) if self.windows.groups["val"] else None

    def test(self, progress: Progress) -> dict[str, dict[str, Any] | None]:
        if not self.windows.groups["test"]:
            return {}
        scores = self._score("test", progress)
        if scores is None:
            return {"test": None}
        with torch.no_grad():
            drawn = self.head.forecast(self.model, "test", self.operators.rows)
        return {"test": {**scores, "baselines": self.head.baselines(), **({} if drawn is None else {"forecast": drawn})}}

    def _score(self, split: str, progress: Progress) -> dict[str, Any] | None:
        """On rank 0, which tells the others."""
        if self.ranks.rank:
            return None
        self.model.eval()
        with torch.no_grad():
            return self.head.figures(self.model, split, self.operators.rows, progress)

    def facts(self) -> dict[str, Any]:
        sums, size = self._sums, self.ranks.size
        if self.exchange is not None:
            sent = sum(traffic.sent for traffic in self.exchange.traffic.values())
            self._traffic, sent = sent, sent - self._traffic
        else:
            sent = 0
        if sums["steps"]:
            span = sums["makespan"]
            self._balance = {
                "makespan": span / sums["steps"],
                "bound": sums["bound"] / sums["steps"],
                "idle": 1 - sums["busy"] / (size * span) if span else 0.0,
                "bytes": sent / sums["steps"],
            }
        self._sums = dict.fromkeys(sums, 0)
        return {"balance": {**self._balance, "steps": self._by_step.taken()}}

    def finish(self, run: Any) -> dict[str, Any]:
        notes = {} if self.kept is None else {"kept": self.kept.reason}
        return {**super().finish(run), "balance": self._balance, **notes}

    def state_dict(self) -> dict[str, Any]:
        return {"costs": self.costs.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.costs.load_state_dict(state["costs"])
