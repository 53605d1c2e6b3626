"""Columns of a table: what is wanted of each, and turning what was read into it, bad values set apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.graph.ingest.problems import BadRow, quoted

Kind = Literal["int", "text", "number", "feature", "word", "list", "whole", "real", "date"]
Array = np.ndarray[Any, Any]

_INTEGER = re.compile(r"\s*[+-]?[0-9]+\s*")
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True)
class Wanted:
    """A column to read: where it stands, what it is called in messages, and what it must hold.

    `int` and `text` are ids (never empty), `number` a finite float32, `feature` any float32, `word` a text that may be
    missing, `list` a list of `below` float32 values. For ids as they are, `below` is the number of nodes. Times are `whole`
    (int64), `real` (finite float64) or a `date`, which becomes seconds since 1970.
    """

    index: int
    label: str
    kind: Kind
    below: int | None = None
    hint: str = ""


@dataclass
class Batch:
    """Rows of a table: one array per wanted column, each row's number in the file, and rows that were unusable as a whole."""

    columns: list[Any]
    rows: Array
    bad: list[BadRow]


def clean(batch: Batch, wanted: Sequence[Wanted]) -> tuple[list[Any], Array, list[BadRow]]:
    """The columns as they are wanted, without the rows that are bad.  # -> arrays, row numbers, bad rows

    Integers and floats come back as numpy arrays, texts as Arrow arrays.
    """
    columns: list[Any] = []
    good: Array | None = None
    bad = list(batch.bad)
    for column, want in zip(batch.columns, wanted, strict=True):
        values, fine = _CONVERT[want.kind](column, want)
        columns.append(values)
        if fine is None:
            continue
        for at in np.flatnonzero(~fine if good is None else ~fine & good).tolist():
            bad.append(BadRow(int(batch.rows[at]), _problem(column[at].as_py(), want)))
        good = fine if good is None else good & fine
    if good is None:
        return columns, batch.rows, bad
    keep = np.flatnonzero(good)
    return [c.take(pa.array(keep)) if isinstance(c, pa.Array) else c[keep] for c in columns], batch.rows[keep], bad


def _problem(value: Any, want: Wanted) -> str:
    text = "" if value is None else value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    if want.kind == "list":
        return f"{want.label} must hold {want.below} numbers ({quoted(text)})"
    if value is None or not text.strip():
        return f"the {want.label} is empty ({quoted(text)})"
    if want.kind in ("number", "feature"):
        return f"the {want.label} is not a {'finite ' if want.kind == 'number' else ''}number ({quoted(text)})"
    if want.kind == "real":
        return f"the {want.label} is not a finite number ({quoted(text)})"
    if want.kind == "date":
        return f"the {want.label} is no date or time such as 2024-05-31 or 2024-05-31 12:30:00 ({quoted(text)})"
    if want.kind in ("text", "word"):
        return f"the {want.label} is not UTF-8 text ({quoted(text)})"
    if _INTEGER.fullmatch(text) is None:
        return f"the {want.label} is not an integer ({quoted(text)}){want.hint}"
    if want.below is not None:
        return f"the {want.label} is outside 0..{want.below - 1} ({quoted(text)})"
    remedy = "" if want.kind == "whole" else ": pass ids='string'"
    return f"the {want.label} does not fit 64 bits ({quoted(text)}){remedy}"


def _is_text(column: Any) -> bool:
    kinds = pa.types
    return bool(
        kinds.is_binary(column.type)
        or kinds.is_string(column.type)
        or kinds.is_large_binary(column.type)
        or kinds.is_large_string(column.type)
    )


def _integers(column: Any, want: Wanted) -> tuple[Array, Array | None]:
    fine: Array | None = None
    if _is_text(column):
        values, fine = _parse_integers(column)
    else:
        if pa.types.is_uint64(column.type):
            fits = pc.fill_null(pc.less_equal(column, pa.scalar(_MOST, pa.uint64())), False)
            fine = None if pc.all(fits).as_py() in (True, None) else fits.to_numpy(zero_copy_only=False)
            column = column if fine is None else pc.if_else(fits, column, pa.scalar(0, pa.uint64()))
        if column.null_count:
            present = column.is_valid().to_numpy(zero_copy_only=False)
            fine = present if fine is None else fine & present
            column = pc.fill_null(column, 0)
        values = column.cast(pa.int64()).to_numpy()
    if want.below is not None and len(values) and (int(values.min()) < 0 or int(values.max()) >= want.below):
        inside = (values >= 0) & (values < want.below)
        fine = inside if fine is None else fine & inside
    return values, fine


def _parse_integers(column: Any) -> tuple[Array, Array | None]:
    """Integers from texts, quickly where all are integers of up to 18 digits, else one by one where they are not."""
    column = column.cast(pa.large_binary())
    plain = pc.fill_null(pc.match_substring_regex(column, r"^[ \t]*-?[0-9]{1,18}[ \t]*$"), False)
    simple = pc.if_else(plain, column, pa.scalar(b"0", pa.large_binary())).cast(pa.large_string())
    values = pc.ascii_trim_whitespace(simple).cast(pa.int64()).to_numpy()
    fine = plain.to_numpy(zero_copy_only=False)
    if fine.all():
        return values, None
    values, fine = values.copy(), fine.copy()
    for at in np.flatnonzero(~fine).tolist():
        text = (column[at].as_py() or b"").decode("utf-8", "replace")
        if _INTEGER.fullmatch(text) and _LEAST <= (number := int(text)) <= _MOST:
            values[at], fine[at] = number, True
    return values, None if fine.all() else fine


