"""`LayerEdges`: the pass over edges of an attention layer, and its gradient, for intervals of a server's own rows."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.cluster.elastic.layers.entries import backward_entries, forward_entries
from headrace.cluster.elastic.layers.positions import positions_back, row_begins
from headrace.cluster.elastic.neighborhood import Neighborhood
from headrace.kernels import Scores, Whole, attend_rows, column_gradients, row_gradients
from headrace.nn import ByNode


class Places:
    """Who reads whom, in both directions, and for dropout where entries stand in the whole graph. Shared by all layers."""

    def __init__(self, neighborhood: Neighborhood, *, self_loops: bool, dropout: bool) -> None:
        self.at = neighborhood
        self.begins = row_begins(neighborhood) if dropout else None
        positions = None if self.begins is None else positions_back(neighborhood, self.begins)
        self.forward = forward_entries(neighborhood)
        self.backward, self.positions = backward_entries(neighborhood, positions, self_loops=self_loops)

    def whole(self, begin: int, end: int) -> Whole | None:
        """Where own rows stand in the whole graph."""
        if self.begins is None:
            return None
        return Whole(self.at.ids[begin:end], self.begins[begin:end], self.at.part.num_edges)


class LayerEdges:
    """The tables of one layer: rows of own nodes, and of ghosts behind them where the first dimension says so.

    sources: projected rows, with scores behind them for GAT  # [own + ghosts, source_width]
    targets: what own nodes are as readers  # [own, target_width]
    mixed: what attention gave  # [own, width]
    back: of a row that attends: its gradient, delta, the two numbers of peak, what it is as a reader  # [own + ghosts back, ...]
    to_targets: the gradient of `targets`; `to_weight`: of the weight of edges (GATv2), by interval.
    """

    def __init__(self, cut: ByNode, places: Places, dtype: torch.dtype) -> None:
        at, heads = places.at, cut.heads
        self.cut, self._places, self._at = cut, places, at

        def table(rows: int, width: int) -> Tensor:
            return torch.zeros(rows, width, dtype=dtype)

        self._facts = [cut.width, heads, 2 * heads, cut.target_width]  # widths of the parts of a row of `back`
        self.sources, self.back = table(at.forward.num_src, cut.source_width), table(at.backward.num_src, sum(self._facts))
        self.targets, self.to_targets = table(at.num_own, cut.target_width), table(at.num_own, cut.target_width)
        self.mixed, self._peak = table(at.num_own, cut.width), table(at.num_own, 2 * heads)
        self.to_weight: dict[int, Tensor] = {}

    def attend(self, interval: int, weight: Tensor | None, seed: int | None) -> None:
        """Fills in `mixed`, from sources and targets. `seed` of the coefficients' dropout; None in a validation."""
        begin, end = self._at.range_of(interval)
        x, indptr, indices, scores = self._rows(interval, weight, seed)
        out, peak = attend_rows(x, indptr, indices, scores)
        self.mixed[begin:end], self._peak[begin:end] = out.flatten(1), peak.flatten(1)

    def turn_back(self, interval: int, gradient: Tensor, weight: Tensor | None, seed: int) -> None:
        """From the gradient of `mixed`: those of the interval's targets and of the weight, and what `gather_back` reads."""
        begin, end = self._at.range_of(interval)
        x, indptr, indices, scores = self._rows(interval, weight, seed)
        grad, mixed = self._heads(gradient), self._heads(self.mixed[begin:end])
        peak = self._peak[begin:end]
        to_targets, to_weight = row_gradients(grad, mixed, self._peaks(peak), x, indptr, indices, scores)
        self.to_targets[begin:end] = to_targets.flatten(1)
        if weight is not None and to_weight is not None:
            self.to_weight[interval] = to_weight.view(weight.shape)
        self.back[begin:end] = torch.cat([gradient, (grad * mixed).sum(-1), peak, self.targets[begin:end]], dim=1)

    def gather_back(self, interval: int, weight: Tensor | None, seed: int) -> Tensor:
        """The gradient of the interval's sources, along reversed edges.  # -> [n, source_width]"""
        begin, end = self._at.range_of(interval)
        read, indptr, indices = self._places.backward.of(interval)
        first, last = self._places.backward.span(interval)
        gradient, delta, peak, targets = self.back[read].split(self._facts, dim=1)
        x, source = self._parts(self.sources[begin:end])
        scores = self._scores(source, targets, weight, seed, self_loops=False)
        positions = None if self._places.positions is None else self._places.positions[first:last]
        grad = self._heads(gradient).contiguous()
        to_x, to_source = column_gradients(
            grad, delta, self._peaks(peak), x.contiguous(), indptr, indices, scores, positions=positions
        )
        return to_x.flatten(1) if to_source is None else torch.cat([to_x.flatten(1), to_source], dim=1)

    def _rows(self, interval: int, weight: Tensor | None, seed: int | None) -> tuple[Tensor, Tensor, Tensor, Scores]:
        """What the kernels of an interval's rows take."""
        begin, end = self._at.range_of(interval)
        read, indptr, indices = self._places.forward.of(interval)
        x, source = self._parts(self.sources[read])
        scores = self._scores(source, self.targets[begin:end], weight, seed, self_loops=self.cut.self_loops)
        whole = self._places.whole(begin, end)
        return x, indptr, indices, scores if whole is None else scores.placed(indptr, whole)

    def _scores(
        self, source: Tensor | None, targets: Tensor, weight: Tensor | None, seed: int | None, *, self_loops: bool
    ) -> Scores:
        cut = self.cut
        return Scores(
            target=self._heads(targets).contiguous() if cut.pairs else targets.contiguous(),
            source=source,
            attention=None if weight is None else weight.view(cut.heads, cut.channels),
            slope=cut.slope,
            self_loops=self_loops,
            dropout=0.0 if seed is None else cut.dropout,
            seed=seed or 0,
        )

    def _parts(self, sources: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows and scores of sources."""
        x = self._heads(sources[:, : self.cut.width]).contiguous()
        return x, None if self.cut.pairs else sources[:, self.cut.width :].contiguous()

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.reshape(-1, self.cut.heads, self.cut.channels)

    def _peaks(self, rows: Tensor) -> Tensor:
        return rows.reshape(-1, 2, self.cut.heads)
