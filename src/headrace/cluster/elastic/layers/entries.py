"""`Entries`: for a range of own rows, the distinct rows that it reads, and a CSR over those."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headrace.cluster.elastic.neighborhood import Neighborhood


class Entries:
    """A CSR of own rows by interval. Of each interval it keeps which rows are read, so what is gathered of them has no repeats.

    >>> entries = Entries(torch.tensor([0, 2, 3, 5]), torch.tensor([4, 1, 4, 0, 4], dtype=torch.int32), {0: (0, 2), 1: (2, 3)}, 5)
    >>> for interval in (0, 1):
    ...     print(*(array.tolist() for array in entries.of(interval)))
    [0, 1, 4] [0, 2, 3] [2, 1, 2]
    [2, 0, 4] [0, 2] [1, 2]
    """

    def __init__(self, indptr: Tensor, indices: Tensor, ranges: Mapping[int, tuple[int, int]], num_src: int) -> None:
        self.indptr, self.indices, self._ranges = indptr, indices, ranges
        self._place = torch.zeros(num_src, dtype=torch.int32)  # of a row among those that an interval reads
        self._read = {interval: self._distinct(*bounds) for interval, bounds in ranges.items()}

    def span(self, interval: int) -> tuple[int, int]:
        """The entries of an interval: from, to."""
        begin, end = self._ranges[interval]
        return int(self.indptr[begin]), int(self.indptr[end])

    def of(self, interval: int) -> tuple[Tensor, Tensor, Tensor]:
        """Which rows are read, the interval's own first; and its rows as `indptr` and `indices` over them."""
        begin, end = self._ranges[interval]
        first, last = self.span(interval)
        read = self._read[interval]
        self._place[read] = torch.arange(len(read), dtype=torch.int32)
        return read, self.indptr[begin : end + 1] - first, self._place[self.indices[first:last].long()]

    def _distinct(self, begin: int, end: int) -> Tensor:
        read = self.indices[int(self.indptr[begin]) : int(self.indptr[end])].unique().long()
        return torch.cat([torch.arange(begin, end), read[(read < begin) | (read >= end)]])


def forward_entries(at: Neighborhood) -> Entries:
    """Of the rows that own nodes read."""
    return Entries(at.forward.indptr, at.forward.indices, _ranges(at), at.forward.num_src)


def backward_entries(at: Neighborhood, positions: Tensor | None, *, self_loops: bool) -> tuple[Entries, Tensor | None]:
    """Of the rows that read own nodes; with `self_loops` exactly one loop for each, behind its others. Also their positions.

    positions: of the entries of `at.backward` in the whole graph, for dropout. Behind all entries there stand the loops, by node.
    """
    indptr, indices = at.backward.indptr, at.backward.indices
    if self_loops:
        own = torch.arange(at.num_own)
        rows = torch.repeat_interleave(own, indptr.diff())
        others = indices != rows
        rows = rows[others]
        indptr = torch.zeros(at.num_own + 1, dtype=torch.int64)
        torch.cumsum(torch.bincount(rows, minlength=at.num_own) + 1, 0, out=indptr[1:])
        places, loops = torch.arange(len(rows)) + rows, indptr[1:] - 1

        def joined(entries: Tensor, of_loops: Tensor) -> Tensor:
            result = torch.empty(int(indptr[-1]), dtype=entries.dtype)
            result[places], result[loops] = entries[others], of_loops.to(entries.dtype)
            return result

        indices = joined(indices, own)
        positions = None if positions is None else joined(positions, at.part.num_edges + at.ids)
    return Entries(indptr, indices, _ranges(at), at.backward.num_src), positions


def _ranges(at: Neighborhood) -> dict[int, tuple[int, int]]:
    return {interval: at.range_of(interval) for interval in at.own_intervals}
