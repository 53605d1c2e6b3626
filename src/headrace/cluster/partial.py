"""`Partial`: one block through the columns that this rank holds, and the way back. No other rank takes part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.loader.batch import rows_of
from headrace.nn import LayerSplit
from headrace.nn.split import Draws
from headrace.sample import Block
from headrace.store import ColumnSlice


@dataclass(frozen=True, eq=False)
class Pushed:
    """The first layer's block of somebody's batch, as every rank of a team has it."""

    nodes: Tensor  # of all sources
    block: Block  # with degrees, where the layer uses them
    key: int  # of what the batch draws from torch's generator

    def to(self, device: torch.device) -> Pushed:
        """The same on a device: a block of a split graph is drawn on the host."""
        return self if self.nodes.device == device else Pushed(self.nodes.to(device), self.block.to(device), self.key)


class Partial:
    """Forward and backward pass of a first layer's linear part over some columns.

    weights: this rank's columns of the layer's maps; shared: what every rank has whole. Both may require gradients.
    Where the layer weighs rows by scores, `scores` gives this slice's, which must be summed over slices before `parts`.
    """

    def __init__(
        self, split: LayerSplit, features: ColumnSlice, pushed: Pushed, weights: Sequence[Tensor], shared: Sequence[Tensor]
    ) -> None:
        self.split, self.block = split, pushed.block
        self.draws: Draws = split.draws(pushed.key)
        self._weights, self._shared = list(weights), list(shared)
        begin, _ = features.columns
        table = features.table if split.reads_ids else None
        in_place = table is not None and table.device == pushed.nodes.device
        x, ids = (table, pushed.nodes) if in_place else (rows_of(features, pushed.nodes), None)
        assert x is not None
        projected = split.project(x, pushed.block, weights, begin=begin, of=features.num_features, ids=ids, draws=self.draws)
        self._projected = [rows for rows in projected if rows is not None]
        # Rows that are weighed by scores are a leaf of what follows: the gradient of scores needs all ranks.
        self._rows = self._projected[0].detach().requires_grad_() if split.heads else self._projected[0]
        self._own_scores: Tensor | None = None
        self._scores: Tensor | None = None
        self._parts: list[Tensor] = []

    def scores(self) -> Tensor:  # -> [num_src + num_dst, heads]
        """What this slice adds to the scores."""
        self._own_scores = self.split.scores((self._rows, None), self.block, self._shared)
        return self._own_scores.detach()

    def parts(self, scores: Tensor | None = None) -> list[Tensor]:
        """What this slice adds to the layer's rows; `scores` are those of all slices."""
        self._scores = None if scores is None else scores.requires_grad_()
        rest = self._projected[1] if len(self._projected) > 1 else None
        self._parts = self.split.parts((self._rows, rest), self.block, self._scores, self.draws)
        return [part.detach() for part in self._parts]

    def scores_gradient(self, gradients: Sequence[Tensor]) -> Tensor:
        """This slice's share of the gradient of the scores, from that of the layer's rows."""
        assert self._scores is not None
        rows, scores = torch.autograd.grad(self._parts[0], [self._rows, self._scores], gradients[0])
        self._rows_gradient = rows
        return scores

    def gradients(self, gradients: Sequence[Tensor], scores: Tensor | None = None) -> tuple[list[Tensor], list[Tensor]]:
        """Gradients of `weights` and of `shared`; `scores` is the gradient of the scores, summed over all slices."""
        if scores is None:
            return self._back(self._parts, gradients), []
        assert self._own_scores is not None
        rows, *shared = torch.autograd.grad(self._own_scores, [self._rows, *self._shared], scores)
        behind = [self._rows_gradient + rows, *gradients[1:]]
        return self._back(self._projected, behind), shared

    def _back(self, rows: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of the weights. Columns that go around the layer as they are have none."""
        some = [(row, gradient) for row, gradient in zip(rows, gradients, strict=True) if row.requires_grad]
        return list(torch.autograd.grad([row for row, _ in some], self._weights, [gradient for _, gradient in some]))
