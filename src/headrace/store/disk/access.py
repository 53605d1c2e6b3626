"""Whole files in large pieces, past the page cache where the file system allows.

What a partition buffer reads it keeps, so a copy in the page cache would only take memory from it. Direct reads and writes need
offsets, lengths and memory aligned to the device's blocks; where a file system refuses them (tmpfs of old kernels, some network and
overlay file systems) the page cache is used and told to forget.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

PIECE = 16 << 20  # bytes per system call at most: enough to keep a disk busy, and a signal is answered soon
_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up", errno.EFBIG: "the file size limit is reached"}
Direct = bool | Literal["auto"]
Passed = Callable[[memoryview], None]
_Call = Callable[[int, list[memoryview], int], int]


class DiskAccess:
    """Opens files for reads and writes at aligned offsets. `direct` says whether the page cache is passed by."""

    def __init__(self, direct: Direct = "auto") -> None:
        if direct not in (True, False, "auto"):
            raise ValueError(f"direct must be True, False or 'auto', not {direct!r}")
        if direct is True and not hasattr(os, "O_DIRECT"):
            raise ValueError("direct=True, but this system has no O_DIRECT: use direct='auto'")
        self.insists = direct is True
        self.direct = direct is not False and hasattr(os, "O_DIRECT")

    @contextmanager
    def open(self, path: Path, *, write: bool = False, passed: Passed | None = None) -> Iterator[OpenFile]:
        """A file to read or write; `passed` is handed its bytes, in the order in which they move."""
        file = OpenFile(self, path, write, passed)
        try:
            yield file
            file.finish()
        finally:
            file.close()


class OpenFile:
    """One file. Reads and writes are complete or raise an OSError that says what is wrong with which file."""

    def __init__(self, access: DiskAccess, path: Path, write: bool, passed: Passed | None = None) -> None:
        self.path, self._access, self._write, self._passed, self._fd = path, access, write, passed, -1
        self._reopen()

    def read(self, offset: int, memory: memoryview) -> None:
        """Fill `memory` from `offset` on."""
        self._move(offset, memory, os.preadv)

    def write(self, offset: int, memory: memoryview) -> None:
        self._move(offset, memory, os.pwritev)

    def finish(self) -> None:
        """Let the page cache forget the file, if it was used; what is dirty must go to the disk first."""
        if not self._direct and hasattr(os, "posix_fadvise"):
            try:
                if self._write:
                    os.fdatasync(self._fd)
                with suppress(OSError):  # only advice
                    os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
            except OSError as error:
                raise self._explained(error) from error

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _move(self, offset: int, memory: memoryview, call: _Call) -> None:
        done = 0
        while done < len(memory):
            try:
                moved = call(self._fd, [memory[done : done + PIECE]], offset + done)
            except OSError as error:
                if error.errno == errno.EINVAL and self._direct and not self._access.insists:
                    self._access.direct = False
                    self._reopen()
                    continue
                raise self._explained(error) from error
            if moved == 0:
                raise OSError(
                    errno.EIO,
                    f"{self.path} ends at byte {offset + done:,}, where {len(memory) - done:,} more are due: it was cut short",
                )
            if self._passed is not None:
                self._passed(memory[done : done + moved])
            done += moved

    def _reopen(self) -> None:
        self.close()
        flags = (os.O_WRONLY | os.O_CREAT) if self._write else os.O_RDONLY
        self._direct = self._access.direct
        try:
            self._fd = os.open(self.path, flags | (os.O_DIRECT if self._direct else 0), 0o644)
        except OSError as error:
            if error.errno == errno.EINVAL and self._direct and not self._access.insists:
                self._access.direct = False
                return self._reopen()
            raise self._explained(error) from error

    def _explained(self, error: OSError) -> OSError:
        doing = "written" if self._write else "read"
        if error.errno in _FULL:
            remedy = "free some space and begin again; the last checkpoint, if there was one, is whole"
            return OSError(error.errno, f"{self.path} cannot be written, {_FULL[error.errno]}: {remedy}")
        if error.errno == errno.EINVAL and self._direct:
            return OSError(error.errno, f"{self.path} cannot be {doing} past the page cache on this file system: use direct='auto'")
        return OSError(error.errno or errno.EIO, f"{self.path} cannot be {doing}: {error.strerror or error}")
