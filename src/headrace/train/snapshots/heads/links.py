"""`Links`: which nodes the edges of the next snapshot lead to. The true target is ranked among all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from headrace import _native
from headrace.nn import Cell
from headrace.snapshots import Group
from headrace.temporal.heuristics import tie_ranks
from headrace.train.inference.ranking import RankMetrics
from headrace.train.measure import Measure
from headrace.train.recipe import Progress
from headrace.train.snapshots.heads.activity import Activity
from headrace.train.snapshots.heads.counted import Counted, fitted
from headrace.train.snapshots.heads.head import RowsOf, Told
from headrace.train.snapshots.heads.pairs import Pairs
from headrace.train.snapshots.options import SnapshotOptions
from headrace.train.snapshots.windows import Windows

_BLOCK = 256  # edges whose sources are ranked against all nodes at a time


class LinkModel(nn.Module):
    """A cell, and how well nodes go together by its rows: a product of source and target, and a map of the target alone.

    skip: a linear map of what is counted of a pair and of its target (`Counted`), which is added.
    """

    def __init__(self, cell: Cell, skip: Counted | None) -> None:
        super().__init__()
        self.cell = cell
        self.pair = nn.Linear(cell.out_channels, cell.out_channels, bias=False)
        self.target = nn.Linear(cell.out_channels, 1, bias=False)
        self.skip = skip
        if skip is not None:  # the fitted map is where the model begins
            nn.init.zeros_(self.pair.weight)
            nn.init.zeros_(self.target.weight)

    def of_targets(self, rows: Tensor, counts: Tensor) -> Tensor:  # [n, out], [n, columns] -> [n]
        """What a target's score is from any source."""
        made: Tensor = self.target(rows).squeeze(1)
        return made if self.skip is None else made + self.skip.of_targets(counts)

    def forward(self, sources: Tensor, targets: Tensor) -> Tensor:  # [n, out], [m, out] -> [n, m]
        """What the rows of a pair say of it."""
        made: Tensor = self.pair(sources) @ targets.t()
        return made


