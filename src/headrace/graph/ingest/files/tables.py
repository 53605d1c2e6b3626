"""Tables of any kind, opened by name: text, Parquet and .npy, all read in batches with numbered rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.lib import format as npy

from headrace.graph.ingest.files.columns import Batch, Wanted
from headrace.graph.ingest.files.head import Head, has_header, integer_columns, read_head
from headrace.graph.ingest.files.text import TextTable
from headrace.graph.ingest.options import Column, IngestOptions
from headrace.graph.ingest.problems import IngestError

_TEXT = {".csv", ".tsv", ".txt", ".edges", ".edgelist", ".el", ".tab"}
_PARQUET = {".parquet", ".pq"}
_PARSERS = 4
_PARQUET_ROWS, _NPY_ROWS = 1 << 16, 1 << 20
_SAMPLE = 1000


class Table(Protocol):
    """Rows in batches; `done` of `size` bytes are read; `where` names a row for a message."""

    path: Path
    size: int
    done: int

    def where(self, row: int) -> str: ...
    def batches(self, wanted: Sequence[Wanted]) -> Iterator[Batch]: ...


def kind_of(path: Path, kind: str = "auto") -> str:
    """text, parquet or npy, as told or by the name of the file."""
    if kind != "auto":
        return "text" if kind in ("csv", "tsv") else kind
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix.lower() in _TEXT:
        return "text"
    if path.suffix.lower() in _PARQUET:
        return "parquet"
    if path.suffix.lower() == ".npy":
        return "npy"
    raise IngestError(f"{path}: what kind of file is this? Say it with format: csv, tsv, parquet or npy")


def require_file(path: Path, argument: str) -> None:
    """Refuse a file that is not there, naming the argument that named it."""
    if not path.exists():
        raise IngestError(f"{argument}: there is no file {path}")
    if not path.is_file():
        raise IngestError(f"{argument}: {path} is not a file")


def open_text_table(path: Path, options: IngestOptions, columns: tuple[Column, ...], block: int, threads: int) -> TextTable | None:
    """A text file with its delimiter and header found, or None where it holds no rows."""
    head = _head(path, options)
    if head is None:
        return None
    header = has_header(path, head, options.header, columns)
    names = tuple(name.strip() for name in head.first) if header else None
    return TextTable(path, head, names, block=block, threads=min(threads, _PARSERS))


def _head(path: Path, options: IngestOptions) -> Head | None:
    delimiter = options.delimiter or ("\t" if options.format == "tsv" else None)
    try:
        return read_head(path, delimiter, options.comment)
    except (OSError, EOFError) as error:
        raise IngestError(f"{path} cannot be read: {error}") from None


def open_table(
    path: Path, kind: str, options: IngestOptions, columns: tuple[Column, ...], block: int, at_once: int, threads: int
) -> AnyTable | None:
    """A table of any kind; `columns` tell whether a text has a header. None where a text holds no rows."""
    if kind == "text":
        return open_text_table(path, options, columns, block, threads)
    if kind == "parquet":
        return ParquetTable(path, min(_PARQUET_ROWS, at_once))
    return NpyTable(path, min(_NPY_ROWS, at_once))


def first_rows(path: Path, kind: str, options: IngestOptions) -> tuple[tuple[str, ...] | None, list[tuple[str, ...]]]:
    """The names of columns, where a file has them for certain, and its first rows, a header among them."""
    if kind == "text":
        head = _head(path, options)
        return None, [] if head is None else [head.first, *head.sample]
    table = ParquetTable(path, _SAMPLE)
    return table.names, table.sample()


class ParquetTable:
    """One Parquet file, its pages streamed. Rows are numbered from 0."""

    def __init__(self, path: Path, rows: int) -> None:
        self.path, self._rows = path, rows
        try:
            self._file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
        except (pa.ArrowInvalid, OSError) as error:
            raise IngestError(f"{path} is not a Parquet file: {error}") from None
        self.schema = self._file.schema_arrow
        self.names = tuple(self.schema.names)
        self.num_rows = self._file.metadata.num_rows
        self.size, self.done = path.stat().st_size, 0

    def where(self, row: int) -> str:
        return f"{self.path}: row {row}"

    def sample(self) -> list[tuple[str, ...]]:
        """The first rows, as texts."""
        batch = next(iter(self._file.iter_batches(_SAMPLE, use_threads=False)), None)
        columns = [] if batch is None else [column.to_pylist() for column in batch.columns]
        return [tuple("" if value is None else str(value) for value in row) for row in zip(*columns, strict=True)]

    def batches(self, wanted: Sequence[Wanted]) -> Iterator[Batch]:
        names = list(dict.fromkeys(self.names[want.index] for want in wanted))
        row = 0
        for batch in self._file.iter_batches(self._rows, columns=names, use_threads=False):
            columns = [batch.column(names.index(self.names[want.index])) for want in wanted]
            yield Batch([_plain(column) for column in columns], np.arange(row, row + batch.num_rows), [])
            row += batch.num_rows
            self.done = self.size * row // max(1, self.num_rows)


def _plain(column: Any) -> Any:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


class NpyTable:
    """Edges in a .npy file of shape [2, E] or [E, 2], read piece by piece. Rows are edges, numbered from 0."""

    def __init__(self, path: Path, rows: int) -> None:
        self.path, self._rows = path, rows
        self.names = None
        shape, fortran, self._dtype, self._offset = npy_header(path)
        if self._dtype.kind not in "iu":
            raise IngestError(f"{path} holds {self._dtype}: edges are integers")
        if len(shape) != 2 or 2 not in shape:
            raise IngestError(f"{path} has shape {tuple(shape)}: edges are [2, E] or [E, 2]")
        across = shape[0] == 2  # sources first, then targets
        self.num_rows = shape[1] if across else shape[0]
        self._columnwise = across != fortran
        self.size, self.done = path.stat().st_size, 0

    def where(self, row: int) -> str:
        return f"{self.path}: edge {row}"

    def sample(self) -> list[tuple[str, ...]]:
        """The first edges, as texts."""
        wanted = [Wanted(at, "", "int") for at in (0, 1)]
        batch = next(NpyTable(self.path, 10).batches(wanted), None)
        return [] if batch is None else [(str(a), str(b)) for a, b in zip(*(c.to_pylist() for c in batch.columns), strict=True)]

    def batches(self, wanted: Sequence[Wanted]) -> Iterator[Batch]:
        for start in range(0, self.num_rows, self._rows):
            count = min(self._rows, self.num_rows - start)
            if self._columnwise:
                pair = [self._read(at * self.num_rows + start, count) for at in (0, 1)]
            else:
                both = self._read(2 * start, 2 * count).reshape(count, 2)
                pair = [np.ascontiguousarray(both[:, at]) for at in (0, 1)]
            self.done = self.size * (start + count) // self.num_rows
            yield Batch([pa.array(pair[want.index]) for want in wanted], np.arange(start, start + count), [])

    def _read(self, first: int, count: int) -> np.ndarray[Any, Any]:
        values = np.fromfile(self.path, self._dtype, count, offset=self._offset + first * self._dtype.itemsize)
        if len(values) < count:
            raise IngestError(f"{self.path} ends early: its header promises {self.num_rows} edges")
        return values.astype(self._dtype.newbyteorder("="), copy=False)


def npy_header(path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether columns come first, type and where the values begin."""
    try:
        with open(path, "rb") as f:
            version = npy.read_magic(f)  # type: ignore[no-untyped-call]
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(f)  # type: ignore[no-untyped-call]
            if dtype.hasobject:
                raise ValueError("it holds Python objects")
            return shape, fortran, dtype, f.tell()
    except (ValueError, OSError) as error:
        raise IngestError(f"{path} is not a usable .npy file: {error}") from None


