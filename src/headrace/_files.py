"""Files that are replaced whole: written beside the old one, flushed to the disk, renamed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: Path, *, contended: bool = False) -> Iterator[Path]:
    """Yield a path to write to; when the block ends, that file is on the disk and has the name `path`.

    If the block or the disk fails, whatever was at `path` stays and the new file is removed. A process that is killed leaves
    `path` as it was and perhaps `path.new` beside it. A device or a pipe is not replaced.

    contended: other processes may write the same file at the same time.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "is a device or a pipe, which a new file would take the place of", str(path))
    aside = path.with_name(f".{path.name}.{os.getpid()}" if contended else path.name + ".new")
    try:
        yield aside
        put_in_place(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_whole(path: Path, data: bytes | memoryview | str, *, contended: bool = False) -> None:
    """Write a file, text as UTF-8, so that it is there whole or not at all."""
    with replaced(path, contended=contended) as aside:
        aside.write_bytes(data.encode() if isinstance(data, str) else data)


def put_in_place(aside: Path, path: Path) -> None:
    """Rename a complete file to `path`, after it is on the disk. To make the rename last, `sync` the folder too."""
    sync(aside)
    os.replace(aside, path)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
