"""`Activity`: how many edges a node had, lately and ever; what links of bare sequences are forecast from."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from headrace._memory import require_memory
from headrace.graph import Snapshots

COLUMNS = ("in", "out", "in, halved", "out, halved", "in, ever", "out, ever", "both, halved", "never")


class Activity:
    """Counts of edges at each node up to each snapshot: of it alone, halved at every step, and since the first.

    counts[t]: log(1 + count) by column of `COLUMNS`, and 1 where a node had no edge yet  # [num_nodes, 8]
    ever_in[t], both_halved[t]: the counts that the baselines rank by  # [num_nodes]
    """

    def __init__(self, snapshots: Snapshots) -> None:
        nodes = snapshots.num_nodes
        require_memory(4 * (len(COLUMNS) + 4) * nodes * len(snapshots), "counts of every node and snapshot", "take larger steps")
        ever = torch.zeros(2, nodes, dtype=torch.float64)
        halved = torch.zeros(2, nodes, dtype=torch.float64)
        self.counts: list[Tensor] = []
        self.ever_in: list[Tensor] = []
        self.both_halved: list[Tensor] = []
        for at in range(len(snapshots)):
            graph = snapshots.graph(at)
            own = torch.stack([graph.degrees(), torch.bincount(graph.indices.long(), minlength=nodes)]).double()
            ever, halved = ever + own, halved / 2 + own
            both = halved.sum(0, keepdim=True)
            never = (ever.sum(0, keepdim=True) == 0).double()
            self.counts.append(torch.cat([torch.cat([own, halved, ever, both]).log1p(), never]).t().float().contiguous())
            self.ever_in.append(ever[0])
            self.both_halved.append(both[0])

    def to(self, device: torch.device) -> Activity:
        """The same counts on a device."""
        other = copy(self)
        other.counts, other.ever_in, other.both_halved = (
            [part.to(device) for part in parts] for parts in (self.counts, self.ever_in, self.both_halved)
        )
        return other
