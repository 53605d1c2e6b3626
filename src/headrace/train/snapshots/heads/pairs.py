"""`Pairs`: how often two nodes had an edge, lately and ever, at any snapshot of a sequence."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from headrace.graph import Snapshots

COLUMNS = ("there, halved", "there, ever", "back, halved", "back, ever", "itself")


class Pairs:
    """Counts of a pair up to a snapshot: edges from source to target and back, halved at every step, and whether there was any.

    Kept are the pairs that have an edge at some time, and each one's counts where they change.
    """

    def __init__(self, snapshots: Snapshots) -> None:
        self.num_nodes, steps = snapshots.num_nodes, len(snapshots)
        keys, times = [], []
        for at in range(steps):
            src, dst = snapshots.graph(at).edge_index().long()
            keys.append(src * self.num_nodes + dst)
            times.append(torch.full_like(src, at))
        key, time = torch.cat([*keys, torch.zeros(0).long()]), torch.cat([*times, torch.zeros(0).long()])
        self._pair = torch.unique(key)  # rising
        entry, edges = torch.unique(torch.searchsorted(self._pair, key) * steps + time, return_counts=True)
        self._entry, self.steps = entry, steps
        self._halved = _halved(entry // max(steps, 1), entry % max(steps, 1), edges.double())
        src, dst = self._pair // self.num_nodes, self._pair % self.num_nodes
        both = torch.unique(torch.cat([self._pair, dst * self.num_nodes + src]))  # of a node, those it ever meets
        self._partner = both % self.num_nodes
        self._begin = torch.searchsorted(both, torch.arange(self.num_nodes + 1) * self.num_nodes)

    def to(self, device: torch.device) -> Pairs:
        """The same counts on a device."""
        other = copy(self)
        for name in ("_pair", "_entry", "_halved", "_partner", "_begin"):
            setattr(other, name, getattr(self, name).to(device))
        return other

    def around(self, src: Tensor, at: int) -> tuple[Tensor, Tensor, Tensor]:  # [n] -> [m], [m], [m, 5]
        """What is known after snapshot `at` of pairs with these sources: place in src, target, counts. Other pairs have zeros."""
        begin, count = self._begin[src], self._begin[src + 1] - self._begin[src]
        number = torch.arange(len(src), device=src.device)
        place = torch.repeat_interleave(number, count)
        offset = torch.arange(len(place), device=src.device) - torch.repeat_interleave(count.cumsum(0) - count, count)
        other = self._partner[begin[place] + offset]
        counts = self.read(src[place], other, at)
        seen = counts.any(1) & (other != src[place])
        own = counts.new_zeros(len(src), len(COLUMNS))
        own[:, -1] = 1.0
        own[:, :4] = self.read(src, src, at)[:, :4]
        parts = [(place[seen], other[seen], counts[seen]), (number, src, own)]
        joined = [torch.cat(part) for part in zip(*parts, strict=True)]
        return joined[0], joined[1], joined[2]

    def read(self, src: Tensor, dst: Tensor, at: int) -> Tensor:  # [n], [n] -> [n, 5]
        """The counts of pairs after snapshot `at`."""
        return torch.stack([*self._read(src, dst, at), *self._read(dst, src, at), (src == dst).float()], dim=1)

    def _read(self, src: Tensor, dst: Tensor, at: int) -> tuple[Tensor, Tensor]:
        """Edges of a pair, halved at every step since, as log(1 + count), and whether there was any.  # [n], [n] -> [n], [n]"""
        if not len(self._pair):
            none = torch.zeros(len(src), device=src.device)
            return none, none
        key = src * self.num_nodes + dst
        pair = torch.searchsorted(self._pair, key).clamp_max(len(self._pair) - 1)
        last = torch.searchsorted(self._entry, pair * self.steps + at, right=True) - 1
        entry = self._entry[last.clamp_min(0)]
        known = (self._pair[pair] == key) & (last >= 0) & (entry // self.steps == pair)
        age = (at - entry % self.steps).clamp_min(0)
        return torch.where(known, self._halved[last.clamp_min(0)] * 0.5**age, 0.0).log1p().float(), known.float()


def _halved(pair: Tensor, time: Tensor, edges: Tensor) -> Tensor:
    """Of entries in order of pair and time, the count so far, halved at every step.  # [n] each -> [n]"""
    total = edges.clone()
    first = torch.ones_like(pair, dtype=torch.bool)
    first[1:] = pair[1:] != pair[:-1]
    start = torch.nonzero(first).flatten()
    number = torch.arange(len(pair)) - torch.repeat_interleave(start, torch.diff(start, append=torch.tensor([len(pair)])))
    order = number.argsort(stable=True)  # all first entries, then all second ones, ...
    for later in order.split(torch.bincount(number).tolist() if len(number) else [0])[1:]:
        total[later] += total[later - 1] * 0.5 ** (time[later] - time[later - 1])
    return total
