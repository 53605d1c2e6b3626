"""Negatives where nodes have times: only nodes that exist by the time of a link are drawn for it."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace import _native
from headrace.sample.negatives.negative import Negatives, NegativeSampler


class NegativesInTime:
    """Draws negatives as `NegativeSampler` does, each among the nodes whose time is not after that of its link.

    With nodes in order of time these are a prefix, so one draw is enough; none are drawn again. For a link older than all nodes it
    is the oldest node. A draw is a function of (seed, epoch, batch, slot). Ends whose type has no times are drawn from all nodes.
    """

    def __init__(self, plain: NegativeSampler, src_time: Tensor | None, dst_time: Tensor | None) -> None:
        if plain.sampling.filter is not False:
            raise ValueError("filter draws negatives again, which those that depend on times are not: leave filter out")
        sampling = plain.sampling
        self.plain = plain
        self._src = None if src_time is None else _ByTime(src_time, sampling.src_weight)
        self._dst = None if dst_time is None else _ByTime(dst_time, sampling.dst_weight)

    def sample(self, src: Tensor, time: Tensor, epoch: int = 0, batch: int = 0) -> Negatives:
        """Negatives for positives with sources `src` and times `time`.

        Binary: negative j has the time of positive j modulo their number. Triplet: `amount` for every positive in turn.
        """
        drawn = self.plain.sample(src, epoch, batch)
        sampling, count = self.plain.sampling, len(drawn.dst)
        key = _native.stream_key(self.plain.seed, epoch, batch, _native.Purpose.negative)
        words = torch.rand(2, count, dtype=torch.float64, generator=torch.Generator().manual_seed(key))
        triplet = sampling.mode == "triplet"
        until = time.repeat_interleave(int(sampling.amount)) if triplet else time[torch.arange(count) % max(len(time), 1)]
        sources = drawn.src if triplet or self._src is None else self._src.draw(until, words[0])
        targets = drawn.dst if self._dst is None else self._dst.draw(until, words[1])
        return Negatives(sources, targets)


class _ByTime:
    """Nodes in order of time, to draw from those up to some time."""

    def __init__(self, time: Tensor, weight: Tensor | None) -> None:
        self.order = time.argsort(stable=True)
        self.time = time[self.order].contiguous()
        self.sums = None if weight is None else torch.as_tensor(weight).double()[self.order].cumsum(0)

    def draw(self, until: Tensor, words: Tensor) -> Tensor:
        """For every draw, a node whose time is at most its `until`; `words` are uniform in [0, 1)."""
        exist = torch.searchsorted(self.time, until, right=True).clamp_(min=1)
        if self.sums is None:
            return self.order[(words * exist).long().minimum(exist - 1)]
        place = torch.searchsorted(self.sums, words * self.sums[exist - 1], right=True)
        return self.order[place.minimum(exist - 1)]
