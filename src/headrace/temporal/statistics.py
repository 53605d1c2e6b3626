"""What a stream is like for a model with memory: how old memory is, and what batches of a size lose."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headrace.graph import EventStream


class BatchLoss(NamedTuple):
    """What a memory that is renewed once a batch does not see."""

    kept: float  # distinct nodes / ends of events: only the last event of a node in a batch changes its memory
    missed: float  # of the node's own events, that a read of its memory does not have yet; a mean over all ends


def batch_loss(stream: EventStream, cuts: Tensor) -> BatchLoss:
    """Of the batches that `cuts` makes.

    >>> import headrace as hr, torch
    >>> stream = hr.EventStream([0, 0, 0, 1], [2, 2, 3, 2], [1, 2, 3, 4])
    >>> batch_loss(stream, torch.tensor([0, 4]))
    BatchLoss(kept=0.5, missed=0.75)
    """
    distinct = missed = 0
    for begin, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        counts = torch.unique(torch.cat([stream.src[begin:end], stream.dst[begin:end]]), return_counts=True)[1]
        distinct += len(counts)
        missed += int((counts * (counts - 1) // 2).sum())  # the second event misses one, the third two
    ends = max(2 * int(cuts[-1] - cuts[0]), 1)
    return BatchLoss(distinct / ends, missed / ends)


def age_statistics(stream: EventStream, end: int) -> tuple[float, float]:
    """Mean and deviation of the time since a node's event before, over the ends of events up to `end`.

    Of a node's first event it is the time since the beginning of the stream.

    >>> import headrace as hr
    >>> age_statistics(hr.EventStream([0, 0], [1, 1], [10, 14]), 2)
    (2.0, 2.0)
    """
    nodes = torch.stack([stream.src[:end], stream.dst[:end]], dim=1).flatten().long()
    time = stream.time[:end].double().repeat_interleave(2)
    order = nodes.argsort(stable=True)
    nodes, time = nodes[order], time[order]
    before = torch.where(nodes[1:] == nodes[:-1], time[:-1], stream.time[0].double())
    ages = torch.cat([time[:1] - stream.time[0], time[1:] - before])
    deviation = float(ages.std(correction=0))
    return float(ages.mean()), deviation if deviation > 0 else 1.0
