"""Text tables (CSV, TSV and the like): blocks of whole lines, parsed by Arrow, with the exact line of every bad row."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from headrace.graph.ingest.files.columns import Batch, Kind, Wanted
from headrace.graph.ingest.files.head import Head, fields_of, open_text
from headrace.graph.ingest.problems import BadRow, IngestError, quoted

_BOM = b"\xef\xbb\xbf"
_LONGEST_LINE = 16 << 20
_TYPES: dict[Kind, Any] = {
    "int": pa.int64(),
    "text": pa.string(),
    "number": pa.float32(),
    "feature": pa.float32(),
    "word": pa.string(),
    "whole": pa.int64(),
    "real": pa.float64(),
    "date": pa.timestamp("s"),
}


class TextTable:
    """One text file. Rows are numbered as an editor numbers lines."""

    def __init__(self, path: Path, head: Head, names: tuple[str, ...] | None, *, block: int, threads: int) -> None:
        self.path, self.head, self.names = path, head, names
        self.size = path.stat().st_size
        self._block, self._threads = block, threads
        self._skip = head.skip + (names is not None)
        self.done = 0

    def where(self, row: int) -> str:
        return f"{self.path}:{row}"

    def sample(self) -> list[tuple[str, ...]]:
        """The first rows, as texts."""
        return list(self.head.sample) if self.names is not None else [self.head.first, *self.head.sample]

    def batches(self, wanted: Sequence[Wanted]) -> Iterator[Batch]:
        with open_text(self.path) as f:
            blocks = _blocks(self.path, f, self._block, self._skip)
            parse = partial(_parse, wanted=wanted, delimiter=self.head.delimiter, width=self.head.width)
            for batch in _in_order(parse, blocks, self._threads):
                raw = getattr(f, "fileobj", None) or f
                self.done = min(self.size, raw.tell())
                yield batch


def _blocks(path: Path, file: IO[bytes], size: int, skip: int) -> Iterator[tuple[bytes, int]]:
    """Whole lines of about `size` bytes, with the number of the first, line ends as \\n, the first `skip` lines left out."""
    rest, line, begin = b"", 1, True
    while True:
        try:
            piece = file.read(size)
        except (EOFError, OSError) as error:
            raise IngestError(f"{path}:{line}: the file cannot be read on from here: {error}") from None
        if begin and piece.startswith(_BOM):
            piece = piece[len(_BOM) :]
        begin = False
        cut = piece.rfind(b"\n") + 1 if piece else 0
        if piece and not cut:
            rest += piece
            if len(rest) > max(size, _LONGEST_LINE):
                raise IngestError(f"{path}:{line}: the line is longer than 16 MiB: is this a text file?")
            continue
        block = rest + piece[:cut]
        rest = piece[cut:]
        count = block.count(b"\n") + (not piece and bool(block))
        if skip:
            block, skipped = _without_lines(block, min(skip, count))
            skip, line, count = skip - skipped, line + skipped, count - skipped
        if block:
            yield (block.replace(b"\r\n", b"\n") if b"\r" in block else block), line
        line += count
        if not piece:
            return


def _without_lines(block: bytes, lines: int) -> tuple[bytes, int]:
    at = 0
    for _ in range(lines):
        end = block.find(b"\n", at)
        at = len(block) if end < 0 else end + 1
    return block[at:], lines


def _in_order(parse: Callable[[tuple[bytes, int]], Batch], blocks: Iterator[tuple[bytes, int]], threads: int) -> Iterator[Batch]:
    """The parsed blocks in order, the next ones being parsed while one is used; never more than threads + 1 at once."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="headrace-parse")
    waiting: deque[Future[Batch]] = deque()
    try:
        for block in blocks:
            waiting.append(pool.submit(parse, block))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _parse(numbered: tuple[bytes, int], wanted: Sequence[Wanted], delimiter: str, width: int) -> Batch:
    """The wanted columns of a block: typed at once where every line is a good row, else as bytes with their lines."""
    block, first = numbered
    if delimiter == " ":
        block = re.sub(rb"(?m)^ +| +$", b"", re.sub(rb" {2,}", b" ", block))
    lines = block.count(b"\n") + (not block.endswith(b"\n"))
    if b"\r" not in block:
        try:
            table = _read(block, wanted, delimiter, width, types=[_TYPES[want.kind] for want in wanted])
            if table.num_rows == lines:
                return Batch([_one(table, want) for want in wanted], np.arange(first, first + lines), [])
        except pa.ArrowInvalid:
            pass  # some value is not of its type, or some row is not of this width: find out which
    return _parse_carefully(block, first, lines, wanted, delimiter, width)