def column_index(path: Path, column: Column, names: tuple[str, ...] | None, width: int, argument: str, default: int) -> int:
    """The place of a column given by name or number."""
    if column is None:
        index = default
    elif names is not None and column in names:
        index = names.index(str(column))
        if names.count(str(column)) > 1:
            raise IngestError(f"{argument}: {path} has more than one column {column!r}: give its number, from 0")
    elif isinstance(column, int) or column.isdigit():
        index = int(column)
    else:
        known = f"its columns are {', '.join(names)}" if names else "it has no header: give a number, from 0"
        raise IngestError(f"{argument}: {path} has no column {column!r}; {known}")
    if not 0 <= index < width:
        remedy = f": name another with {argument}, or say delimiter" if width < 2 else f": choose 0 to {width - 1}"
        raise IngestError(f"{argument}: {path} has {width} column{'s' * (width != 1)}, and none is number {index}{remedy}")
    return index


def width_of(table: AnyTable) -> int:
    """The number of columns."""
    return table.head.width if isinstance(table, TextTable) else 2 if isinstance(table, NpyTable) else len(table.names)


def require_type(table: ParquetTable, at: int, argument: str, use: str) -> None:
    """Refuse a Parquet column whose type does not serve as an "id", a "number" or a "word"."""
    kind = table.schema.field(at).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    text = pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_binary(value)
    fine = text or pa.types.is_integer(value)
    if use != "id":
        fine = fine or pa.types.is_floating(value) or pa.types.is_boolean(value)
    if not fine:
        needs = "integers or strings" if use == "id" else "numbers" if use == "number" else "numbers or strings"
        raise IngestError(f"{argument}: column {table.names[at]!r} of {table.path} holds {kind}: it must hold {needs}")


def looks_integer(table: AnyTable, columns: Sequence[int]) -> bool:
    """Whether the ids in these columns are integers, by the schema or by most of the first rows."""
    if isinstance(table, NpyTable):
        return True
    if isinstance(table, ParquetTable):
        return all(pa.types.is_integer(table.schema.field(at).type) for at in columns)
    return integer_columns([[row[at] for at in columns if at < len(row)] for row in table.sample()], len(columns))


AnyTable = TextTable | ParquetTable | NpyTable
