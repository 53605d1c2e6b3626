"""`Evaluator`: how well a temporal model tells events that came from events that did not, with heuristics beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headrace.graph import EventSplits, EventStream
from headrace.sample import EventNegatives
from headrace.temporal import EventBatch, EventBatches, cut_events
from headrace.temporal.heuristics import information_kept
from headrace.train.events.heads import Head
from headrace.train.events.options import TemporalOptions
from headrace.train.recipe import Progress

if TYPE_CHECKING:
    from headrace.train.events.forward import Forward

_SET = 2**31  # negatives of an evaluation are a set of their own, the same in every epoch
_ROOTS = 1 << 15  # nodes that are embedded together


class Evaluator:
    """Scores the events of a split, and updates the memory by all events that come before and within it.

    The memory is the one that training ended with (as TGN's own code has it, and those after it): that of a replay with the last
    weights is another, which the model has not learnt to read. Without one, all events before the split are replayed.

    What is measured, and which heuristics stand beside it, is the head's. Inductive figures are of the events with an end that
    training has not seen. A batch with many candidates is scored in pieces, by the memory that it found; it is written as a whole.
    """

    def __init__(
        self,
        stream: EventStream,
        splits: EventSplits,
        options: TemporalOptions,
        neighbors: Sequence[int],
        head: Head,
        *,
        group: int = 1,
    ) -> None:
        self.stream, self.bounds, self.options, self.head = stream, splits, options, head
        pieces = [(0, splits.train), (splits.train, splits.val), (splits.val, splits.test)]
        parts = [cut_events(stream, *piece, options.batch_size, options.cut) for piece in pieces]
        self.train_cuts = parts[0]
        self.cuts = torch.cat([parts[0][:-1], parts[1][:-1], parts[2]])
        self.first = {"val": len(parts[0]) - 1, "test": len(parts[0]) + len(parts[1]) - 2}
        self.end = {"val": self.first["test"], "test": len(self.cuts) - 1}
        drawn = EventNegatives(stream, seed=options.seed) if head.candidates is None else head.candidates
        self._seen = {"neighbors": neighbors, "in_batch": options.in_batch, "threads": options.threads}
        self.replay = EventBatches(stream, self.cuts, drawn, **self._seen)  # type: ignore[arg-type]
        self.pieces = 1
        self.scored = self.replay
        if head.candidates is not None:
            roots = 2 + head.candidates.sample(0, 1).shape[1]
            self.pieces = -(-int(self.cuts.diff().max()) // max(_ROOTS // roots, 1))
            if self.pieces > 1:
                fine = _in_pieces(self.cuts, self.pieces)
                self.scored = EventBatches(stream, fine, drawn, group=self.pieces, **self._seen)  # type: ignore[arg-type]
        # Mail of training events has the time of its group of batches, which were read together.
        starts = torch.cat([parts[0][:-1][::group], self.cuts[len(parts[0]) - 1 :]])
        self.replay.starts = self.scored.starts = starts
        known = torch.zeros(stream.num_nodes, dtype=torch.bool)
        known[stream.src[: splits.train].long()] = True
        known[stream.dst[: splits.train].long()] = True
        self.unseen = ~(known[stream.src.long()] & known[stream.dst.long()])
        self._heuristics: dict[str, dict[str, Any]] = {}

    def split(self, model: Forward, name: str, progress: Progress, memory: Tensor | None = None) -> dict[str, Any]:
        return self.splits(model, (name,), progress, memory)[name]

    @torch.no_grad()
    def splits(
        self, model: Forward, names: Sequence[str], progress: Progress, memory: Tensor | None = None
    ) -> dict[str, dict[str, Any]]:
        """Figures of some splits, in the order of time, from the memory after the training events (it is not changed)."""
        model.eval()
        device = next(model.parameters()).device
        tgn, stream = model.tgn, self.stream
        rows = None
        if tgn.memory_width:
            empty = (stream.num_nodes, tgn.memory_width + tgn.mail_width)
            rows = torch.zeros(empty, device=device) if memory is None else memory.to(device, copy=True)
        edge_x = None if stream.edge_x is None else stream.edge_x.float().to(device)
        outcomes: dict[str, list[Tensor]] = {name: [] for name in names}
        last = max(self.end[name] for name in names)
        for index in range(0 if memory is None else self.first["val"], last):
            name = next((n for n in names if self.first[n] <= index < self.end[n]), None)
            if name is None and rows is None:
                continue
            written = []
            for made in self._batches(index, scored=name is not None, memory=rows is not None):
                batch = made.to(device)
                states = model.update(None if rows is None else rows[batch.nodes], batch, edge_x)
                z = None
                if name is not None or tgn.parts.mail_embeds:
                    z = model.embed(states, batch, edge_x)
                if name is not None:
                    assert z is not None
                    outcomes[name].append(self.head.outcome(model, z, batch))
                if states is not None:
                    letters = model.letters(states, batch, z if tgn.parts.mail_embeds else None)
                    written.append((batch.nodes[batch.written], letters))
            for nodes, letters in written:
                assert rows is not None
                rows[nodes] = letters
            progress(index + 1, last)
        return {name: self._figures(name, torch.cat(parts)) for name, parts in outcomes.items()}

    def _batches(self, index: int, *, scored: bool, memory: bool) -> Iterator[EventBatch]:
        """A batch as a whole, or in the pieces that are scored one after the other."""
        if not scored or self.pieces == 1:
            drawn = scored and self.head.candidates is not None
            yield self.replay.make(index, _SET, memory=memory, negatives=drawn)
            return
        for piece in range(index * self.pieces, (index + 1) * self.pieces):
            if self.scored.cuts[piece] < self.scored.cuts[piece + 1]:
                yield self.scored.make(piece, _SET, memory=memory)

    def _figures(self, name: str, outcomes: Tensor) -> dict[str, Any]:
        begin, end = (int(self.cuts[at]) for at in (self.first[name], self.end[name]))
        figures = self._measured(outcomes, begin, end)
        figures["inductive_events"] = int(self.unseen[begin:end].sum())
        figures["heuristic"] = self.heuristic(name)
        figures["protocol"] = self.head.protocol() | {
            "in_batch": self.options.in_batch,
            "batch_size": self.options.batch_size,
            "cut": self.options.cut,
            "events": end - begin,
            "information_kept": information_kept(self.stream, self.train_cuts),
        }
        return figures

    def _measured(self, outcomes: Tensor, begin: int, end: int) -> dict[str, Any]:
        """Figures of all events and of those with an end that training has not seen; None where there are none."""
        events, unseen = torch.arange(begin, end), self.unseen[begin:end]
        inductive = self.head.measured(outcomes[unseen], events[unseen]) if bool(unseen.any()) else None
        return {**self.head.measured(outcomes, events), "inductive": inductive}

    def heuristic(self, name: str) -> dict[str, Any]:
        """What needs no learning, on the same events, candidates and visibility."""
        if name not in self._heuristics:
            parts: dict[str, list[Tensor]] = {}
            first, last = self.first[name], self.end[name]
            for index in range(first * self.pieces, last * self.pieces):
                begin, end = int(self.scored.cuts[index]), int(self.scored.cuts[index + 1])
                if begin == end:
                    continue
                hidden_from = int(self.cuts[index // self.pieces])
                drawn = None
                if self.head.candidates is not None:
                    drawn = self.head.candidates.sample(begin, end, hidden_from, epoch=_SET, batch=index)
                before = torch.searchsorted(self.stream.time, self.stream.time[begin:end])
                before = before.clamp_max(hidden_from) if self.options.in_batch == "hidden" else before
                for kind, outcomes in self.head.heuristics(torch.arange(begin, end), before, drawn).items():
                    parts.setdefault(kind, []).append(outcomes)
            bounds = int(self.cuts[first]), int(self.cuts[last])
            self._heuristics[name] = {kind: self._measured(torch.cat(some), *bounds) for kind, some in parts.items()}
        return self._heuristics[name]


def _in_pieces(cuts: Tensor, pieces: int) -> Tensor:
    """Cuts of every batch into so many pieces, the last of which may be empty.  # [n + 1] -> [n * pieces + 1]"""
    sizes = cuts.diff()
    each = -(-sizes // pieces)
    inner = torch.minimum(torch.arange(pieces) * each[:, None], sizes[:, None])
    return torch.cat([(cuts[:-1, None] + inner).flatten(), cuts[-1:]])
