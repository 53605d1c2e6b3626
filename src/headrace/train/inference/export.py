"""`export`: the rows of nodes and relations that a run trained, as files that other programs read."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from headrace._files import put_in_place
from headrace.graph import Dataset
from headrace.graph.saved.names import NameReader, Names
from headrace.train.inference.export_files import NpyRows, ParquetRows, Rows, TextLines
from headrace.train.inference.ranking import scan
from headrace.train.inference.trained_links import TrainedLinks, open_links

Format = Literal["parquet", "npy"]
_PIECE_BYTES = 64 << 20


@dataclass(frozen=True)
class Exported:
    """The files that were written: of nodes first, then of relations if the decoder has parameters for them."""

    files: tuple[Path, ...]
    nodes: int
    dim: int
    relations: int
    named: bool


def export(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: Format = "parquet",
    data: Dataset | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write what a finished run of `link` trained to `out`, in pieces: memory does not grow with the number of nodes.

    Of a run with an encoder these are the encoded rows, which its decoder scores, not the rows that the encoder reads.

    parquet: columns `node`, `id` (where `data` names nodes) and `embedding`, and beside it `NAME.relations.parquet` with
        `relation`, `reciprocal`, `id` and `parameters`.
    npy: a float32 array [nodes, dim], `NAME.names.txt` with a line per node where `data` names them, and the same of relations;
        those of heads, where relations are reciprocal, come after all others.

    Files are written aside and renamed when all are complete, `out` last. None of them may exist.

    >>> import headrace as hr, tempfile, numpy
    >>> graph = hr.generate.community(nodes=100, edges=900, classes=2, features=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = hr.train.link(graph, hr.train.LinkOptions(dim=4, epochs=1), out=folder + "/run")
    ...     _ = hr.train.export(folder + "/run", folder + "/rows.npy", format="npy")
    ...     numpy.load(folder + "/rows.npy").shape
    (100, 4)
    """
    if format not in ("parquet", "npy"):
        raise ValueError(f"format must be parquet or npy, not {format!r}")
    place = Path(out)
    if place.suffix in (".parquet", ".npy") and place.suffix != f".{format}":
        raise ValueError(f"{place} ends in {place.suffix}, but the format is {format}: give one or the other")
    if not place.parent.is_dir():
        raise FileNotFoundError(f"{place} cannot be written: there is no directory {place.parent}")
    with open_links(run) as trained, ExitStack() as stack:
        if data is not None:
            trained.check(data)
        node_names = None if data is None else Names.of_nodes(data)
        relation_names = None if data is None else Names.of_relations(data, trained.relations)
        files = _Files(stack, place)
        if trained.decoder.relation.numel():
            _write_relations(files, place, trained, relation_names, format)
        _write_nodes(files, place, trained, node_names, format, progress)
        files.commit()
    count = len(trained.decoder.relation) if trained.decoder.relation.numel() else 0
    written = tuple(reversed(files.places))
    return Exported(written, trained.rows.num_rows, trained.rows.width, count, node_names is not None)


class _Files:
    """Files that appear together: each is written aside, and removed if anything fails. `out` is the last to be put in place."""

    def __init__(self, stack: ExitStack, out: Path) -> None:
        self.places: list[Path] = []
        self._stack, self._open = stack, list[Rows | TextLines]()
        # An export that was killed left this behind, and it had found no file of any of these names: what has one now is its own.
        self._killed = _aside(out).exists() and not out.exists()

    def aside(self, place: Path) -> Path:
        """The path to write to until `commit` renames it to `place`."""
        if self._killed:
            place.unlink(missing_ok=True)
        if place.exists():
            raise FileExistsError(f"{place} exists: remove it, or choose another name")
        aside = _aside(place)
        self._stack.callback(aside.unlink, missing_ok=True)
        self.places.append(place)
        return aside

    def add(self, file: Rows | TextLines) -> None:
        self._stack.callback(file.abandon)
        self._open.append(file)

    def commit(self) -> None:
        for file in self._open:
            file.close()
        for place in self.places:
            self._stack.callback(self._take_back, place)
            put_in_place(_aside(place), place)
        self._stack.pop_all()  # all are in place: none is taken back, and nothing is left aside

    def _take_back(self, place: Path) -> None:
        if not _aside(place).exists():
            place.unlink(missing_ok=True)


def _aside(place: Path) -> Path:
    return place.with_name(place.name + ".new")


def _write_nodes(
    files: _Files,
    place: Path,
    trained: TrainedLinks,
    names: Names | None,
    format: Format,
    progress: Callable[[int, int], None] | None,
) -> None:
    rows, total = trained.rows, trained.rows.num_rows
    reader = None if names is None else NameReader(names)
    lines = _lines(files, place, names, format)
    file = _rows(files, place, total, rows.width, format, names, ("node", "embedding"))
    step = max(_PIECE_BYTES // (4 * rows.width), 1)
    for first, scanned in scan(rows):
        for begin in range(first, first + len(scanned), step):
            piece = scanned[begin - first : begin - first + step].float()
            called = None if reader is None else reader.take(len(piece))
            if lines is not None:
                lines.append(called)
            file.append(torch.arange(begin, begin + len(piece)), piece, names=called)
            if progress is not None:
                progress(begin + len(piece), total)


def _write_relations(files: _Files, place: Path, trained: TrainedLinks, names: Names | None, format: Format) -> None:
    beside = place.with_name(f"{place.stem}.relations{place.suffix}")
    table: Tensor = trained.decoder.relation.detach().float()
    lines = _lines(files, beside, names, format)
    file = _rows(files, beside, len(table), table.shape[1], format, names, ("relation", "parameters"))
    # Relations may be many and wide (rescal), their names are few: one pass for each half.
    for begin in range(0, len(table), trained.relations):
        half = table[begin : begin + trained.relations]
        called = None if names is None else NameReader(names).take(len(half))
        if lines is not None:
            lines.append(called)
        file.append(torch.arange(len(half)), half, names=called, reciprocal=begin > 0)


def _lines(files: _Files, place: Path, names: Names | None, format: Format) -> TextLines | None:
    if names is None or format != "npy":
        return None
    lines = TextLines(files.aside(place.with_name(f"{place.stem}.names.txt")))
    files.add(lines)
    return lines


def _rows(
    files: _Files, place: Path, count: int, width: int, format: Format, names: Names | None, columns: tuple[str, str]
) -> Rows:
    aside = files.aside(place)
    rows: Rows
    if format == "npy":
        rows = NpyRows(aside, count, width)
    else:
        rows = ParquetRows(aside, width, columns, None if names is None else names.type)
    files.add(rows)
    return rows
