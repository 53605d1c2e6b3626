"""`SnapshotRecipe`: forecasts on snapshot groups in the loop. A batch is a piece of work: groups that one rank runs together."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.ranks import Exchange, sum_gradients
from headrace.snapshots.check import check_cell
from headrace.snapshots.classes import TwoWorkers, Work
from headrace.snapshots.halo import Lanes, SplitRows, check_splits
from headrace.snapshots.kept import KeptSums
from headrace.snapshots.operators import Operators
from headrace.snapshots.rows import Group
from headrace.train.fit import Setup
from headrace.train.recipe import LossError, Progress, Recipe, Step
from headrace.train.snapshots.dealing import Dealing, Piece
from headrace.train.snapshots.heads.classes import Classes
from headrace.train.snapshots.heads.head import Head
from headrace.train.snapshots.heads.links import Links
from headrace.train.snapshots.heads.values import Values
from headrace.train.snapshots.joint import Joint, Outcome, Vertex, ahead, differentiated
from headrace.train.snapshots.model import make_cell
from headrace.train.snapshots.options import SnapshotOptions
from headrace.train.snapshots.pieces import Pieces
from headrace.train.snapshots.relay import Relay
from headrace.train.snapshots.windows import Windows
from headrace.train.watching.clock import Clock

_HEADS: dict[str, Callable[[Windows, SnapshotOptions], Head]] = {"values": Values, "classes": Classes, "links": Links}


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
        self.device = torch.device(options.device)
        if self.device.type != "cpu" and setup.ranks.size > 1:
            raise ValueError(f"a GPU trains on snapshots in one process, and there are {setup.ranks.size} ranks: start one")
        windows = windows.to(self.device)
        self.windows, self.options, self.ranks, self.exchange = windows, options, setup.ranks, setup.exchange
        cell = make_cell(options, windows.snapshots.num_features)
        check_cell(cell)
        self.head: Head = _HEADS[windows.predict](windows, options)
        self.measures = self.head.measures
        self.model = self.head.make_model(cell).to(self.device)
        self.kept = KeptSums(options.keep * 2**20) if options.hoist and options.keep else None
        self.operators = Operators(cell, windows.snapshots, hoist=options.hoist, kept=self.kept)
        self.dealing = Dealing(windows.snapshots, cell, options.strategy, self.ranks, self.exchange, options.batches_per_step)
        self._mine: deque[Piece] = deque()
        self._workers: TwoWorkers | None = None
        self._on_gpu: Pieces | None = None  # on a GPU
        if self.device.type != "cpu":
            self._on_gpu = Pieces(self.operators, self.head, self.model, options)
            setup.watcher.note(self._on_gpu.reason)
        elif options.overlap:
            self._workers = TwoWorkers()
            setup.opened.callback(self._workers.close)
        self._under_way: dict[int, Future[tuple[Tensor, list[Tensor | None], float]]] = {}
        self._joint = self._make_joint(setup) if options.strategy in ("vertex", "snapshot") and self.ranks.size > 1 else None
        self._done: Outcome | None = None  # of the step, where all ranks do it together
        self._step: list[Piece] = []
        if self._joint is not None:
            self.own_gradients = self._parameters
        for line in self.operators.explain():
            setup.watcher.note(line)
        if self.kept is not None:
            self.operators.fixed([windows.groups["train"][0].first])
            if self.kept.refused:
                setup.watcher.note(self.kept.reason)

    def _make_joint(self, setup: Setup) -> Joint:
        """A strategy in which ranks share every group. It keeps sums within half of the budget, validation within the other."""
        options, cell, snapshots = self.options, self.operators.cell, self.windows.snapshots
        assert self.exchange is not None
        kept = None
        if self.kept is not None:
            self.kept.budget /= 2
            kept = KeptSums(self.kept.budget)
        if options.strategy == "snapshot":
            operators = Operators(cell, snapshots, hoist=options.hoist, kept=kept)
            cost = self.dealing.first_cost
            return Relay(operators, self.loss_of, self._parameters, self.exchange, cost, options.window, self._workers)
        check_splits(cell)
        lanes = Lanes([self.exchange])
        if self._workers is not None:
            lanes.exchanges.append(Exchange(setup.ranks))
            setup.opened.callback(lanes.exchanges[1].close)
            self.dealing.exchanges = lanes.exchanges
        rows = SplitRows(snapshots, self.ranks.rank, lanes)
        operators = Operators(cell, snapshots, hoist=options.hoist, kept=kept, rows=rows)
        return Vertex(operators, lambda groups, own: self.loss_of(groups, own, rows.ids), self._parameters, lanes, self._workers)

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

    def steps_of(self, epoch: int) -> list[list[Group]]:
        """The groups of each step of an epoch."""
        each, pieces = self.options.batches_per_step, self._order(epoch)
        steps = [pieces[begin : begin + each] for begin in range(0, len(pieces), each)]
        return [[group for piece in step for group in piece.groups] for step in steps]

    @property
    def pieces_of_step(self) -> list[Piece]:
        """Of the last step that was dealt."""
        return self._step

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
        self._step, self._done, self._begin = self._pieces[first : first + count], None, perf_counter()
        owner = self.dealing.deal(self._step, None if self._joint is None else self._joint.reporter)
        mine = [piece for piece, rank in zip(self._step, owner, strict=True) if rank == self.ranks.rank]
        if self.ranks.size > 1:
            self._mine.extend(mine)
        if self._workers is not None and self._joint is None:
            work = [self._work(piece) for piece in mine]
            self._under_way = dict(zip((piece.index for piece in mine), self._workers.start(work), strict=True))
        return owner

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
        if self._joint is not None:
            with clock("together", batch.index):
                losses = self._together().losses
            return Step(losses[batch.index - self._step[0].index], len(batch.groups), ready=True)
        if (future := self._under_way.pop(batch.index, None)) is not None:
            with clock("overlapped", batch.index):
                loss, gradients, seconds = future.result()
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient
            self.dealing.measured(batch, seconds)
            return Step(loss, len(batch.groups), ready=True)
        begin = perf_counter()
        done = super().gradients(batch, clock) if self._on_gpu is None else self._launch(self._on_gpu, batch, clock)
        self.dealing.measured(batch, perf_counter() - begin)
        return done

    def _launch(self, pieces: Pieces, batch: Piece, clock: Clock) -> Step:
        with clock("launch", batch.index):
            loss, gradients = pieces(batch.groups)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        with clock("wait for the GPU", batch.index):  # the loss is read next in any case, and seconds are of what was done
            pieces.wait()
        return Step(loss, len(batch.groups), ready=True)

    def step(self, batch: Piece, clock: Clock) -> Step:
        if self._on_gpu is None:
            return super().step(batch, clock)
        assert self.update is not None
        done = self._launch(self._on_gpu, batch, clock)
        if not math.isfinite(loss := done.read().take()[0]):
            raise LossError(loss)
        with clock("step"):
            self.update()
        return replace(done, loss=loss)

    @property
    def _parameters(self) -> list[torch.nn.Parameter]:
        return list(self.model.parameters())

    def _together(self) -> Outcome:
        """The step, which all ranks do together."""
        if self._done is None:
            assert self._joint is not None
            self._done = self._joint.run([piece.groups for piece in self._step])
            self.dealing.measured(self._step[0], self._done.busy)
        return self._done

    def end_batches(self) -> None:
        if self._joint is not None:
            self._together()
        elif self._workers is not None:
            self.dealing.took(perf_counter() - self._begin)

    def close_step(self, weight: float) -> None:
        if self._joint is None:
            return
        size = self.ranks.size
        total = sum_gradients([self._together().gradient], batches=size, exchange=self.exchange) / weight
        parts = total.split([parameter.numel() for parameter in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def _work(self, piece: Piece) -> Work[tuple[Tensor, list[Tensor | None], float]]:
        return Work(lambda sums: self._differentiated(piece, sums), ahead(self.operators, piece.groups))

    def _differentiated(self, piece: Piece, sums: Any) -> tuple[Tensor, list[Tensor | None], float]:
        begin = perf_counter()
        loss = self.loss_of(piece.groups, self.operators.rows(piece.groups, sums))
        gradients = differentiated(loss, self._parameters)
        return loss.detach(), gradients, perf_counter() - begin

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
        return {"balance": {**self.dealing.end_epoch(), "steps": self.dealing.by_step.taken()}}

    def finish(self, run: Any) -> dict[str, Any]:
        notes = {} if self.kept is None else {"kept": self.kept.reason}
        return {**super().finish(run), "balance": self.dealing.balance, **notes}

    def state_dict(self) -> dict[str, Any]:
        return {"costs": self.dealing.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.dealing.load_state_dict(state["costs"])
