"""The step of `headrace bench gpu-snapshots`: groups over one large graph, in lanes, and the same by PyG's layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headrace.bench.snapshots.peer import PEERS
from headrace.graph import Snapshots
from headrace.nn import GCLSTM, TGCN, Cell
from headrace.snapshots import Group, Operators
from headrace.snapshots.lanes import Lanes
from headrace.snapshots.streams import Place
from headrace.train.snapshots.captured import RecordedPiece

Outcome = tuple[Tensor, Sequence[Tensor | None]]  # loss, gradients
WIDE, HIDDEN = 128, 256
CELLS: dict[str, type[Any]] = {"tgcn": TGCN, "gclstm": GCLSTM}


@dataclass(frozen=True, eq=False)
class Case:
    """Groups of `window` snapshots over one graph, one in each lane; what is to be forecast at their ends."""

    snapshots: Snapshots
    cell: Cell
    head: nn.Linear
    groups: tuple[Group, ...]
    target: Tensor  # [groups, num_nodes]
    recorded: list[RecordedPiece] = field(default_factory=list)

    @classmethod
    def of(cls, snapshots: Snapshots, model: str, window: int) -> Case:
        torch.manual_seed(0)
        cell, head = CELLS[model](WIDE, HIDDEN), nn.Linear(HIDDEN, 1)
        target = torch.randn(2, snapshots.num_nodes)
        device = snapshots.device
        groups = tuple(Group(first, window) for first in range(2))
        return cls(snapshots, cell.to(device), head.to(device), groups, target.to(device))

    @property
    def parameters(self) -> list[Tensor]:
        return [*self.cell.parameters(), *self.head.parameters()]

    def launched(self, place: Place | None, *, count: int = 2) -> Callable[[], Outcome]:
        """The step, launched operator by operator."""
        loss = self._loss(place, count)
        return lambda: _differentiated(loss([]), self.parameters)

    def captured(self, place: Place | None, *, count: int = 2) -> Callable[[], Outcome]:
        """The step, recorded once and replayed. Recordings of a case share their memory: each overwrites what others gave."""
        after = self.recorded[-1] if self.recorded else None
        recorded = RecordedPiece(self._loss(place, count), [], self.parameters, self.snapshots.device, after)
        self.recorded.append(recorded)
        return lambda: recorded.replay([])

    def _loss(self, place: Place | None, count: int) -> Callable[[Sequence[Tensor]], Tensor]:
        lanes = Lanes(Operators(self.cell, self.snapshots), place, count=count)
        chains = lanes.read(self.groups)  # features stay where they are: nothing is copied in a step
        return lambda _: self._error(lanes.rows(self.groups, chains))

    def _error(self, rows: Tensor) -> Tensor:
        error: Tensor = (self.head(rows).squeeze(-1) - self.target).square().mean()
        return error

    def peer(self, model: str) -> Callable[[], Outcome]:
        """PyG's layers as PyG Temporal runs them: a convolution for each gate and snapshot."""
        x, graph = self.snapshots.x, self.snapshots.own_graph(0)
        assert x is not None
        cell = PEERS[model](WIDE, HIDDEN).to(self.snapshots.device)
        cell.load_state_dict(self.cell.state_dict())
        own = dict(cell.named_parameters())
        parameters = [*(own[name] for name, _ in self.cell.named_parameters()), *self.head.parameters()]
        edges = self._edges(graph.indptr, graph.indices)

        def step() -> Outcome:
            loss, total = self.target.new_zeros(()), [torch.zeros_like(p) for p in parameters]
            for group, target in zip(self.groups, self.target, strict=True):  # a group's activations at a time
                state = tuple(x[0].new_zeros(len(x[0]), HIDDEN) for _ in range(cell.parts))
                for at in group.times:
                    state = cell(x[at], edges, None, state)
                part = (self.head(state[0]).squeeze(-1) - target).square().mean() / len(self.groups)
                total = [a + b for a, b in zip(total, torch.autograd.grad(part, parameters), strict=True)]
                loss = loss + part.detach()
            return loss, total

        return step

    @staticmethod
    def _edges(indptr: Tensor, indices: Tensor) -> Tensor:
        rows = torch.arange(len(indptr) - 1, device=indptr.device)
        return torch.stack([indices.long(), torch.repeat_interleave(rows, indptr.diff())])

    def sums(self) -> float:
        """Bytes that the sums of a step read and write, forward and back."""
        nodes, edges = self.snapshots.num_nodes, self.snapshots.num_edges[0]
        width, passes = (WIDE, 1) if isinstance(self.cell, TGCN) else (HIDDEN, 2)  # features have no gradient
        return self._snapshots * passes * (4.0 * edges * width + 4.0 * nodes * width + 4.0 * edges)

    def operations(self) -> float:
        """Of the products of a step: twice again back, and once where what is multiplied has no gradient."""
        wide = 3 * HIDDEN * (2 * WIDE + 3 * HIDDEN) if isinstance(self.cell, TGCN) else 4 * HIDDEN * (2 * WIDE + 3 * 2 * HIDDEN)
        return self._snapshots * 2.0 * self.snapshots.num_nodes * wide

    @property
    def _snapshots(self) -> int:
        return sum(group.window for group in self.groups)


def _differentiated(loss: Tensor, parameters: Sequence[Tensor]) -> Outcome:
    return loss.detach(), torch.autograd.grad(loss, list(parameters), allow_unused=True)


def check_same(some: Outcome, others: Outcome, what: str, tolerance: float = 1e-4) -> None:
    """RuntimeError where loss or gradients differ by more than `tolerance` of the largest number of each."""
    pairs = [(some[0], others[0]), *zip(some[1], others[1], strict=True)]
    for a, b in pairs:
        if a is None or b is None:
            a, b = (torch.zeros(()) if part is None else part.abs().max().cpu() for part in (a, b))
        worst, most = float((a - b).abs().max()), float(b.abs().max())
        if not worst <= tolerance * max(most, 1e-3):
            raise RuntimeError(f"{what}: results differ by {worst:.2g}, the largest is {most:.2g}; nothing is reported")


def large_sequence(nodes: int, edges: int, steps: int, device: torch.device) -> Snapshots:
    """Features that change over one random graph without loops."""
    draw = torch.Generator().manual_seed(7)
    src, dst = torch.randint(0, nodes, (2, edges), generator=draw)
    dst = torch.where(src == dst, (dst + 1) % nodes, dst)
    x = [torch.randn(nodes, WIDE, generator=draw) for _ in range(steps)]
    return Snapshots([(src, dst)] * steps, nodes, x=x).to(device)