class Links:
    """Cross entropy of the true target among nodes that are drawn for a group, or among all; mean over the edges of a snapshot."""

    measures = (Measure("mrr"),)
    fixed_shapes = False

    def __init__(self, windows: Windows, options: SnapshotOptions) -> None:
        self.windows, self.options, self.epoch = windows, options, 0
        self.nodes, self.device = windows.snapshots.num_nodes, windows.snapshots.device
        activity, pairs = Activity(windows.topology), Pairs(windows.topology)  # what is counted once is counted on the host
        self._first = fitted(activity, pairs, [(g.first + g.window - 1, *self._edges(g)) for g in windows.groups["train"]])
        self.activity, self.pairs = activity.to(self.device), pairs.to(self.device)
        self.edges = cache(self._moved_edges)

    def make_model(self, cell: Cell) -> nn.Module:
        return LinkModel(cell, Counted(self._first) if self.options.skip else None)

    def _edges(self, group: Group) -> tuple[Tensor, Tensor]:
        src, dst = self.windows.topology.graph(group.first + group.window).edge_index().long()
        return src, dst

    def _moved_edges(self, group: Group) -> tuple[Tensor, Tensor]:
        src, dst = self._edges(group)
        return src.to(self.device), dst.to(self.device)

    def losses(self, model: nn.Module, rows: Tensor, groups: Sequence[Group], nodes: Tensor | None = None) -> Tensor:
        if nodes is not None:
            raise ValueError("a link is scored by the rows of both its ends: choose a strategy that deals whole groups")
        return torch.stack([self._loss(model, own, group) for own, group in zip(rows, groups, strict=True)])

    def candidates(self, group: Group) -> Tensor:  # -> [n]
        """What the true targets of a group are compared with: nodes drawn by (seed, epoch, group) alone, or all."""
        amount = self.options.negatives
        if not 0 < amount < self.nodes:
            return torch.arange(self.nodes, device=self.device)
        key = _native.stream_key(self.options.seed, self.epoch, group.first, _native.Purpose.negative)
        words = torch.from_numpy(_native.random_words(key, 0, _native.Purpose.negative, amount, 1).view("int64"))
        return ((words >> 1 & (2**62 - 1)) % self.nodes).to(self.device)

    def told(self, groups: Sequence[Group]) -> Told:
        return ()

    def losses_of(self, model: nn.Module, rows: Tensor, told: Told, nodes: Tensor | None = None) -> Tensor:
        raise NotImplementedError("what links are compared with differs from group to group")

    def _loss(self, model: nn.Module, rows: Tensor, group: Group) -> Tensor:
        src, dst = self.edges(group)
        if not len(src):
            return rows.sum() * 0.0
        drawn = self.candidates(group)
        among, times = drawn.unique(return_counts=True)
        scores, true = self._scores(model, rows, group, src, dst, among)
        # Each that is drawn stands for some of all but the true one.
        share = (self.nodes - 1) / len(drawn) if len(drawn) < self.nodes else 1.0
        scores = scores + (times * share).log()
        scores = scores.masked_fill(among == dst[:, None], -torch.inf)
        return (torch.cat([true[:, None], scores], dim=1).logsumexp(1) - true).mean()

    def _scores(
        self, model: nn.Module, rows: Tensor, group: Group, src: Tensor, dst: Tensor, among: Tensor
    ) -> tuple[Tensor, Tensor]:  # -> [edges, among], [edges]
        """Scores of some targets for each edge's source, and that of its true target."""
        assert isinstance(model, LinkModel)
        last = group.first + group.window - 1
        alone = model.of_targets(rows, self.activity.counts[last])
        scores = model(rows[src], rows[among]) + alone[among]
        true = (model.pair(rows[src]) * rows[dst]).sum(1) + alone[dst]
        if model.skip is None:
            return scores, true
        place, other, counts = self.pairs.around(src, last)
        worth = model.skip.of_pairs(counts)
        column = torch.full((self.nodes,), -1, device=self.device)
        column[among] = torch.arange(len(among), device=self.device)
        at = column[other]
        scores = scores.index_put((place[at >= 0], at[at >= 0]), worth[at >= 0], accumulate=True)
        is_true = other == dst[place]
        return scores, true.index_put((place[is_true],), worth[is_true], accumulate=True)

    def figures(self, model: nn.Module, split: str, rows_of: RowsOf, progress: Progress) -> dict[str, Any]:
        groups, ranks = self.windows.groups[split], []
        for done, group in enumerate(groups):
            src, dst = self.edges(group)
            if len(src):
                rows = rows_of([group])[0]
                everyone = torch.arange(self.nodes, device=self.device)
                for part in torch.arange(len(src), device=self.device).split(_BLOCK):
                    scores, _ = self._scores(model, rows, group, src[part], dst[part], everyone)
                    ranks.append(_ranks(scores, dst[part]))
            progress(done + 1, len(groups))
        return self._measured(ranks)

    def _measured(self, ranks: list[Tensor]) -> dict[str, Any]:
        joined = torch.cat([*(part.cpu() for part in ranks), torch.zeros(0).double()])
        return {**RankMetrics.of(joined).plain(), "edges": len(joined), "candidates": self.nodes}

    def baselines(self, split: str = "test") -> dict[str, dict[str, float]]:
        counts = {"in-degree": self.activity.ever_in, "counts of both ends, halved": self.activity.both_halved}
        made: dict[str, dict[str, float]] = {}
        for name, scores in counts.items():
            ranks = []
            for group in self.windows.groups[split]:
                _, dst = self.edges(group)
                ranks.append(_ranks(scores[group.first + group.window - 1].expand(len(dst), -1), dst))
            made[name] = self._measured(ranks)
        made["linear"] = self._measured([part for group in self.windows.groups[split] for part in self._linear(group)])
        return made

    @torch.no_grad()
    def _linear(self, group: Group) -> list[Tensor]:
        """Ranks by counts alone."""
        skip, ranks = Counted(self._first).to(self.device), []
        last, (src, dst) = group.first + group.window - 1, self.edges(group)
        for part in torch.arange(len(src), device=self.device).split(_BLOCK):
            place, other, known = self.pairs.around(src[part], last)
            scores: Tensor = skip.of_targets(self.activity.counts[last]).repeat(len(part), 1)
            scores = scores.index_put((place, other), skip.of_pairs(known), accumulate=True)
            ranks.append(_ranks(scores, dst[part]))
        return ranks

    def forecast(self, model: nn.Module, split: str, rows_of: RowsOf) -> dict[str, Any] | None:
        return None


def _ranks(scores: Tensor, dst: Tensor) -> Tensor:  # [n, num_nodes], [n] -> [n]
    """Ranks of the true targets among all nodes, other true ones included; ties count half."""
    true = scores.gather(1, dst[:, None]).squeeze(1)
    return tie_ranks(true, scores) - 0.5  # it is a candidate itself
