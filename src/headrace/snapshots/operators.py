"""Operators of a group of snapshots in another order, with the same result: sums that read x alone come first, or were kept.

A group is a window of snapshots with its own initial state. Hoisted, all sums of features of a group are one: over columns side by
side where its snapshots have one graph, over a block-diagonal graph where they differ. Groups over one graph are stacked, so that
a step of all of them is one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.graph import Snapshots
from headrace.nn.cells import Cell
from headrace.nn.cells.cell import State
from headrace.nn.neighbor_sum import Asked, Steps, Where
from headrace.snapshots.kept import KeptSums
from headrace.snapshots.rows import Group, WholeRows

Sums = dict[int, Tensor | None]  # of the features of a snapshot, by its time
_Place = int | Tensor | None  # rows of a snapshot among those of its group: the first ones, some, or all


class Chain(NamedTuple):
    """Groups that one recurrent chain runs through, with the rows that it reads at each place of their windows.

    fixed: sums of the rows, where they are known. What is None is asked for as `asked` has it.
    """

    groups: tuple[Group, ...]
    x: tuple[Tensor, ...]
    fixed: tuple[Tensor | None, ...]
    asked: tuple[Asked | None, ...]


class Operators:
    """Runs a cell over groups of snapshots.

    hoist: whether sums that read x alone are made before the recurrent steps; else the cell runs snapshot by snapshot.
    kept: where such sums are kept; None for nowhere.
    rows: those that this rank has; all by default.
    """

    def __init__(
        self,
        cell: Cell,
        snapshots: Snapshots,
        *,
        hoist: bool = True,
        kept: KeptSums | None = None,
        rows: WholeRows | None = None,
    ) -> None:
        self.rows_here = WholeRows(snapshots) if rows is None else rows
        self.cell, self.snapshots, self.hoist, self.kept = cell, snapshots, hoist, kept
        self.one_graph = snapshots.nodes is None and snapshots.same_as(len(snapshots) - 1) == 0
        self.sums_state = any(op.kind == "graph" and "state" in op.reads for op in cell.operators)
        self.can_keep = any(op.can_be_kept for op in cell.operators)
        self.stacks = hoist and cell.stacks and snapshots.nodes is None and (self.one_graph or not self.sums_state)

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

    def rows(self, groups: Sequence[Group], fixed: Sums | None = None) -> Tensor:  # -> [groups, num_nodes, out]
        """The rows of every node after the last snapshot of each group. `fixed`: what `fixed` gave for their times, if it has."""
        return self.ended(groups, self.advance(groups, self.start(groups), fixed=fixed))

    def start(self, groups: Sequence[Group]) -> list[State]:
        """States before the first snapshot: of each group, or of all where they are stacked."""
        counts = [self._members(group)[0] for group in groups]
        if self.stacks:
            counts = [sum(counts)]
        return [self.cell.start(count, self.rows_here.x[groups[0].first]) for count in counts]

    def advance(
        self, groups: Sequence[Group], states: list[State], span: range | None = None, fixed: Sums | None = None
    ) -> list[State]:
        """States after the snapshots of the groups whose places in their windows are in `span`; all of them by default."""
        span = range(groups[0].window) if span is None else span
        if not span:
            return states
        if not self.hoist:
            return [self._plain(group, state, span) for group, state in zip(groups, states, strict=True)]
        fixed = self.fixed(self.times(groups, span)) if fixed is None else fixed
        if self.stacks:
            return [self._stacked(groups, states[0], span, fixed)]
        return [self._hoisted(group, state, span, fixed) for group, state in zip(groups, states, strict=True)]

    def chains(self, groups: Sequence[Group]) -> list[Chain]:
        """Chains that wait for nothing of one another: one of all groups where they are stacked, else one of each."""
        return [self.read(part) for part in ([tuple(groups)] if self.stacks else [(group,) for group in groups])]

    def read(self, groups: tuple[Group, ...]) -> Chain:
        """What a chain of these groups reads: sums of features are brought along where they are kept."""
        columns = [[group.first + place for group in groups] for place in range(groups[0].window)]
        x = tuple(_joined([self.rows_here.x[at] for at in times]) for times in columns)
        if self.kept is None or not self.can_keep:
            return self.chain(groups, x, (None,) * len(x))
        known = self.fixed(self.times(groups, range(groups[0].window)))
        fixed = tuple(_joined([part for at in times if (part := known[at]) is not None]) for times in columns)
        return self.chain(groups, x, fixed)

    def chain(self, groups: tuple[Group, ...], x: Sequence[Tensor], fixed: Sequence[Tensor | None]) -> Chain:
        """A chain of groups whose rows are in `x`, or will be when it runs."""

        def asked(place: int, rows: Tensor) -> Asked | None:
            if not self.can_keep or fixed[place] is not None:
                return None
            where = self.rows_here.where([group.first + place for group in groups])
            return Asked(rows, lambda x: self._fixed_of(x, where), free=True)

        return Chain(groups, tuple(x), tuple(fixed), tuple(asked(place, rows) for place, rows in enumerate(x)))

    def _fixed_of(self, x: Tensor, where: Where) -> Tensor:
        with torch.no_grad():
            made = self.cell.fixed(x, where)
        assert made is not None
        return made

    def stepwise(self, chain: Chain) -> Steps[State]:
        """The state after the last snapshot of a chain, with its sums asked for: `rows`, in parts that a schedule can place."""
        (state,) = self.start(chain.groups)
        places = [None] * len(chain.x) if len(chain.groups) > 1 else self._members(chain.groups[0])[2]
        for number, x in enumerate(chain.x):
            times, asked, fixed = [group.first + number for group in chain.groups], chain.asked[number], chain.fixed[number]
            if asked is not None:
                fixed = yield asked
            (ready,) = self._ahead([x], [fixed], [times])
            where = self.rows_here.where(times) if self.sums_state else self._none
            state = self._put(
                state, (yield from self.cell.stepwise(ready, where, self._taken(state, places[number]))), places[number]
            )
        return state

    def ended(self, groups: Sequence[Group], states: list[State]) -> Tensor:  # -> [groups, num_nodes, out]
        """The rows of every node, from the last states: zeros where a node was in no snapshot of the group."""
        nodes = self.rows_here.num_nodes
        if self.stacks:
            return self.cell.rows(states[0]).view(len(groups), nodes, -1)
        rows = []
        for group, state in zip(groups, states, strict=True):
            own, (count, members, _) = self.cell.rows(state), self._members(group)
            if members is not None:
                own = own.new_zeros(nodes, own.shape[1]).index_copy(0, members, own)
            elif count < nodes:
                own = F.pad(own, (0, 0, 0, nodes - count))
            rows.append(own)
        return torch.stack(rows)

    def times(self, groups: Sequence[Group], span: range) -> list[int]:
        """The snapshots of groups, of these places in their windows."""
        return sorted({group.first + place for group in groups for place in span})

    def fixed(self, times: Sequence[int]) -> Sums:
        """Sums of the features of some snapshots."""
        if not self.can_keep:
            return dict.fromkeys(times)
        sums: Sums = {}
        if self.kept is not None:
            sums = {at: known for at in times if (known := self.kept.get(at)) is not None}
        missing = sorted(set(times) - sums.keys())
        if missing:
            with torch.no_grad():
                made = self.rows_here.fixed(self.cell, missing)
            sums |= made
            for at, part in made.items():
                if part is not None and self.kept is not None:
                    self.kept.put(at, part)
        return sums

    def _ahead(self, x: list[Tensor], fixed: list[Tensor | None], where: Sequence[Sequence[int]]) -> list[Any]:
        """What a chain of snapshots reads that waits for no state; the graphs of each are those of some times."""
        reads_graph = any(op.kind == "graph" and op.can_run_ahead and not op.can_be_kept for op in self.cell.operators)
        whole = None if fixed[0] is None else _joined([part for part in fixed if part is not None])
        graph = self.rows_here.where([at for times in where for at in times]) if reads_graph else None
        return self.cell.ahead(_joined(x), whole, graph, [len(part) for part in x])

    def _stacked(self, groups: Sequence[Group], state: State, span: range, fixed: Sums) -> State:
        columns = [[group.first + place for group in groups] for place in span]  # the times of each step
        x = [torch.cat([self.rows_here.x[at] for at in times]) for times in columns]
        summed = [
            None if fixed[t[0]] is None else torch.cat([part for at in t if (part := fixed[at]) is not None]) for t in columns
        ]
        where = self.rows_here.copied(len(groups)) if self.sums_state else self._none
        for ready in self._ahead(x, summed, columns):
            state = self.cell.step(ready, where, state)
        return state

    @property
    def _none(self) -> Where:
        """For a step that sums nothing."""
        return self.snapshots.own_graph(0)

    def _hoisted(self, group: Group, state: State, span: range, fixed: Sums) -> State:
        times = [group.first + place for place in span]
        places = self._members(group)[2]
        ahead = self._ahead([self.rows_here.x[at] for at in times], [fixed[at] for at in times], [[at] for at in times])
        for number, at, ready in zip(span, times, ahead, strict=True):
            where = self.rows_here.where([at]) if self.sums_state else self._none
            state = self._put(state, self.cell.step(ready, where, self._taken(state, places[number])), places[number])
        return state

    def _plain(self, group: Group, state: State, span: range) -> State:
        places = self._members(group)[2]
        for number in span:
            at = group.first + number
            new = self.cell(self.rows_here.x[at], self.rows_here.where([at]), self._taken(state, places[number]))
            state = self._put(state, new, places[number])
        return state

    def _members(self, group: Group) -> tuple[int, Tensor | None, list[_Place]]:
        """How many nodes the snapshots of a group have together, which (None: the first ones), and where each snapshot's are.

        A node that is in none of them keeps the state that it began with, so that it needs none.
        """
        nodes = self.rows_here.nodes
        if nodes is None:
            return self.rows_here.num_nodes, None, [None] * group.window
        own = [nodes[at] for at in group.times]
        if all(len(ids) == 0 or int(ids[-1]) == len(ids) - 1 for ids in own):
            count = max(len(ids) for ids in own)
            return count, None, [None if len(ids) == count else len(ids) for ids in own]
        members, device = torch.cat(own).unique(), self.snapshots.device
        return len(members), members.to(device), [torch.searchsorted(members, ids).to(device) for ids in own]

    def _taken(self, state: State, place: _Place) -> State:
        """The state of the nodes of a snapshot."""
        if place is None:
            return state
        take = slice(place) if isinstance(place, int) else place
        return tuple(part[take] if number in self.cell.per_node else part for number, part in enumerate(state))

    def _put(self, before: State, new: State, place: _Place) -> State:
        """The state of all nodes of the group: those that are away keep theirs."""
        if place is None:
            return new
        parts = enumerate(zip(before, new, strict=True))
        return tuple(_replaced(old, part, place) if number in self.cell.per_node else part for number, (old, part) in parts)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _replaced(old: Tensor, new: Tensor, place: int | Tensor) -> Tensor:
    return torch.cat([new, old[place:]]) if isinstance(place, int) else old.index_copy(0, place, new)
