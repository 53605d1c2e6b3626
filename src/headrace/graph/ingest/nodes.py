"""Rows of nodes: labels, splits and features from a table whose ids join the edges', or from .npy arrays by position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from headrace.graph.ingest.files.columns import Wanted, clean
from headrace.graph.ingest.files.tables import ParquetTable
from headrace.graph.ingest.files.text import TextTable
from headrace.graph.ingest.idmap import IdMap
from headrace.graph.ingest.memory import Budget
from headrace.graph.ingest.outside.scratch import Array, Scratch
from headrace.graph.ingest.partition import Limits, Range, partition
from headrace.graph.ingest.problems import BadRow, BadRows, IngestError, quoted
from headrace.graph.saved.io import DatasetWriter

SPLITS = ("train", "val", "test")
_SPLIT_CODES = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2, "": -1}
_MOST_CLASSES = 1 << 20


@dataclass(frozen=True)
class NodeColumns:
    """Which columns of a node table hold what."""

    id: Wanted
    label: Wanted | None
    split: Wanted | None
    features: tuple[Wanted, ...]

    @property
    def wanted(self) -> list[Wanted]:
        return [c for c in (self.id, self.label, self.split, *self.features) if c is not None]

    @property
    def width(self) -> int:
        """Features of a node."""
        if self.features and self.features[0].kind == "list":
            return self.features[0].below or 0
        return len(self.features)


class NodeRows:
    """The rows of a node table on disk, waiting for their ids to be numbered."""

    def __init__(self, table: TextTable | ParquetTable, columns: NodeColumns, folder: Scratch, bad: BadRows) -> None:
        self._table, self._columns, self._folder, self._bad = table, columns, folder, bad
        self._lines, self._codes = folder.spool("node-lines"), folder.spool("node-codes")
        self._features = folder.spool("node-features")
        self._classes: dict[str, int] = {}
        self._first_group: int | None = None
        self._groups = 0
        self.without_row = 0

    def read(self, ids: IdMap, progress: Callable[[int], None]) -> None:
        """Read the table once: its ids to the id map, one group per batch, and the rest to disk."""
        self._first_group = ids.groups
        for batch in self._table.batches(self._columns.wanted):
            columns, lines, bad = clean(batch, self._columns.wanted)
            raw = columns.pop(0)
            codes = np.full((len(lines), 2), -1, np.int32)
            fine = np.ones(len(lines), bool)
            if self._columns.label is not None:
                codes[:, 0] = self._class_codes(columns.pop(0))
            if self._columns.split is not None:
                codes[:, 1], fine, wrong = _split_codes(columns.pop(0), lines)
                bad += wrong
            self._bad.add(self._table, bad)
            keep = slice(None) if fine.all() else np.flatnonzero(fine)
            if not fine.any():
                continue
            ids.add(raw.take(pa.array(np.flatnonzero(fine))) if ids.is_text else raw[keep])
            self._groups += 1
            self._lines.append(lines[keep])
            self._codes.append(codes[keep])
            if self._columns.width:
                stacked = columns[0] if columns[0].ndim == 2 else np.stack(columns, axis=1)
                self._features.append(stacked[keep])
            progress(self._table.done)

    def _class_codes(self, labels: Any) -> Array:
        encoded = labels.dictionary_encode()
        codes = []
        for name in encoded.dictionary.to_pylist():
            codes.append(-1 if not name else self._classes.setdefault(name, len(self._classes)))
        if len(self._classes) > _MOST_CLASSES:
            raise IngestError(f"label_column: {self._table.path} has more than {_MOST_CLASSES} labels: is it the right column?")
        return np.array(codes, np.int32)[encoded.indices.to_numpy()] if codes else np.empty(0, np.int32)

    def _pieces(self, ids: IdMap) -> Iterator[tuple[Array, ...]]:
        assert self._first_group is not None
        for number in range(self._groups):
            piece: tuple[Array, ...] = (
                ids.group(self._first_group + number).astype(np.int64),
                self._lines.read(number),
                self._codes.read(number).reshape(-1, 2),
            )
            if self._columns.width:
                piece += (self._features.read(number).reshape(-1, self._columns.width),)
            yield piece

    @property
    def width(self) -> int:
        """Features of a node."""
        return self._columns.width

    @property
    def has_labels(self) -> bool:
        return self._columns.label is not None

    @property
    def has_splits(self) -> bool:
        return self._columns.split is not None

    def ranges(self, ids: IdMap, budget: Budget, threads: int) -> Iterator[tuple[Array, Array | None]]:
        """Codes of labels and splits, -1 for none, and features, of all nodes in their order.  # -> [n, 2], [n, width]"""
        width = self.width
        limit = budget.items(64 + 16 * width)
        ranges = partition(
            lambda: self._pieces(ids),
            0,
            ids.num_nodes,
            key=0,
            limits=Limits(limit, limit),
            folder=self._folder,
            threads=threads,
        )
        like = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 2), np.int32), np.empty((0, width), np.float32))
        for part in ranges:
            columns = self._first_of_many(part) if part.rows > limit else part.load(like[: 3 + bool(width)])
            node, _, codes, *rows = self._distinct(columns)
            place = node - part.low
            self.without_row += part.high - part.low - len(place)
            values = np.full((part.high - part.low, 2), -1, np.int32)
            values[place] = codes
            features = None
            if width:
                features = np.zeros((part.high - part.low, width), np.float32)
                features[place] = rows[0]
            yield values, features

    def _first_of_many(self, part: Range) -> list[Array]:
        """The first row of a node that has more rows than fit in memory."""
        first: list[Array] | None = None
        for piece in part.pieces():
            columns = list(piece) if first is None else [np.concatenate(pair) for pair in zip(first, piece, strict=True)]
            first = self._distinct(columns)
        assert first is not None
        return first

    def _distinct(self, columns: list[Array]) -> list[Array]:
        """One row per node: a second one is a bad row."""
        _, first = np.unique(columns[0], return_index=True)
        if len(first) == len(columns[0]):
            return columns
        again = np.ones(len(columns[0]), bool)
        again[first] = False
        line_of = dict(zip(columns[0][first].tolist(), columns[1][first].tolist(), strict=True))
        repeats = zip(columns[0][again].tolist(), columns[1][again].tolist(), strict=True)
        problem = "the node has a row already, at {}"
        self._bad.add(self._table, [BadRow(line, problem.format(self._table.where(line_of[n]))) for n, line in repeats])
        return [column[first] for column in columns]

    def labels(self) -> tuple[Array, list[str]]:
        """The label of every code (the last entry, -1, is for none), and the names of classes where labels are names."""
        numbers = [_whole(name) for name in self._classes]
        if all(number is not None for number in numbers):
            for name, number in zip(self._classes, numbers, strict=True):
                if number is not None and number < -1:
                    raise IngestError(f"label_column: {self._table.path} has the label {quoted(name)}: labels are not negative")
            return np.array([*numbers, -1], np.int64), []
        names = sorted(self._classes, key=str.encode)
        rank = {name: at for at, name in enumerate(names)}
        return np.array([*(rank[name] for name in self._classes), -1], np.int64), names


def _whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return int(value) if (value := float(text)).is_integer() else None
    except (ValueError, OverflowError):
        return None


def _split_codes(words: Any, lines: Array) -> tuple[Array, Array, list[BadRow]]:
    encoded = words.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    codes = np.array([_SPLIT_CODES.get(name.lower(), -2) for name in names] or [-1], np.int32)[encoded.indices.to_numpy()]
    fine = codes != -2
    problem = "the split is not train, val or test ({})"
    wrong = [BadRow(int(lines[at]), problem.format(quoted(words[at].as_py()))) for at in np.flatnonzero(~fine).tolist()]
    return codes, fine, wrong


def write_splits(writer: DatasetWriter, pieces: Callable[[], Iterator[Array]]) -> None:
    """The node ids of each split, from one code per node."""
    counts = np.zeros(len(SPLITS), np.int64)
    for piece in pieces():
        counts += np.bincount(piece[piece >= 0], minlength=len(SPLITS))
    for code, name in enumerate(SPLITS):
        array = writer.array(f"split_{name}", torch.int64, (int(counts[code]),))
        start = 0
        for piece in pieces():
            array.append(np.flatnonzero(piece == code) + start)
            start += len(piece)
