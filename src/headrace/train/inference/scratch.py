"""`ScratchTable`: rows that this process alone needs, in a file that goes with it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from headrace._sizes import format_size
from headrace.graph.io import ArrayFile
from headrace.store import FileRows


class ScratchTable:
    """A table written front to back and read as a `FileRows`.

    The file has a name only while it is written: a process that is killed later leaves nothing behind. It lies in `folder`, or
    where the nearest folder above it is that exists; not where temporary files usually are, which may be memory.
    """

    def __init__(self, rows: int, width: int, dtype: torch.dtype, *, folder: Path | None) -> None:
        self.nbytes = rows * width * dtype.itemsize
        handle, name = tempfile.mkstemp(prefix=".headrace-", suffix=".npy", dir=_existing(folder))
        os.close(handle)
        self._path = Path(name)
        self._file = ArrayFile(self._path, dtype, (rows, width))

    def append(self, piece: Tensor) -> None:
        """Write the next rows.  # [k, width]"""
        try:
            self._file.append(piece)
        except OSError as error:
            self.abandon()
            room = format_size(self.nbytes)
            raise OSError(
                error.errno, f"rows of {room} do not fit in {self._path.parent} ({error.strerror}): give out on a larger disk"
            ) from error

    def rows(self, *, threads: int = 16) -> FileRows:
        """The table, once all of it is written."""
        try:
            self._file.close(sync=False)
            return FileRows(self._path, dtype=self._file.dtype, threads=threads)
        finally:
            self._path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Leave nothing of it."""
        self._file.abandon()
        self._path.unlink(missing_ok=True)


def _existing(folder: Path | None) -> Path | None:
    if folder is None:
        return None
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if place.is_dir())
