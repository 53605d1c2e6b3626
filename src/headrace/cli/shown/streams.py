"""Standard output and standard error of the command, on whatever they lead to."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_PLAIN = {"±": "+-", "·": "-", "×": "x", "→": "->", "≤": "<=", "≥": ">=", "…": "...", "█": "#"}


class OutputError(OSError):
    """Standard output could not be written."""


class _Results(io.FileIO):
    """Standard output: a result that cannot be written is an error."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error.errno, f"standard output could not be written: {error.strerror}") from None


class _Progress(io.FileIO):
    """Standard error: what cannot be written is left out, since no work should end for want of a line about it."""

    def write(self, data: ReadableBuffer, /) -> int:
        with suppress(OSError):
            return super().write(data)
        return memoryview(data).nbytes


def _as_plain(error: UnicodeError) -> tuple[str | bytes, int]:
    """Write in other characters what the encoding of a terminal lacks."""
    if isinstance(error, UnicodeEncodeError):
        text = error.object[error.start : error.end]
        if all(character in _PLAIN for character in text):
            return "".join(_PLAIN[character] for character in text), error.end
    return codecs.backslashreplace_errors(error)


def with_streams(command: Callable[[], None]) -> None:
    """Run the command. Its exit code is 1, without a traceback, if standard output is closed early or cannot be written."""
    codecs.register_error("headrace", _as_plain)
    sys.stdout, sys.stderr = _opened(sys.stdout, _Results), _opened(sys.stderr, _Progress)
    try:
        try:
            command()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, OutputError) and error.errno != errno.EPIPE:
            raise
        if isinstance(error, OutputError) and sys.stderr is not None:
            print(f"headrace: {error.strerror}", file=sys.stderr)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - what is left in the buffer would fail again at the end
        sys.exit(1)


def _opened(stream: TextIO, kind: type[io.FileIO]) -> TextIO:
    """The same stream through `kind`. One that was closed by the caller (None), or is no file, stays as it is."""
    try:
        number, encoding, lines = stream.fileno(), stream.encoding, stream.isatty() or kind is _Progress
        stream.flush()
    except (AttributeError, OSError, ValueError):
        return stream
    raw = kind(number, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors="headrace", line_buffering=lines)
