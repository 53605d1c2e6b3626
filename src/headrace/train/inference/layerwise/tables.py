"""Tables that a layer's rows are written to, front to back, and then read from: in memory, mapped from a file, or in a file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headrace._files import put_in_place, sync
from headrace._sizes import format_size
from headrace.graph.saved.array_file import ArrayFile
from headrace.store import ArrayStore, FileRows


class MemoryTable:
    """A table in memory, of rows like those of `first`, the first piece; on its device or on `device`."""

    def __init__(self, rows: int, first: Tensor, *, device: torch.device | None = None) -> None:
        self._count, self._device, self._done = rows, device or first.device, 0
        self._rows: Tensor | None = None

    def append(self, piece: Tensor) -> None:
        """Write the next rows.  # [k, width]"""
        if len(piece) == self._count:  # it is the table: no second one is needed
            self._rows = piece.to(self._device)
            return
        if self._rows is None:
            self._rows = self._empty(piece)
        self._rows[self._done : self._done + len(piece)] = piece
        self._done += len(piece)

    def rows(self) -> ArrayStore:
        """The table, once all of it is written."""
        assert self._rows is not None
        return ArrayStore(self._rows)

    def abandon(self) -> None:
        """Free the memory."""
        self._rows = None

    def _empty(self, like: Tensor) -> Tensor:
        return like.new_empty(self._count, like.shape[1], device=self._device)


class MappedTable(MemoryTable):
    """The same in a temporary file that has no name: it is gone when the last view of it is."""

    def _empty(self, like: Tensor) -> Tensor:
        size = self._count * like.shape[1] * like.element_size()
        with tempfile.TemporaryFile(prefix="headrace-") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)  # a page that finds no room later would end the process
            except OSError as error:
                folder, room = tempfile.gettempdir(), f"{size / 2**30:.2f} GiB"
                raise OSError(error.errno, f"a table of {room} does not fit in {folder} ({error.strerror}): set TMPDIR") from error
            mapped = np.memmap(file, dtype=np.uint8, mode="r+", shape=(size,))
        return torch.from_numpy(mapped).view(like.dtype).view(self._count, like.shape[1])


class FileTable:
    """A table that becomes the file `place`, all at once, when `rows` is called; `crc32` is its checksum from then on."""

    crc32: int

    def __init__(self, rows: int, width: int, dtype: torch.dtype, *, place: Path) -> None:
        self._place = place
        self._write_to(place.with_name(f"{place.name}.new"), rows, width, dtype)

    def _write_to(self, path: Path, rows: int, width: int, dtype: torch.dtype) -> None:
        self._path, self._file = path, ArrayFile(path, dtype, (rows, width))
        self.nbytes = rows * width * dtype.itemsize

    def append(self, piece: Tensor) -> None:
        """Write the next rows.  # [k, width]"""
        try:
            self._file.append(piece.cpu())
        except OSError as error:
            self.abandon()
            raise OSError(
                error.errno,
                f"rows of {format_size(self.nbytes)} do not fit in {self._path.parent} ({error.strerror}): "
                "give out on a larger disk",
            ) from error

    def rows(self, *, threads: int = 16) -> FileRows:
        """The table, once all of it is written."""
        self.crc32 = int(self._file.close(sync=False)["crc32"])  # type: ignore[call-overload]
        put_in_place(self._path, self._place)
        sync(self._place.parent)
        return FileRows(self._place, dtype=self._file.dtype, threads=threads)

    def abandon(self) -> None:
        """Remove what was written."""
        self._file.abandon()
        self._path.unlink(missing_ok=True)


class ScratchTable(FileTable):
    """A table that this process alone needs, in a file that goes with it.

    The file has a name only while it is written: a process that is killed later leaves nothing behind. It lies in `folder` or the
    nearest folder above it that exists; not where temporary files usually are, which may be memory.
    """

    def __init__(self, rows: int, width: int, dtype: torch.dtype, *, folder: Path | None) -> None:
        handle, name = tempfile.mkstemp(prefix=".headrace-", suffix=".npy", dir=_existing(folder))
        os.close(handle)
        self._write_to(Path(name), rows, width, dtype)

    def rows(self, *, threads: int = 16) -> FileRows:
        """The table, once all of it is written."""
        try:
            self._file.close(sync=False)
            return FileRows(self._path, dtype=self._file.dtype, threads=threads)
        finally:
            self._path.unlink(missing_ok=True)


def filled(table: FileTable, pieces: Iterable[Tensor], *, threads: int = 16) -> FileRows:
    """The table of these rows; nothing is left of it if they cannot be had or written."""
    try:
        for piece in pieces:
            table.append(piece)
        return table.rows(threads=threads)
    except BaseException:
        table.abandon()
        raise


def _existing(folder: Path | None) -> Path | None:
    if folder is None:
        return None
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if place.is_dir())