def _texts(column: Any, want: Wanted) -> tuple[Any, Array | None]:
    column, fine = _utf8(column)
    filled = pc.greater(pc.binary_length(column), 0)
    if pc.all(filled).as_py() in (True, None):
        return column, fine
    present = filled.to_numpy(zero_copy_only=False)
    return column, present if fine is None else fine & present


def _words(column: Any, want: Wanted) -> tuple[Any, Array | None]:
    column, fine = _utf8(column)
    return pc.utf8_trim_whitespace(column), fine


def _utf8(column: Any) -> tuple[Any, Array | None]:
    """Texts, missing ones as empty, and which of them are UTF-8."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):  # whole numbers with gaps, as pandas writes them
        return pa.array(["" if v is None or v != v else f"{v:.15g}" for v in column.to_pylist()], pa.string()), None
    if not _is_text(column):
        column = column.cast(pa.string())
    if column.null_count:
        column = pc.fill_null(column, b"" if "binary" in str(column.type) else "")
    try:
        return column.cast(pa.string()), None
    except pa.ArrowInvalid:
        decoded = [_decoded(value) for value in column.to_pylist()]
        fine = np.array([text is not None for text in decoded], bool)
        return pa.array([text or "" for text in decoded], pa.string()), fine


def _decoded(value: bytes) -> str | None:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _numbers(column: Any, want: Wanted) -> tuple[Array, Array | None]:
    fine: Array | None = None
    if _is_text(column):
        values, fine = _parse_numbers(column)
    else:
        if column.null_count:
            fine = column.is_valid().to_numpy(zero_copy_only=False)
            column = pc.fill_null(column, 0)
        with np.errstate(over="ignore"):
            values = column.to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    if want.kind == "number":
        finite = np.isfinite(values)
        if not finite.all():
            fine = finite if fine is None else fine & finite
    return values, fine


def _parse_numbers(column: Any, kind: Any = None) -> tuple[Array, Array | None]:
    kind = kind or pa.float32()
    texts = column.cast(pa.large_binary()).cast(pa.large_string(), safe=False)
    try:
        return pc.ascii_trim_whitespace(texts).cast(kind).to_numpy(), None
    except pa.ArrowInvalid:
        values = np.zeros(len(column), kind.to_pandas_dtype())
        fine = np.ones(len(column), bool)
        for at, text in enumerate(column.to_pylist()):
            try:
                values[at] = pa.scalar((text if isinstance(text, str) else text.decode()).strip()).cast(kind).as_py()
            except (pa.ArrowInvalid, UnicodeDecodeError):
                fine[at] = False
        return values, fine


def _reals(column: Any, want: Wanted) -> tuple[Array, Array | None]:
    fine: Array | None = None
    if _is_text(column):
        values, fine = _parse_numbers(column, pa.float64())
    else:
        if column.null_count:
            fine = column.is_valid().to_numpy(zero_copy_only=False)
            column = pc.fill_null(column, 0)
        values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    finite = np.isfinite(values)
    if not finite.all():
        fine = finite if fine is None else fine & finite
    return values, fine


def _dates(column: Any, want: Wanted) -> tuple[Array, Array | None]:
    """Seconds since 1970, from Arrow's dates and times or from texts."""
    fine: Array | None = None
    if _is_text(column):
        column, fine = _parse_dates(column)
    elif column.null_count:
        fine = column.is_valid().to_numpy(zero_copy_only=False)
    seconds = column.cast(pa.timestamp("s"), safe=False).cast(pa.int64())
    return pc.fill_null(seconds, 0).to_numpy(zero_copy_only=False), fine


def _parse_dates(column: Any) -> tuple[Any, Array | None]:
    texts = column.cast(pa.large_binary()).cast(pa.large_string(), safe=False)
    try:
        return pc.ascii_trim_whitespace(texts).cast(pa.timestamp("s")), None
    except pa.ArrowInvalid:
        seconds = [seconds_of(text if isinstance(text, str) else text.decode("utf-8", "replace")) for text in column.to_pylist()]
        fine = np.array([value is not None for value in seconds], bool)
        return pa.array([value or 0 for value in seconds], pa.int64()).cast(pa.timestamp("s")), None if fine.all() else fine


def seconds_of(text: str) -> int | None:
    """Seconds since 1970 of a date or time as ISO 8601 writes it, with or without a zone; None where it is none."""
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            return int(pa.scalar(text.strip()).cast(kind).value // 1_000_000)
        except pa.ArrowInvalid:
            continue
    return None


def _lists(column: Any, want: Wanted) -> tuple[Array, Array | None]:
    assert want.below is not None
    if not pa.types.is_fixed_size_list(column.type):
        lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
        fine = lengths == want.below
    else:
        fine = column.is_valid().to_numpy(zero_copy_only=False)
    kept = column if fine.all() else column.take(pa.array(np.flatnonzero(fine)))
    flat = kept.flatten()
    values = np.zeros((len(column), want.below), np.float32)
    values[fine] = flat.to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(kept), want.below)
    return values, None if fine.all() else fine


_CONVERT: dict[str, Any] = {
    "int": _integers,
    "text": _texts,
    "number": _numbers,
    "feature": _numbers,
    "word": _words,
    "list": _lists,
    "whole": _integers,
    "real": _reals,
    "date": _dates,
}
