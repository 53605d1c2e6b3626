"""Operators of a group of snapshots in another order, with the same result: sums that read x alone come first, or were kept.

A group is a window of snapshots with its own initial state. Hoisted, all sums of features of a group are one: over columns side by
side where its snapshots have one graph, over a block-diagonal graph where they differ. Groups over one graph are stacked, so that
a step of all of them is one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace.graph import Graph, Snapshots
from headrace.nn.cells import Cell
from headrace.nn.cells.cell import State
from headrace.nn.neighbor_sum import counting

_TOGETHER = 1 << 20  # edges up to which different graphs are summed over as one: beyond it a launch costs nothing beside the sum


class Group(NamedTuple):
    """Snapshots `first` to `first + window`, whose forecast begins right after."""

    first: int
    window: int

    @property
    def times(self) -> range:
        return range(self.first, self.first + self.window)


class KeptSums:
    """Sums of the features of snapshots that never change, within `budget` bytes: a snapshot is in `window` groups of every epoch.

    What does not fit is summed at every use; `reason` says so.
    """

    def __init__(self, budget: float = float("inf")) -> None:
        if not budget >= 0:
            raise ValueError(f"the budget of kept sums must be a number of bytes from 0 on, not {budget}")
        self.budget, self.nbytes = budget, 0
        self._kept: dict[int, Tensor] = {}
        self.refused = 0

    def get(self, at: int) -> Tensor | None:
        return self._kept.get(at)

    def put(self, at: int, sums: Tensor) -> None:
        """Keep the sums of a snapshot, where there is room."""
        if at in self._kept:
            return
        if self.nbytes + sums.nbytes > self.budget:
            self.refused += 1
            return
        self._kept[at] = sums.contiguous()
        self.nbytes += sums.nbytes

    @property
    def reason(self) -> str:
        kept = f"sums of {len(self._kept)} snapshots kept in {self.nbytes:,} bytes"
        if self.refused and not self._kept:
            return f"no sums kept: one takes more than the budget of {self.budget:,.0f} bytes"
        return kept + (f"; others are made at every use (budget {self.budget:,.0f} bytes)" if self.refused else "")


class Operators:
    """Runs a cell over groups of snapshots.

    hoist: whether sums that read x alone are made before the recurrent steps; else the cell runs snapshot by snapshot.
    kept: where such sums are kept; None for nowhere.
    """

    def __init__(self, cell: Cell, snapshots: Snapshots, *, hoist: bool = True, kept: KeptSums | None = None) -> None:
        if snapshots.x is None:
            raise ValueError("these snapshots have no features: give x")
        self.cell, self.snapshots, self.hoist, self.kept = cell, snapshots, hoist, kept
        self.x: list[Tensor] = snapshots.x
        self.one_graph = snapshots.nodes is None and snapshots.same_as(len(snapshots) - 1) == 0
        self.sums_state = any(op.kind == "graph" and "state" in op.reads for op in cell.operators)
        self.stacks = hoist and cell.stacks and snapshots.nodes is None and (self.one_graph or not self.sums_state)
        self._copies: dict[int, Graph] = {}

    def explain(self) -> list[str]:
        """What is done to the cell's operators, and what is not, with the reason."""
        name = type(self.cell).__name__
        if not self.hoist:
            return [f"{name}: snapshot by snapshot (hoisting is off)"]
        lines = []
        for op in self.cell.operators:
            if op.kind != "graph":
                continue
            if op.can_be_kept:
                how = "kept" if self.kept is not None else "hoisted, one sum a group"
            else:
                how = (
                    "hoisted: it reads weights, so it is made at every step" if op.can_run_ahead else "in the chain: it reads state"
                )
            lines.append(f"{name}, {op.name}: {how}")
        if self.stacks:
            lines.append("groups are stacked: a step of all of them is one product")
        elif not self.cell.stacks:
            lines.append("groups are not stacked: the cell looks at all rows of a snapshot together")
        else:
            lines.append("groups are not stacked: " + ("nodes change" if self.snapshots.nodes is not None else "graphs change"))
        return lines

    def rows(self, groups: Sequence[Group]) -> Tensor:  # -> [groups, num_nodes, out]
        """The rows of every node after the last snapshot of each group."""
        if not self.hoist:
            return torch.stack([self._plain(group) for group in groups])
        if self.stacks:
            return self._stacked(groups)
        return torch.stack([self._hoisted(group) for group in groups])

    def fixed(self, times: Sequence[int]) -> dict[int, Tensor | None]:
        """Sums of the features of some snapshots."""
        sums: dict[int, Tensor | None] = {}
        if self.kept is not None:
            sums = {at: known for at in times if (known := self.kept.get(at)) is not None}
        missing = sorted(set(times) - sums.keys())
        if missing:
            with torch.no_grad():
                made = self._summed(missing)
            sums |= made
            if self.kept is not None:
                for at, part in made.items():
                    if part is not None:
                        self.kept.put(at, part)
        return sums

    def _summed(self, times: Sequence[int]) -> dict[int, Tensor | None]:
        rows = [self.x[at] for at in times]
        if not any(op.can_be_kept for op in self.cell.operators):
            return dict.fromkeys(times)
        graphs = [self.snapshots.own_graph(at) for at in times]
        if len({id(graph) for graph in graphs}) == 1:
            wide = self.cell.fixed(torch.cat(rows, dim=1), graphs[0])
            assert wide is not None
            parts = wide.view(len(rows[0]), -1, len(times), rows[0].shape[1]).permute(2, 0, 1, 3).flatten(2)
            return dict(zip(times, parts, strict=True))
        if sum(graph.num_edges for graph in graphs) <= _TOGETHER:
            together = self.cell.fixed(torch.cat(rows), block_diagonal(graphs))
            assert together is not None
            return dict(zip(times, together.split([len(part) for part in rows]), strict=True))
        return {at: self.cell.fixed(part, graph) for at, part, graph in zip(times, rows, graphs, strict=True)}

    def _ahead(self, x: list[Tensor], fixed: list[Tensor | None], graphs: Sequence[Graph]) -> list[Any]:
        """What a chain of snapshots reads that waits for no state."""
        reads_graph = any(op.kind == "graph" and op.can_run_ahead and not op.can_be_kept for op in self.cell.operators)
        whole = None if fixed[0] is None else torch.cat([part for part in fixed if part is not None])
        return self.cell.ahead(torch.cat(x), whole, block_diagonal(graphs) if reads_graph else None, [len(part) for part in x])

    def _stacked(self, groups: Sequence[Group]) -> Tensor:
        nodes, count = self.snapshots.num_nodes, len(groups)
        fixed = self.fixed([at for group in groups for at in group.times])
        columns = list(zip(*(group.times for group in groups), strict=True))  # the times of each step
        x = [torch.cat([self.x[at] for at in times]) for times in columns]
        summed = [
            None if fixed[t[0]] is None else torch.cat([part for at in t if (part := fixed[at]) is not None]) for t in columns
        ]
        where = self._copied(count) if self.sums_state else self.snapshots.own_graph(groups[0].first)
        state = self.cell.start(count * nodes, x[0])
        for ready in self._ahead(x, summed, [where] * len(x)):
            state = self.cell.step(ready, where, state)
        return self.cell.rows(state).view(count, nodes, -1)

    def _copied(self, count: int) -> Graph:
        if count not in self._copies:
            self._copies[count] = block_diagonal([self.snapshots.own_graph(0)] * count)
        return self._copies[count]

    def _hoisted(self, group: Group) -> Tensor:
        fixed = self.fixed(group.times)
        graphs = [self.snapshots.own_graph(at) for at in group.times]
        state = self.cell.start(self.snapshots.num_nodes, self.x[group.first])
        ahead = self._ahead([self.x[at] for at in group.times], [fixed[at] for at in group.times], graphs)
        for at, ready, graph in zip(group.times, ahead, graphs, strict=True):
            state = self._put(state, self.cell.step(ready, graph, self._taken(state, at)), at)
        return self.cell.rows(state)

    def _plain(self, group: Group) -> Tensor:
        state = self.cell.start(self.snapshots.num_nodes, self.x[group.first])
        for at in group.times:
            state = self._put(state, self.cell(self.x[at], self.snapshots.own_graph(at), self._taken(state, at)), at)
        return self.cell.rows(state)

    def _taken(self, state: State, at: int) -> State:
        """The state of the nodes of a snapshot."""
        if self.snapshots.nodes is None:
            return state
        ids = self.snapshots.nodes[at]
        return tuple(part[ids] if number in self.cell.per_node else part for number, part in enumerate(state))

    def _put(self, before: State, new: State, at: int) -> State:
        """The state of all nodes: those that are away keep theirs."""
        if self.snapshots.nodes is None:
            return new
        ids = self.snapshots.nodes[at]
        parts = zip(before, new, strict=True)
        return tuple(old.index_copy(0, ids, part) if i in self.cell.per_node else part for i, (old, part) in enumerate(parts))


