"""Rows of any number dealt into key ranges that fit the memory: the external sort behind graphs and node arrays.

One pass counts keys in coarse cells, one deals the rows into a file by range; a range that is still too large is dealt
again, more finely. Rows keep their order within a range. A range of one key cannot be cut: it is handed on as it is, and
its user streams it.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace import _native
from headrace.graph.ingest.outside.scratch import Array, Scratch, Spool

Pieces = Callable[[], Iterator[tuple[Array, ...]]]

_CELLS = 1 << 16
_FAN_OUT = 256


@dataclass(frozen=True)
class Limits:
    """The limits of one range: rows, and keys between its ends."""

    rows: int
    keys: int


@dataclass(frozen=True)
class Range:
    """The rows whose key is in [low, high), in their order; `rows` may pass the limit only where there is one key."""

    pieces: Pieces
    low: int
    high: int
    rows: int

    def load(self, like: tuple[Array, ...]) -> list[Array]:
        """All columns in memory; `like` gives their types where there are no rows."""
        pieces = list(self.pieces()) if self.rows else []
        return [np.concatenate([p[at] for p in pieces]) if pieces else like[at] for at in range(len(like))]


def partition(
    pieces: Pieces,
    low: int,
    high: int,
    *,
    key: int,
    limits: Limits,
    folder: Scratch,
    threads: int,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Range]:
    """Ranges of column `key`, in order and without gaps, that cover [low, high)."""
    if high <= low:
        return
    shift = max(0, (high - low - 1).bit_length() - _CELLS.bit_length() + 1)
    counts = np.zeros(((high - low - 1) >> shift) + 1, np.int64)
    seen = 0
    for piece in pieces():
        counts += np.bincount((piece[key] - low) >> shift, minlength=len(counts))
        seen += len(piece[key])
        if progress:
            progress(seen)
    cuts = _cut(counts, 1 << shift, limits)
    ends = [*(low + (cell << shift) for cell in cuts[:-1]), high]
    rows = [int(counts[a:b].sum()) for a, b in itertools.pairwise(cuts)]

    dealt: _Dealt | None = None
    if sum(count > 0 for count in rows) > 1:
        range_of = np.repeat(np.arange(len(rows), dtype=np.int32), np.diff(cuts))
        dealt = _Dealt(folder.spool("dealt"), len(rows))
        for piece in pieces():
            dealt.deal(piece, range_of[(piece[key] - low) >> shift], threads)
            seen += len(piece[key])
            if progress:
                progress(seen)
    for number, count in enumerate(rows):
        source = pieces if dealt is None else dealt.range(number)
        begin, end = ends[number], ends[number + 1]
        if end - begin > 1 and (count > limits.rows or end - begin > limits.keys):
            empty: Pieces = lambda: iter(())  # noqa: E731
            yield from partition(source if count else empty, begin, end, key=key, limits=limits, folder=folder, threads=threads)
        else:
            yield Range(source, begin, end, count)
    if dealt is not None:
        dealt.close()


def _cut(counts: Array, width: int, limits: Limits) -> list[int]:
    """Where to cut cells of `width` keys, so that neither rows nor keys pass their limit unless one cell does alone.

    No more than 256 cuts for the sake of rows: with more, the stretches written at a time become too short for a disk.
    """
    before = np.concatenate([[0], np.cumsum(counts)])
    most_rows = max(limits.rows, -(-int(before[-1]) // _FAN_OUT))
    most_cells = max(1, limits.keys // width)
    cuts = [0]
    while cuts[-1] < len(counts):
        at = cuts[-1]
        by_rows = int(np.searchsorted(before, before[at] + most_rows, "right")) - 1
        cuts.append(min(max(by_rows, at + 1), at + most_cells, len(counts)))
    return cuts


class _Dealt:
    """Rows in a file, by range: each deal adds a stretch to every range, its columns one after the other."""

    def __init__(self, spool: Spool, ranges: int) -> None:
        self._spool = spool
        self._stretches = [array("q") for _ in range(ranges)]
        self._types: list[tuple[np.dtype[Any], tuple[int, ...]]] = []

    def deal(self, columns: tuple[Array, ...], to: Array, threads: int) -> None:
        """Append each row to the range `to` names: a stable counting sort, then one write per range and column."""
        self._types = [(column.dtype, column.shape[1:]) for column in columns]
        ends, _, order = _native.build_csr(
            to,
            to,
            len(self._stretches),
            wide_index=False,
            undirected=False,
            deduplicate=False,
            self_loops="keep",
            positions=True,
            threads=threads,
        )
        assert order is not None
        dealt = [column[order] for column in columns]
        for number in np.flatnonzero(np.diff(ends)).tolist():
            begin, end = int(ends[number]), int(ends[number + 1])
            offset = self._spool.write(dealt[0][begin:end])
            for column in dealt[1:]:
                self._spool.write(column[begin:end])
            self._stretches[number].extend((offset, end - begin))

    def range(self, number: int) -> Pieces:
        def pieces() -> Iterator[tuple[Array, ...]]:
            stretches = self._stretches[number]
            for at in range(0, len(stretches), 2):
                offset, count = stretches[at], stretches[at + 1]
                columns = []
                for dtype, shape in self._types:
                    values = count * int(np.prod(shape, dtype=np.int64))
                    columns.append(self._spool.read_at(offset, dtype, values).reshape(count, *shape))
                    offset += values * dtype.itemsize
                yield tuple(columns)

        return pieces

    def close(self) -> None:
        self._spool.close()
