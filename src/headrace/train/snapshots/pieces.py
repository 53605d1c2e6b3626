"""`Pieces`: loss and gradients of groups on a GPU, captured where they share a graph, on two streams where that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from headrace.snapshots.lanes import Lanes
from headrace.snapshots.operators import Chain, Operators
from headrace.snapshots.rows import Group
from headrace.snapshots.streams import OneStream, Place, TwoStreams
from headrace.train.snapshots.captured import RecordedPiece
from headrace.train.snapshots.heads.head import Head
from headrace.train.snapshots.joint import differentiated
from headrace.train.snapshots.options import SnapshotOptions


class Pieces:
    """Differentiates pieces of work. `reason` says how: what is recorded and why, or why not."""

    def __init__(
        self, operators: Operators, head: Head, model: nn.Module, options: SnapshotOptions, place: Place | None = None
    ) -> None:
        self.operators, self.head, self.model = operators, head, model
        self.device = operators.snapshots.device
        self.parameters = list(model.parameters())
        self.overlap = options.overlap
        if place is None:
            place = TwoStreams(self.device, programs=options.programs) if options.overlap else OneStream()
        self.lanes = Lanes(operators, place, count=2 if options.overlap else 1)
        why_not = self._why_not()
        if options.capture == "always" and why_not is not None:
            raise ValueError(f"capture records pieces of one shape, and {why_not}: leave capture out")
        self.captures = options.capture != "never" and why_not is None
        self.reason = (
            "pieces are replayed as a CUDA graph: they share a graph and have one shape"
            if self.captures
            else f"pieces are launched operator by operator: {why_not or 'capture never'}"
        )
        self._recorded: dict[int, RecordedPiece] = {}  # by number of groups

    def _why_not(self) -> str | None:
        if not (self.operators.stacks and self.operators.one_graph):
            return "groups are not stacked over one graph"
        if not self.head.fixed_shapes:
            return "links differ in number from group to group"
        return None

    def __call__(self, groups: Sequence[Group]) -> tuple[Tensor, list[Tensor | None]]:
        """The mean loss of groups and its gradient by each parameter; in memory that the next piece may overwrite."""
        if not self.captures:
            return self._launched(groups)
        chains, told = self.lanes.read(groups), self.head.told(groups)
        inputs = [*told, *tensors_of(chains)]
        if len(groups) not in self._recorded:
            self._recorded[len(groups)] = self._record(partial(self._loss, tuple(groups), len(told)), inputs)
        return self._recorded[len(groups)].replay(inputs)

    def _record(self, loss: partial[Tensor], inputs: Sequence[Tensor]) -> RecordedPiece:
        after = next(reversed(self._recorded.values()), None)
        return RecordedPiece(loss, inputs, self.parameters, self.device, after)

    def _launched(self, groups: Sequence[Group]) -> tuple[Tensor, list[Tensor | None]]:
        rows = self.lanes.rows(groups) if self.overlap else self.operators.rows(groups)
        loss = self.head.losses(self.model, rows, groups).mean()
        return loss.detach(), differentiated(loss, self.parameters)

    def _loss(self, groups: Sequence[Group], first: int, inputs: Sequence[Tensor]) -> Tensor:
        """The loss, of what is in `inputs`: `first` of them are targets. Of the groups only their number counts."""
        told, rest = tuple(inputs[:first]), list(inputs[first:])
        chains = [[_over(self.operators, part, rest)] for part in self.lanes.deal(groups)]
        rows = self.lanes.rows(groups, chains)
        return self.head.losses_of(self.model, rows, told).mean()

    def wait(self) -> None:
        """Until the GPU has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def tensors_of(chains: Sequence[Sequence[Chain]]) -> list[Tensor]:
    """What chains read."""
    return [
        part
        for own in chains
        for chain in own
        for place, x in enumerate(chain.x)
        for part in (x, chain.fixed[place])
        if part is not None
    ]


def _over(operators: Operators, groups: Sequence[Group], rest: list[Tensor]) -> Chain:
    """The chain of a lane's groups over the next of the tensors, which `tensors_of` gave of one like it."""
    kept = operators.kept is not None and operators.can_keep
    x, fixed = [], []
    for _ in range(groups[0].window):
        x.append(rest.pop(0))
        fixed.append(rest.pop(0) if kept else None)
    return operators.chain(tuple(groups), x, fixed)
