"""Errors as sentences: what a command ends with where the input, the disk or the memory does not allow it to go on."""

from __future__ import annotations

import errno
import re
from typing import Any

from typer.core import TyperGroup

from headrace._memory import machine_memory
from headrace._sizes import format_size
from headrace.cli.options import refused
from headrace.train import CheckpointError

_BYTES = re.compile(r"tried to allocate (\d+) bytes")
_TOO_LARGE = re.compile(r"overflow|too large|too big|maximum supported dimension", re.IGNORECASE)
_NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory|bad_alloc", re.IGNORECASE)


class Guarded(TyperGroup):
    """The command with all its subcommands. An error that none of them has put into words ends here as a sentence."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            text = sentence(error)
            if text is None:
                raise
            raise refused(text) from None


def sentence(error: Exception) -> str | None:
    """What to say of an error; None where it is a defect of this program, or where the terminal is gone."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_MEMORY.search(text)):
        size = _BYTES.search(text)
        detail = f": {format_size(int(size[1]))} were asked for at once" if size else f": {text}" if text else ""
        return f"there is not enough memory ({format_size(machine_memory())} in all){detail}; choose smaller sizes"
    if isinstance(error, OverflowError) or (isinstance(error, RuntimeError | TypeError) and _TOO_LARGE.search(text)):
        return f"a number is too large ({text}): choose smaller sizes"
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return None
    if isinstance(error, OSError | ValueError | FloatingPointError | CheckpointError):
        return text or type(error).__name__
    return None
