"""`Dealing`: which rank takes which piece of a step, by costs that follow measured seconds; and how well that went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headrace.graph import Snapshots
from headrace.nn.cells import Cell
from headrace.nn.order import step_cost
from headrace.ranks import Exchange, Ranks
from headrace.snapshots.balance import DEALS, Balance, dealt, sequential
from headrace.snapshots.costs import Costs
from headrace.snapshots.rows import Group
from headrace.train.snapshots.by_step import BySteps


@dataclass(frozen=True)
class Piece:
    """A batch: groups that one rank runs together, as number `index` of the epoch."""

    index: int
    groups: tuple[Group, ...]


class Dealing:
    """Deals pieces by `strategy`. All ranks call it alike, so that all know what each measured.

    most: pieces of a step, at the most.
    """

    def __init__(self, snapshots: Snapshots, cell: Cell, strategy: str, ranks: Ranks, exchange: Exchange | None, most: int) -> None:
        self.snapshots, self.strategy, self.ranks, self.exchange = snapshots, strategy, ranks, exchange
        self.exchanges = [] if exchange is None else [exchange]  # whose bytes count
        self.costs = Costs(ranks.size, first=_first_costs(snapshots, cell))
        self.last: tuple[list[Piece], tuple[int, ...]] | None = None  # a step whose seconds are not yet known to all
        self._edges = snapshots.num_edges
        self._seconds = torch.zeros(most, dtype=torch.float64)  # of the last step, those of this rank
        self._sums = {"makespan": 0.0, "bound": 0.0, "busy": 0.0, "steps": 0}
        self.by_step = BySteps()
        self._balance: dict[str, float] = {}
        self._traffic = 0  # that was sent before this epoch
        self._sent = 0  # before the step
        self._joint = False

    def deal(self, pieces: list[Piece], reporter: int | None = None) -> tuple[int, ...]:
        """The rank of each piece; `reporter` where all ranks do all of them."""
        self.learn()
        if reporter is None:
            costs = self.costs.of([self.size(piece) for piece in pieces])
            owner = DEALS.get(self.strategy, sequential)(costs, self.ranks.size, self.costs.speeds).owner
        else:
            owner = (reporter,) * len(pieces)
        self.last, self._joint = (pieces, owner), reporter is not None
        self._seconds.zero_()
        return owner

    def measured(self, piece: Piece, seconds: float) -> None:
        """What this rank took for a piece; or for all, where all ranks do them."""
        if self.last is not None:
            self._seconds[piece.index - self.last[0][0].index] = seconds

    def took(self, seconds: float) -> None:
        """What this rank took for all its pieces, where they ran side by side: each had its share."""
        if total := float(self._seconds.sum()):
            self._seconds *= seconds / total

    def size(self, piece: Piece) -> tuple[float, float, float]:
        """Edges, nodes and snapshots."""
        return self.size_of([at for group in piece.groups for at in group.times])

    def size_of(self, times: Sequence[int]) -> tuple[float, float, float]:
        """Edges and nodes of some snapshots, and their number."""
        snapshots = self.snapshots
        nodes = [snapshots.num_nodes if snapshots.nodes is None else len(snapshots.nodes[at]) for at in times]
        return float(sum(self._edges[at] for at in times)), float(sum(nodes)), float(len(times))

    def first_cost(self, at: int) -> float:
        """The cost of a snapshot before any second was measured."""
        return float(self.costs.first @ self.size_of([at]))

    def learn(self) -> None:
        """Take the seconds of the last step, on all ranks alike."""
        if self.last is None:
            return
        pieces, owner = self.last
        self.last = None
        size, seconds = self.ranks.size, self._seconds.view(1, -1)
        if self.exchange is not None:
            seconds = self.exchange.all_gather("costs", self._seconds).view(size, -1)
        if self._joint:
            loads = seconds.sum(1).tolist()
            came = Balance(tuple(owner), tuple(loads), sum(loads) / size)
        else:
            measured = seconds.sum(0)[: len(pieces)].tolist()
            for rank in range(size):
                own = [number for number, other in enumerate(owner) if other == rank]
                self.costs.measure(rank, [self.size(pieces[number]) for number in own], [measured[number] for number in own])
            came = dealt(measured, owner, size)
        sent = self._bytes_sent()
        self.by_step.add(came, sent - self._sent)
        self._sent = sent
        self._sums["makespan"] += came.makespan
        self._sums["bound"] += came.bound
        self._sums["busy"] += sum(came.loads)
        self._sums["steps"] += 1

    @property
    def balance(self) -> dict[str, float]:
        """Of the last epoch: seconds a step, idle share, bytes that this rank sent a step."""
        return self._balance

    def end_epoch(self) -> dict[str, float]:
        """Close the account of an epoch."""
        self.learn()
        sums, before = self._sums, self._traffic
        self._traffic = self._bytes_sent()
        if sums["steps"]:
            span = sums["makespan"]
            self._balance = {
                "makespan": span / sums["steps"],
                "bound": sums["bound"] / sums["steps"],
                "idle": 1 - sums["busy"] / (self.ranks.size * span) if span else 0.0,
                "bytes": (self._traffic - before) / sums["steps"],
            }
        self._sums = dict.fromkeys(sums, 0)
        return self._balance

    def _bytes_sent(self) -> int:
        """By this rank, in all that counts."""
        return sum(traffic.sent for exchange in self.exchanges for traffic in exchange.traffic.values())

    def state_dict(self) -> dict[str, Any]:
        return self.costs.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.costs.load_state_dict(state)


def _first_costs(snapshots: Snapshots, cell: Cell) -> tuple[float, float, float]:
    """Multiply-adds of an edge and of a node."""
    graph = snapshots.own_graph(0)
    whole = step_cost(graph, cell.in_channels, cell.out_channels, "aggregate", "all")
    product = 3 * graph.num_nodes * cell.in_channels * cell.out_channels
    edge = (whole - product) / max(graph.num_edges, 1)
    return max(edge, 1.0), 3.0 * 4 * cell.out_channels * (cell.in_channels + cell.out_channels), 1000.0