def _parse_carefully(block: bytes, first: int, lines: int, wanted: Sequence[Wanted], delimiter: str, width: int) -> Batch:
    bad: list[BadRow] = []
    wide: list[int] = []

    def set_apart(row: Any) -> str:
        wide.append(row.number - 1)
        if row.text.strip():
            bad.append(BadRow(first + row.number - 1, _width_problem(row.actual_columns, width, row.text)))
        return "skip"

    if b"\r" not in block:
        try:
            types = [pa.binary()] * len(wanted)
            table = _read(block, wanted, delimiter, width, types=types, empty_lines=True, invalid=set_apart)
            if table.num_rows + len(wide) == lines:
                ends = np.flatnonzero(np.frombuffer(block + (b"" if block.endswith(b"\n") else b"\n"), np.uint8) == 10)
                blank = np.flatnonzero(np.diff(ends, prepend=-1) == 1)
                keep = np.ones(lines, bool)
                keep[wide] = False
                read = np.flatnonzero(keep)
                kept = np.flatnonzero(~np.isin(read, blank))
                columns = [_one(table, want).take(pa.array(kept)) for want in wanted]
                return Batch(columns, first + read[kept], bad)
        except pa.ArrowInvalid:
            pass  # quotes that do not close: rows and lines are out of step
    return _parse_line_by_line(block, first, wanted, delimiter, width)


def _parse_line_by_line(block: bytes, first: int, wanted: Sequence[Wanted], delimiter: str, width: int) -> Batch:
    bad: list[BadRow] = []
    rows: list[int] = []
    values: list[list[bytes]] = [[] for _ in wanted]
    for number, line in enumerate(block.split(b"\n"), first):
        if not line.strip():
            continue
        fields = fields_of(line, delimiter)
        if len(fields) != width:
            bad.append(BadRow(number, _width_problem(len(fields), width, line)))
            continue
        rows.append(number)
        for column, want in zip(values, wanted, strict=True):
            column.append(fields[want.index].encode())
    return Batch([pa.array(column, pa.binary()) for column in values], np.array(rows, np.int64), bad)


def _read(
    block: bytes,
    wanted: Sequence[Wanted],
    delimiter: str,
    width: int,
    *,
    types: list[Any],
    empty_lines: bool = False,
    invalid: Callable[[Any], str] | None = None,
) -> Any:
    names = [str(i) for i in range(width)]
    return pacsv.read_csv(
        pa.BufferReader(block),
        read_options=pacsv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names),
        parse_options=pacsv.ParseOptions(
            delimiter=delimiter,
            quote_char='"' if b'"' in block else False,
            ignore_empty_lines=not empty_lines,
            invalid_row_handler=invalid,
        ),
        convert_options=pacsv.ConvertOptions(
            column_types={str(want.index): kind for want, kind in zip(wanted, types, strict=True)},
            include_columns=list(dict.fromkeys(str(want.index) for want in wanted)),
            null_values=[],
            strings_can_be_null=False,
        ),
    )


def _one(table: Any, want: Wanted) -> Any:
    chunks = table.column(str(want.index)).chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else pa.array([], pa.binary())


def _width_problem(columns: int, width: int, text: str | bytes) -> str:
    return f"{columns} column{'s' * (columns != 1)} where {width} were expected ({quoted(text)})"
