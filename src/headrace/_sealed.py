"""JSON with a checksum: what was written is what is read, or an error names the file.

The checksum is an entry `crc32` of the object, of all its other entries as `json.dumps` writes them: other white space is no
damage. An object without it is taken as it is, so a file that was edited by hand is read again once the entry is removed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace._files import write_whole

_KEY = "crc32"
Plain = Callable[[Any], Any]  # makes a value that JSON knows of one that it does not


def sealed(value: dict[str, Any], *, default: Plain | None = None) -> dict[str, Any]:
    """The object with its checksum, for `json.dumps` with the same `default`."""
    return {**value, _KEY: zlib.crc32(json.dumps(value, default=default).encode())}


def unsealed(text: str | bytes) -> dict[str, Any]:
    """The object that a text holds, without its checksum; a ValueError says what is wrong with it."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    written = value.pop(_KEY, None)
    if written is not None and written != zlib.crc32(json.dumps(value).encode()):
        raise ValueError(f"its checksum is wrong (after a change by hand, remove its entry {_KEY})")
    return value


def write_sealed(path: Path, value: dict[str, Any], *, indent: int | None = None, default: Plain | None = None) -> None:
    """Replace a file by an object with its checksum."""
    write_whole(path, json.dumps(sealed(value, default=default), indent=indent, default=default))


def read_sealed(path: Path, remedy: str) -> dict[str, Any]:
    """What `write_sealed` wrote; else a ValueError that names the file and the remedy."""
    try:
        return unsealed(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}; {remedy}") from None
