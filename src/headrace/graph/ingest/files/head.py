"""The head of a text file: comments, delimiter, column names, and whether ids are integers, all from its first lines."""

from __future__ import annotations

import csv
import gzip
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headrace.graph.ingest.options import Header
from headrace.graph.ingest.problems import IngestError, quoted

_SAMPLE = 1000
_LONGEST_LINE = 16 << 20
_BOM = b"\xef\xbb\xbf"
_NAMES = frozenset(
    {"src", "source", "from", "head", "u", "user", "start", "subject", "src_id", "source_id", "node1", "id1"}
    | {"dst", "target", "to", "tail", "v", "item", "end", "object", "dst_id", "target_id", "node2", "id2"}
    | {"node", "node_id", "nodeid", "id", "name"}
)
INTEGER = re.compile(r"\s*[+-]?[0-9]+\s*")


@dataclass(frozen=True)
class Head:
    """What the first lines of a text file say: how many to skip, the delimiter, the names and a sample of rows."""

    skip: int
    delimiter: str
    width: int
    first: tuple[str, ...]
    sample: tuple[tuple[str, ...], ...]


def open_text(path: Path) -> IO[bytes]:
    """The bytes of a file, unpacked where its name ends in .gz."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")  # type: ignore[return-value]


def read_head(path: Path, delimiter: str | None, comment: str) -> Head | None:
    """The head of a file, or None where it holds no rows at all."""
    mark = comment.encode()
    lines: list[bytes] = []
    skip = 0
    with open_text(path) as f:
        while len(lines) < _SAMPLE and (line := f.readline(_LONGEST_LINE)):
            if len(line) == _LONGEST_LINE:
                raise IngestError(f"{path}:{skip + len(lines) + 1}: the line is longer than 16 MiB: is this a text file?")
            if not skip and not lines and line.startswith(_BOM):
                line = line[len(_BOM) :]
            text = line.strip()
            if not lines and (not text or (mark and text.startswith(mark))):
                skip += 1
            elif text:
                lines.append(line.rstrip(b"\r\n"))
    if not lines:
        return None
    if b"\0" in lines[0]:
        raise IngestError(f"{path}: this is not a text file: say what it is with format, or rename it")
    delimiter = delimiter or _delimiter_of(path, lines[0].decode("utf-8", "replace"))
    rows = [fields_of(line, delimiter) for line in lines]
    return Head(skip, delimiter, len(rows[0]), rows[0], tuple(rows[1:]))


def fields_of(line: bytes, delimiter: str) -> tuple[str, ...]:
    """The fields of one line."""
    text = line.decode("utf-8", "replace")
    if delimiter == " ":
        text = re.sub(" +", " ", text.strip())
    try:
        return tuple(next(csv.reader([text], delimiter=delimiter), ()))
    except csv.Error:
        return (text,)


def _delimiter_of(path: Path, line: str) -> str:
    if ".tsv" in path.suffixes:
        return "\t"
    return next((mark for mark in "\t,; |" if mark in line), ",")


def has_header(path: Path, head: Head, header: Header, columns: tuple[str | int | None, ...]) -> bool:
    """Whether the first line holds names: as told, as the columns asked for imply, or as the ids below it show."""
    if header != "auto":
        return header == "yes"
    named = [c for c in columns if isinstance(c, str) and not c.isdigit()]
    if named:
        return True
    at = [int(c) if c is not None else default for default, c in enumerate(columns[:2])]
    first = [head.first[i] for i in at if i < head.width]
    rows = [[row[i] for i in at if i < len(row)] for row in head.sample]
    if any(INTEGER.fullmatch(text) for text in first):
        return False
    if any(integer_columns([row[at : at + 1] for row in rows], 1) for at in range(len(first))):
        return True
    if {text.strip().lower().lstrip("~:#") for text in first} & _NAMES:
        return True
    if set(first) & {text for row in rows for text in row}:
        return False
    raise IngestError(
        f"{path}:{head.skip + 1}: is the first line a header ({quoted(head.delimiter.join(head.first))})? "
        "That cannot be told from string ids: say header 'yes' or 'no'"
    )


def integer_columns(rows: list[list[str]], width: int) -> bool:
    """Whether most values of every column are integers: a few bad rows do not make an integer column one of strings."""
    for at in range(width):
        values = [row[at] for row in rows if at < len(row) and row[at].strip()]
        if not values or 2 * sum(INTEGER.fullmatch(v) is not None for v in values) <= len(values):
            return False
    return width > 0
