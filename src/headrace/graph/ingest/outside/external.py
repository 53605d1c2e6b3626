"""Edges on disk to compressed rows on disk, bit for bit what `Graph.from_edges` makes of them in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headrace import _native
from headrace.graph.graph import SelfLoops
from headrace.graph.ingest.memory import Budget
from headrace.graph.ingest.outside.scratch import Array, Scratch, Spool
from headrace.graph.ingest.partition import Limits, Range, partition
from headrace.graph.saved.io import DatasetWriter

EdgePieces = Callable[[], Iterator[tuple[Array, ...]]]  # sources, targets, then weights and times, where there are any

# Bytes an entry needs while it is dealt or sorted, all temporaries counted: ids of 4 or 8 bytes, weight, position.
_BYTES_NARROW, _BYTES_WIDE = 112, 160
_BYTES_TIME = 48
_INT32 = np.iinfo(np.int32).max


@dataclass(frozen=True)
class RowOptions:
    """How edges become rows, as in `Graph.from_edges`."""

    undirected: bool
    deduplicate: bool
    self_loops: SelfLoops
    weight: bool
    edge_ids: bool
    time: np.dtype[Any] | None = None

    @property
    def beside(self) -> dict[str, tuple[np.dtype[Any], float]]:
        """What stands beside an entry, and what it is for a self loop that was added."""
        weight: dict[str, tuple[np.dtype[Any], float]] = {"weight": (np.dtype(np.float32), 1)} if self.weight else {}
        if self.time is None:
            return weight
        before_all = -np.inf if self.time.kind == "f" else int(np.iinfo(self.time).min)
        return weight | {"time": (self.time, before_all)}


def edges_at_once(budget: Budget, options: RowOptions) -> int:
    """How many edges a group may hold, so that dealing them fits the memory."""
    return budget.items((_BYTES_WIDE + _BYTES_TIME * (options.time is not None)) * (2 if options.undirected else 1))


class RowWriter:
    """Builds the arrays of a graph range by range and appends them to a dataset."""

    def __init__(
        self, edges: EdgePieces, num_nodes: int, num_edges: int, options: RowOptions, folder: Scratch, threads: int
    ) -> None:
        self._edges, self._options, self._folder, self._threads = edges, options, folder, threads
        self._nodes, self._read = num_nodes, num_edges
        self._id = np.dtype(np.int32 if num_nodes <= _INT32 else np.int64)
        self._position = np.dtype(np.int32 if num_edges <= _INT32 else np.int64)
        self._like: tuple[Array, ...] = (np.empty(0, self._id), np.empty(0, self._id))
        self._types = {"indices": self._id} | {name: dtype for name, (dtype, _) in options.beside.items()}
        self._loop = [value for _, value in options.beside.values()]
        if options.edge_ids:
            self._types["edge_id"] = self._position
            self._loop.append(-1)
        self._like += tuple(np.empty(0, dtype) for dtype in list(self._types.values())[1:])
        self._names = list(self._types)
        self._entries = 0

    def write(self, writer: DatasetWriter, budget: Budget, progress: Callable[[str, int, int | None], None]) -> int:
        """Write indptr, indices, weight, time and edge_id; returns the number of edges in the graph."""
        wide = self._id.itemsize > 4 or self._position.itemsize > 4
        limit = budget.items((_BYTES_WIDE if wide else _BYTES_NARROW) + _BYTES_TIME * (self._options.time is not None))
        limits = Limits(rows=limit, keys=limit)
        spools = [self._folder.spool(name) for name in self._names]
        indptr = writer.array("indptr", torch.int64, (self._nodes + 1,))
        indptr.append(np.zeros(1, np.int64))
        total = 2 * self._read * (2 if self._options.undirected else 1)
        ranges = partition(
            self._entries_of_edges,
            0,
            self._nodes,
            key=0,
            limits=limits,
            folder=self._folder,
            threads=self._threads,
            progress=lambda done: progress("sorting edges", done, total),
        )
        for part in ranges:
            if part.rows > limit:
                degrees = np.array([self._long_row(part, limits, spools)])
            else:
                degrees = self._rows(part, spools)
            indptr.append(self._entries + np.cumsum(degrees))
            self._entries += int(degrees.sum())
            progress("writing rows", part.high, self._nodes)
        for name, spool in zip(self._names, spools, strict=True):
            dtype = torch.from_numpy(np.empty(0, self._types[name])).dtype
            array = writer.array(name, dtype, (self._entries,))
            for number in range(len(spool)):
                array.append(spool.read(number))
            spool.close()
        return self._entries

    def _entries_of_edges(self) -> Iterator[tuple[Array, ...]]:
        """(row, column, weight?, time?, position?) of every edge and, where it is undirected, of its reverse right after it."""
        position = 0
        for src, dst, *extra in self._edges():
            row, column = dst.astype(self._id, copy=False), src.astype(self._id, copy=False)
            if self._options.edge_ids:
                extra.append(np.arange(position, position + len(row), dtype=self._position))
            position += len(row)
            keep: Array | None = None
            if self._options.self_loops == "drop":
                keep = row != column
            if self._options.undirected:
                keep = np.stack([np.ones(len(row), bool) if keep is None else keep, row != column], axis=1).ravel()
                row, column = np.stack([row, column], axis=1).ravel(), np.stack([column, row], axis=1).ravel()
                extra = [np.repeat(values, 2) for values in extra]
            columns = (row, column, *extra)
            yield columns if keep is None or keep.all() else tuple(values[keep] for values in columns)

    def _rows(self, part: Range, spools: list[Spool]) -> Array:
        """Sort one range of rows into the spools; returns their degrees."""
        columns = part.load(self._like)
        nodes = part.high - part.low
        columns[0] = (columns[0] - self._id.type(part.low)).astype(np.int32)
        if self._options.self_loops == "add":
            looped = np.zeros(nodes, bool)
            looped[columns[0][columns[0] == columns[1] - part.low]] = True
            columns = self._with_loops(columns, np.flatnonzero(~looped), part.low)
        row, *values = columns
        if self._options.deduplicate:
            degrees, order = _distinct_order(row, values[0], nodes)
        else:
            ends, _, where = _native.build_csr(
                row,
                row,
                nodes,
                wide_index=False,
                undirected=False,
                deduplicate=False,
                self_loops="keep",
                positions=True,
                threads=self._threads,
            )
            assert where is not None
            degrees, order = np.diff(ends), where
        for spool, column in zip(spools, values, strict=True):
            spool.append(column[order])
        return degrees

    def _with_loops(self, columns: list[Array], rows: Array, low: int) -> list[Array]:
        added = [rows, rows + low]
        added += [np.full(len(rows), value, like.dtype) for value, like in zip(self._loop, self._like[2:], strict=True)]
        return [np.concatenate([a, b.astype(a.dtype)]) for a, b in zip(columns, added, strict=True)]

    def _long_row(self, part: Range, limits: Limits, spools: list[Spool]) -> int:
        """A row too long for the memory: copied through as it is, or cut by column where duplicates must go."""
        degree, looped = 0, False
        if not self._options.deduplicate:
            for row, *values in part.pieces():
                for spool, column in zip(spools, values, strict=True):
                    spool.append(column)
                degree += len(row)
                looped = looped or bool((values[0] == part.low).any())
            if self._options.self_loops == "add" and not looped:
                self._append_loop(part.low, spools)
                degree += 1
            return degree
        by_column = partition(part.pieces, 0, self._nodes, key=1, limits=limits, folder=self._folder, threads=self._threads)
        for piece in by_column:
            first = [column[:1] for column in next(piece.pieces())] if piece.rows > limits.rows else piece.load(self._like)
            columns, at = np.unique(first[1], return_index=True)
            if self._options.self_loops == "add" and piece.low <= part.low < piece.high and part.low not in columns:
                place = int(np.searchsorted(columns, part.low))
                values = self._with_loops([values[at] for values in first], np.array([0]), part.low)
                order = np.insert(np.arange(len(columns)), place, len(columns))
                first, at = values, order
            for spool, column in zip(spools, first[1:], strict=True):
                spool.append(column[at])
            degree += len(at)
        return degree

    def _append_loop(self, node: int, spools: list[Spool]) -> None:
        loop = self._with_loops([like[:0] for like in self._like], np.array([0]), node)
        for spool, column in zip(spools, loop[1:], strict=True):
            spool.append(column)


def _distinct_order(row: Array, column: Array, nodes: int) -> tuple[Array, Array]:
    """Degrees, and the order that sorts entries by row and column and keeps the first of equal ones."""
    span = int(column.max()) + 1 if len(column) else 1
    if nodes * span < 1 << 63:
        key = row.astype(np.int64) * span + column
        order = np.argsort(key, kind="stable")
        key = key[order]
        first = np.ones(len(key), bool)
        np.not_equal(key[1:], key[:-1], out=first[1:])
    else:
        order = np.lexsort((column, row))
        first = np.ones(len(order), bool)
        first[1:] = (row[order][1:] != row[order][:-1]) | (column[order][1:] != column[order][:-1])
    order = order[first]
    return np.bincount(row[order], minlength=nodes), order
