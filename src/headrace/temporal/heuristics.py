"""What needs no learning: pairs that met before (EdgeBank) and whom a source met last, under the visibility of a model."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.graph import EventStream

_BLOCK = 1 << 21  # questions answered together


class Recency:
    """The place of the last event of a pair, and of a destination, before a place of the stream; -1 where there is none.

    EdgeBank (Poursafaei et al., NeurIPS 2022) scores a pair 1 if it met before. `scores` also orders by how recently a source met a
    destination, and those it never met by how recently anybody did: the heuristic that leads the Temporal Graph Benchmark's
    wiki list beside the best model.
    """

    def __init__(self, stream: EventStream) -> None:
        self.events, self.nodes = len(stream), stream.num_nodes
        pair = stream.src.long() * stream.num_nodes + stream.dst.long()
        self._pairs, place = torch.unique(pair, return_inverse=True)
        order = torch.arange(self.events)
        self._by_pair = (place * self.events + order).sort().values
        self._by_target = (stream.dst.long() * self.events + order).sort().values

    def last_met(self, src: Tensor, dst: Tensor, before: Tensor) -> Tensor:  # [n] x 3 -> [n]
        """The last event of each pair before a place."""
        pair = src * self.nodes + dst
        place = torch.searchsorted(self._pairs, pair).clamp_max(len(self._pairs) - 1)
        last = self._last(self._by_pair, place, before)
        return torch.where(self._pairs[place] == pair, last, -1)

    def met(self, src: Tensor, dst: Tensor, before: Tensor) -> Tensor:
        """EdgeBank with unlimited memory: 1 for pairs that met before.  # [n] x 3 -> [n]"""
        return (self.last_met(src, dst, before) >= 0).double()

    def scores(self, src: Tensor, dst: Tensor, before: Tensor) -> Tensor:
        """Recency of the pair, then of the destination.  # [n] x 3 -> [n] float64"""
        local, anybody = self.last_met(src, dst, before), self._last(self._by_target, dst, before)
        return ((local + 1) * (self.events + 1) + anybody + 1).double()

    def _last(self, places: Tensor, group: Tensor, before: Tensor) -> Tensor:
        at = torch.searchsorted(places, group * self.events + before) - 1
        found = places[at.clamp_min(0)]
        return torch.where((at >= 0) & (found // self.events == group), found % self.events, -1)

    def ranks(self, stream: EventStream, begin: int, end: int, lag: int) -> Tensor:
        """Ranks of the true destinations among all, of a state that is renewed every `lag` events; ties count half.  # -> [n]"""
        destinations = torch.unique(stream.dst).long()
        step = max(_BLOCK // len(destinations), 1)
        ranks = []
        for first in range(begin, end, step):
            event = torch.arange(first, min(first + step, end))
            before = begin + (event - begin) // lag * lag
            before = torch.minimum(before, torch.searchsorted(stream.time, stream.time[event]))
            src = stream.src[event].long()
            wide = [values[:, None].expand(-1, len(destinations)).reshape(-1) for values in (src, before)]
            scores = self.scores(wide[0], destinations.repeat(len(event)), wide[1]).view(len(event), -1)
            ranks.append(tie_ranks(self.scores(src, stream.dst[event].long(), before), scores) - 0.5)  # it is a candidate itself
        return torch.cat(ranks)


class LabelHistory:
    """How often each class came to a destination before a place of the stream, and how often in training at all (`prior`)."""

    def __init__(self, stream: EventStream, labels: Tensor, classes: int, train_end: int) -> None:
        self.events = len(stream)
        self.prior = torch.bincount(labels[:train_end], minlength=classes).double() / train_end  # [classes]
        places = (stream.dst.long() * self.events + torch.arange(self.events)).sort().values
        self._places = places
        self._labels = labels[places % self.events]

    def shares(self, dst: Tensor, before: Tensor) -> Tensor:
        """Of the destination's events before a place, the prior counting as one.  # [n], [n] -> [n, classes]"""
        first, last = (torch.searchsorted(self._places, dst * self.events + place) for place in (torch.zeros_like(before), before))
        shares = self.prior.repeat(len(dst), 1)
        for number in range(len(self.prior)):
            counts = torch.cat([torch.zeros(1, dtype=torch.int64), (self._labels == number).cumsum(0)])
            shares[:, number] += counts[last] - counts[first]
        return shares / (last - first + 1)[:, None]


def tie_ranks(true: Tensor, others: Tensor, *, slack: float = 0.0) -> Tensor:
    """1 + candidates above + half of those that are equal, up to a relative `slack`.  # [n], [n, c] -> [n]

    Scores that are not finite cannot be compared: such an answer is below all candidates, and a candidate that is NaN above any.
    """
    true = torch.where(true.isfinite(), true, torch.nan)[:, None]
    width, most = slack * true.abs(), torch.finfo(others.dtype).max
    above = ~(others <= (true + width).clamp_max(most))
    level = ~above & (others >= (true - width).clamp_min(-most))
    return 1 + above.double().sum(1) + 0.5 * level.double().sum(1)


def information_kept(stream: EventStream, cuts: Tensor) -> float:
    """The share of node-events that a memory sees when only a node's last event of a batch counts: distinct nodes / ends."""
    distinct = 0
    for begin, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        distinct += len(torch.unique(torch.cat([stream.src[begin:end], stream.dst[begin:end]])))
    return distinct / max(2 * int(cuts[-1] - cuts[0]), 1)