def block_diagonal(graphs: Sequence[Graph]) -> Graph:
    """Several graphs as one without edges between them: nodes of the second follow those of the first.

    >>> import headrace as hr
    >>> from headrace.snapshots.operators import block_diagonal
    >>> block_diagonal([hr.Graph.from_edges([0], [1]), hr.Graph.from_edges([1], [0])]).edge_index().tolist()
    [[0, 3], [1, 2]]
    """
    if len(graphs) == 1:
        return graphs[0]
    weights = [graph.weight for graph in graphs if graph.weight is not None]
    if weights and len(weights) < len(graphs):
        raise ValueError("some of these snapshots have weights and others have none: give all of them weights, or none")
    entries = rows = 0
    indptr, indices = [graphs[0].indptr[:1]], []
    for graph in graphs:
        indptr.append(graph.indptr[1:] + entries)
        indices.append(graph.indices + rows)
        entries, rows = entries + graph.num_edges, rows + graph.num_nodes
    return Graph(torch.cat(indptr), torch.cat(indices), weight=torch.cat(weights) if weights else None)


def check_cell(cell: Cell, tolerance: float = 1e-4) -> None:
    """Run the parts of a cell against the cell itself, and its sums against those it declares; ValueError where they differ."""
    generator = torch.Generator().manual_seed(0)
    nodes = max(cell.in_channels, 8)
    graphs = [_random_graph(nodes, generator) for _ in range(2)]
    rows = [torch.randn(nodes, cell.in_channels, generator=generator) for _ in graphs]
    kind = type(cell).__name__
    training = cell.training
    cell.eval()
    try:
        with torch.no_grad():
            plain: State | None = None
            for x, graph in zip(rows, graphs, strict=True):
                plain = cell(x, graph, plain)
            whole = block_diagonal(graphs)
            with counting() as kept:
                fixed = cell.fixed(torch.cat(rows), whole)
            with counting() as ahead:
                ready = cell.ahead(torch.cat(rows), fixed, whole, [nodes, nodes])
            state = cell.start(nodes, rows[0])
            with counting() as chained:
                for part, graph in zip(ready, graphs, strict=True):
                    state = cell.step(part, graph, state)
    finally:
        cell.train(training)
    sums = [op for op in cell.operators if op.kind == "graph"]
    terms = max(getattr(cell, "K", 2) - 1, 0)  # sums of a Chebyshev filter, which is one operator
    for found, declared, what in (
        (kept.sums, sum(op.can_be_kept for op in sums), "read x alone"),
        (ahead.sums, sum(op.can_run_ahead and not op.can_be_kept for op in sums), "read x and weights"),
        (chained.sums / 2, sum(not op.can_run_ahead for op in sums), "read state"),
    ):
        if found != declared * terms:
            raise ValueError(
                f"{kind} declares {declared} sums that {what}, and makes {found:g} of {terms} terms: mend its operators"
            )
    assert plain is not None
    difference = float((cell.rows(plain) - cell.rows(state)).abs().max())
    if difference > tolerance:
        raise ValueError(
            f"{kind} gives other rows by its parts fixed, ahead and step than by itself (up to {difference:.2g} apart): "
            "a part that reads state must be in step"
        )


def _random_graph(nodes: int, generator: torch.Generator) -> Graph:
    src, dst = torch.randint(0, nodes, (2, 4 * nodes), generator=generator)
    return Graph.from_edges(src, dst, nodes)
