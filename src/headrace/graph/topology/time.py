"""Times of edges: their order within the rows of a graph."""

from __future__ import annotations

import torch
from torch import Tensor


def before_all(times: Tensor) -> float:
    """A time that lies before all others of its type."""
    return -float("inf") if times.dtype.is_floating_point else torch.iinfo(times.dtype).min


def times_in_order(indptr: Tensor, time: Tensor) -> bool:
    """Whether times do not decrease within rows. NaN is in no order."""
    fine = time[1:] >= time[:-1]
    starts = indptr[1:-1]
    starts = starts[(starts > 0) & (starts < len(time))]
    fine[starts - 1] = True  # between the rows anything goes
    return bool(fine.all()) and not bool(time.isnan().any())


def sorted_order(indptr: Tensor, time: Tensor) -> Tensor:  # -> [edges]
    """Positions of the edges, rows in place and each in order of time; edges of one time keep their order."""
    if bool(time.isnan().any()):
        raise ValueError(f"time[{int(time.isnan().nonzero()[0])}] is not a number: edges cannot be put in order")
    row = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())
    order = time.argsort(stable=True)
    return order[row[order].argsort(stable=True)]
