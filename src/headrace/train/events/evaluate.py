"""`Evaluator`: how well a temporal model tells events that came from events that did not, with heuristics beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headrace.graph import EventSplits, EventStream
from headrace.sample import EventNegatives
from headrace.temporal import EventBatches, cut_events
from headrace.temporal.heuristics import Recency, information_kept, tie_ranks
from headrace.train.events.options import TemporalOptions
from headrace.train.inference.ranking import RankMetrics
from headrace.train.measure import auc, average_precision
from headrace.train.recipe import Progress

if TYPE_CHECKING:
    from headrace.train.events.recipe import Forward

_SET = 2**31  # negatives of an evaluation are a set of their own, the same in every epoch


class Evaluator:
    """Scores the events of a split after a replay of all events before it, from an empty memory and with the model's weights.

    AP and AUC are global: over all events of the split and the first candidate of each. MRR ranks an event among all its
    candidates, ties count half. Inductive figures are of the events with an end that training has not seen.
    """

    def __init__(self, stream: EventStream, splits: EventSplits, options: TemporalOptions, neighbors: Sequence[int]) -> None:
        self.stream, self.bounds, self.options = stream, splits, options
        pieces = [(0, splits.train), (splits.train, splits.val), (splits.val, splits.test)]
        parts = [cut_events(stream, *piece, options.batch_size, options.cut) for piece in pieces]
        self.train_cuts = parts[0]
        cuts = torch.cat([parts[0][:-1], parts[1][:-1], parts[2]])
        self.first = {"val": len(parts[0]) - 1, "test": len(parts[0]) + len(parts[1]) - 2}
        self.end = {"val": self.first["test"], "test": len(cuts) - 1}
        self.negatives = EventNegatives(
            stream, amount=options.candidates, kind=options.evaluate, train_end=splits.train, seed=options.seed
        )
        self.make = EventBatches(
            stream, cuts, self.negatives, neighbors=neighbors, in_batch=options.in_batch, threads=options.threads
        )
        known = torch.zeros(stream.num_nodes, dtype=torch.bool)
        known[stream.src[: splits.train].long()] = True
        known[stream.dst[: splits.train].long()] = True
        self.unseen = ~(known[stream.src.long()] & known[stream.dst.long()])
        self._recency: Recency | None = None

    @property
    def recency(self) -> Recency:
        if self._recency is None:
            self._recency = Recency(self.stream)
        return self._recency

    def split(self, model: Forward, name: str, progress: Progress) -> dict[str, Any]:
        return self.splits(model, (name,), progress)[name]

    @torch.no_grad()
    def splits(self, model: Forward, names: Sequence[str], progress: Progress) -> dict[str, dict[str, Any]]:
        """Figures of some splits, in the order of time."""
        model.eval()
        device = next(model.parameters()).device
        tgn, stream = model.tgn, self.stream
        rows = torch.zeros(stream.num_nodes, tgn.memory_width + tgn.mail_width, device=device) if tgn.memory_width else None
        edge_x = None if stream.edge_x is None else stream.edge_x.float().to(device)
        scores: dict[str, list[Tensor]] = {name: [] for name in names}
        last = max(self.end[name] for name in names)
        for index in range(last):
            name = next((n for n in names if self.first[n] <= index < self.end[n]), None)
            if name is None and rows is None:
                continue
            batch = self.make.make(index, _SET, memory=rows is not None, negatives=name is not None)
            memory = model.update(None if rows is None else rows[batch.nodes], batch, edge_x)
            z = None
            if name is not None or tgn.parts.mail_embeds:
                z = model.embed(memory, batch, edge_x)
            if name is not None:
                assert z is not None
                scores[name].append(model.scores(z, batch.size).cpu())
            if memory is not None and rows is not None:
                rows[batch.nodes[batch.written]] = model.letters(memory, batch, z if tgn.parts.mail_embeds else None)
            progress(index + 1, last)
        return {name: self._figures(name, torch.cat(parts)) for name, parts in scores.items()}

    def _figures(self, name: str, scores: Tensor) -> dict[str, Any]:
        begin, end = (int(self.make.cuts[at]) for at in (self.first[name], self.end[name]))
        unseen = self.unseen[begin:end]
        figures = _measured(scores)
        ours: dict[str, Any] = dict(figures)
        ours["inductive"] = _measured(scores[unseen]) if bool(unseen.any()) else None
        ours["inductive_events"] = int(unseen.sum())
        ours["heuristic"] = self.heuristic(name)
        ours["protocol"] = {
            "negatives": self.options.evaluate,
            "candidates": self.options.candidates,
            "in_batch": self.options.in_batch,
            "batch_size": self.options.batch_size,
            "cut": self.options.cut,
            "events": end - begin,
            "information_kept": information_kept(self.stream, self.train_cuts),
        }
        return ours

    def heuristic(self, name: str) -> dict[str, Any]:
        """EdgeBank and recency on the same events, candidates and visibility."""
        edgebank, recent = [], []
        for index in range(self.first[name], self.end[name]):
            begin, end = int(self.make.cuts[index]), int(self.make.cuts[index + 1])
            drawn = self.negatives.sample(begin, end, begin, epoch=_SET, batch=index)
            candidates = torch.cat([self.stream.dst[begin:end].long()[:, None], drawn], dim=1)
            before = torch.searchsorted(self.stream.time, self.stream.time[begin:end])
            before = before.clamp_max(begin) if self.options.in_batch == "hidden" else before
            wide = [values[:, None].expand_as(candidates).reshape(-1) for values in (self.stream.src[begin:end].long(), before)]
            asked = wide[0], candidates.flatten(), wide[1]
            edgebank.append(self.recency.met(*asked).view_as(candidates))
            recent.append(self.recency.scores(*asked).view_as(candidates))
        return {"edgebank": _measured(torch.cat(edgebank)), "recency": _measured(torch.cat(recent))}


def _measured(scores: Tensor) -> dict[str, Any]:
    """AP and AUC of events against their first candidate, MRR and hits among all of them.  # [n, 1 + candidates]"""
    pairs = torch.cat([scores[:, 0], scores[:, 1]])
    true = torch.arange(len(pairs)) < len(scores)
    ranked = RankMetrics.of(tie_ranks(scores[:, 0], scores[:, 1:]))
    return {"ap": average_precision(pairs, true), "auc": auc(pairs, true), **ranked.plain()}
