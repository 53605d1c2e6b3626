"""Files that are replaced whole: written beside the old one, flushed to the disk, renamed. Room and locks for those who write."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from weakref import WeakSet

from headrace._sizes import format_size


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


def require_disk(folder: Path, needed: int, what: str, *, free: int | None = None) -> None:
    """ValueError where `what` writes more bytes to `folder`, which need not exist yet, than its disk has free."""
    folder_above = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.is_dir())
    free = shutil.disk_usage(folder_above).free if free is None else free
    if needed > free:
        raise ValueError(
            f"{what} needs about {format_size(needed)} of disk in {folder}, and {format_size(free)} are free: "
            "make room, or write to another disk"
        )


class Lock:
    """The right to write something, for one process at a time. The system frees it when the process ends, however it ends.

    file: is locked; made for it, with who holds it since when, and removed by `close`. A folder is locked as it is.
    busy, remedy: of the BlockingIOError if another process holds it for `seconds` more: what is in use, and what to do.

    A file system that knows no locks gives none: there it is for the user not to write twice at a time.
    """

    def __init__(self, file: Path, *, busy: str, remedy: str, seconds: float = 0.0) -> None:
        self.file, self._handle = file, -1
        deadline = time.monotonic() + seconds
        while (handle := self._try()) is None:
            if time.monotonic() >= deadline:
                raise BlockingIOError(f"{busy}{self._holder()}: {remedy}")
            time.sleep(0.01)
        self._handle = handle
        _held.add(self)
        if not file.is_dir():
            since = datetime.now().isoformat(sep=" ", timespec="seconds")
            with suppress(OSError):  # a full disk: who comes next is told less
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"process {os.getpid()} on {platform.node()} since {since}\n".encode(), 0)

    def _try(self) -> int | None:
        """A handle on the locked file, None if somebody else holds it, or did until now."""
        handle = os.open(self.file, os.O_RDONLY if self.file.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_nlink:  # else the last holder has removed it
                return handle
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return handle
            os.close(handle)
            raise
        os.close(handle)
        return None

    def _holder(self) -> str:
        if self.file.is_dir():
            return ""
        try:
            text = self.file.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            text = ""
        return f" by {text or 'another process'}"

    def close(self) -> None:
        """Let others have it."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            if not self.file.is_dir() and os.fstat(handle).st_nlink:  # else somebody removed it, and there may be another one
                with suppress(OSError):
                    os.unlink(self.file)
            os.close(handle)

    def leave(self) -> None:
        """In a forked child: the lock stays with the process that took it, and ends with that one."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EBADF, errno.ENOSYS)
_held: WeakSet[Lock] = WeakSet()


def _in_child() -> None:
    for lock in list(_held):
        lock.leave()


os.register_at_fork(after_in_child=_in_child)
