"""Temporary files: a hidden folder beside the target that never outlives the import, and arrays spooled into it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from headrace import _files
from headrace.graph.ingest.problems import IngestError

Array = np.ndarray[Any, Any]


class Scratch:
    """A folder of temporary files, all closed with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._spools: list[Spool] = []

    def spool(self, name: str) -> Spool:
        """A new file, for arrays."""
        self._spools.append(Spool(self.path / f"{name}-{len(self._spools)}"))
        return self._spools[-1]

    def close(self) -> None:
        for spool in self._spools:
            spool.close()


@contextmanager
def scratch_folder(target: Path) -> Iterator[Scratch]:
    """A folder on the target's file system, removed however the block ends; folders of killed imports go first.

    The lock tells a folder that is in use from one whose import was killed: it goes with the process.
    """
    parents = [parent for parent in (target.absolute().parent, *target.absolute().parent.parents) if not parent.exists()]
    prefix = f".{target.name}.import-"
    folder: Path | None = None
    scratch: Scratch | None = None
    try:
        target.absolute().parent.mkdir(parents=True, exist_ok=True)
        for left in target.absolute().parent.glob(f"{prefix}*"):
            _remove_unless_locked(left)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=target.absolute().parent))
        with open(folder / "lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            scratch = Scratch(folder)
            yield scratch
    finally:
        if scratch is not None:
            scratch.close()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        for parent in parents:
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()


def _remove_unless_locked(folder: Path) -> None:
    try:
        with open(folder / "lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return


def require_disk(folder: Path, needed: int, free: int | None = None) -> None:
    """Refuse early where the disk cannot hold the temporary files and the result."""
    try:
        _files.require_disk(folder.parent, needed, "the import", free=free)
    except ValueError as error:
        raise IngestError(str(error)) from None


class Spool:
    """Arrays written one after the other to one file and read back by number, whole or in part.

    Plain reads and writes: pages of a memory map would count as memory of the process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "w+b", buffering=1 << 20)  # noqa: SIM115 - closed by close()
        self._where: list[tuple[int, np.dtype[Any], int]] = []
        self._end = 0
        self._dirty = False

    def __len__(self) -> int:
        return len(self._where)

    def append(self, array: Array) -> int:
        self._where.append((self.write(array), array.dtype, array.size))
        return len(self._where) - 1

    def size(self, number: int) -> int:
        return self._where[number][2]

    def read(self, number: int, start: int = 0, count: int | None = None) -> Array:
        offset, dtype, size = self._where[number]
        count = size - start if count is None else min(count, size - start)
        return self.read_at(offset + start * dtype.itemsize, dtype, count)

    def write(self, array: Array) -> int:
        """Append raw values, and say where they begin."""
        begin = self._end
        if array.size:
            self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        self._end += array.nbytes
        self._dirty = True
        return begin

    def read_at(self, offset: int, dtype: np.dtype[Any], count: int) -> Array:
        if self._dirty:
            self._file.flush()
            self._dirty = False
        array = np.empty(count, dtype)
        into = memoryview(array.view(np.uint8))  # type: ignore[arg-type]
        while into:
            got = os.preadv(self._file.fileno(), [into], offset)
            if got == 0:
                raise OSError(f"{self._path} ended early: was it changed by another process?")
            into, offset = into[got:], offset + got
        return array

    def close(self) -> None:
        """Close and delete the file; what was not written yet is not needed."""
        with suppress(OSError):  # a full disk, whose error is on its way already
            self._file.close()
        self._path.unlink(missing_ok=True)
