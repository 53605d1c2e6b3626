"""Destinations that the true one of an event is compared to: some that are drawn, or all there are."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from headrace.graph import EventStream
from headrace.sample import EventNegatives


class Candidates(Protocol):
    """Other destinations of events, as `EventNegatives` gives them."""

    def sample(self, begin: int, end: int, before: int | None = None, *, epoch: int = 0, batch: int = 0) -> Tensor:
        """Of events `begin` to `end`.  # -> [events, candidates]"""
        ...


class EveryDestination:
    """One drawn destination of each event, for measures of pairs, and then all of the stream but the true one, for ranks.

    >>> import headrace as hr
    >>> stream = hr.EventStream([0, 1, 0], [2, 3, 4], [1, 2, 3])
    >>> EveryDestination(stream, hr.sample.EventNegatives(stream)).sample(1, 3)[:, 1:].tolist()
    [[2, 4], [2, 3]]
    """

    def __init__(self, stream: EventStream, drawn: EventNegatives) -> None:
        self.stream, self.drawn = stream, drawn

    def sample(self, begin: int, end: int, before: int | None = None, *, epoch: int = 0, batch: int = 0) -> Tensor:
        one = self.drawn.sample(begin, end, before, epoch=epoch, batch=batch)
        destinations = self.drawn.destinations
        true = torch.searchsorted(destinations, self.stream.dst[begin:end].long())
        place = torch.arange(len(destinations) - 1).expand(end - begin, -1)
        return torch.cat([one, destinations[place + (place >= true[:, None])]], dim=1)
