"""`SharedRows`: one copy of rows in a machine's memory, however many processes read it."""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import re
import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace._arrays import as_tensor
from headrace._pinned import pin_in_place
from headrace.ranks.ranks import Ranks, together
from headrace.store.array import ArrayStore

_FOLDER = Path("/dev/shm")
_PREFIX = "headrace-rows-"
_MAGIC = b"headrace rows 1\n"
_HEADER = 4096  # a page, so that rows start on one
_CHUNK = 64 << 20


class SharedRows(ArrayStore):
    """Rows in POSIX shared memory: `create` once in one process, `open` by name in others, or pass the object to a child process.

    Where CUDA is there the memory is registered with it (`pin=None`; True insists, False does not), so that GPUs read it directly,
    for as long as this object lives: keep it beside what reads `rows`.

    The creator removes the name when it closes or ends, or earlier by `unlink`; processes that have it open keep the memory. Each
    holds a file lock while it lives, which the system releases even when it is killed: so `sweep`, with which every `create`
    begins, tells a file that nobody uses from one in use, in whatever container, and removes it.

    >>> import torch
    >>> from headrace.store import SharedRows
    >>> with SharedRows.create(torch.arange(4.).view(2, 2)) as rows:
    ...     SharedRows.open(rows.name).gather(torch.tensor([1])).tolist()
    [[2.0, 3.0]]
    """

    def __init__(self, name: str, file: int, *, created: bool, pin: bool | None, threads: int | None) -> None:
        header = os.pread(file, _HEADER, 0)
        facts = json.loads(header[len(_MAGIC) :].rstrip(b"\0"))
        super().__init__(_map(file, facts["shape"], getattr(torch, facts["dtype"])), threads=threads)
        self.name = name
        self.pin = pin
        self.pinned = (torch.cuda.is_available() if pin is None else pin) and self.rows.numel() > 0
        self.created = created
        unpin = _pin(self.rows, self) if self.pinned else None
        self._end = weakref.finalize(self, _release, os.getpid(), file, name if created else None, unpin)

    @classmethod
    def create(
        cls, rows: Tensor | NDArray[Any], *, name: str | None = None, pin: bool | None = None, threads: int | None = None
    ) -> SharedRows:
        """Copy `rows` into shared memory, piece by piece, under `name` (letters, digits, `.`, `_`, `-`; default: a new one)."""
        source = as_tensor(rows, "rows")

        def copy(into: Tensor) -> None:
            step = max(1, _CHUNK // max(1, source[:1].numel() * source.element_size()))
            for start in range(0, len(source), step):
                into[start : start + step] = source[start : start + step]

        return cls.build(source.shape, source.dtype, copy, name=name, pin=pin, threads=threads)

    @classmethod
    def build(
        cls,
        shape: Sequence[int],
        dtype: torch.dtype,
        fill: Callable[[Tensor], None],
        *,
        name: str | None = None,
        pin: bool | None = None,
        threads: int | None = None,
    ) -> SharedRows:
        """Shared rows that `fill(rows)` writes in place, zeros before; others can open them once it has returned."""
        if len(shape) == 0:
            raise ValueError("rows must have rows: it is a single number")
        name = _checked(name if name is not None else f"{os.getpid()}-{secrets.token_hex(4)}")
        cls.sweep()
        file = _reserve(name, _HEADER + _size(shape, dtype))
        try:
            fill(_map(file, shape, dtype))
            # The header comes last: who opens the file early sees that it is not complete.
            facts = {"shape": list(shape), "dtype": str(dtype).removeprefix("torch.")}
            os.pwrite(file, _MAGIC + json.dumps(facts).encode(), 0)
            return cls(name, file, created=True, pin=pin, threads=threads)
        except BaseException:
            (_FOLDER / (_PREFIX + name)).unlink(missing_ok=True)
            os.close(file)
            raise

    @classmethod
    def open(cls, name: str, *, wait: float = 0.0, pin: bool | None = None, threads: int | None = None) -> SharedRows:
        """Open what another process created as `name`, waiting up to `wait` seconds until it is there and complete."""
        path = _FOLDER / (_PREFIX + _checked(name))
        deadline = time.monotonic() + wait
        while True:
            state = "is not there: its creator has not made it yet, or has closed it"
            with suppress(FileNotFoundError):
                file = os.open(path, os.O_RDWR)
                fcntl.flock(file, fcntl.LOCK_SH)
                if os.pread(file, len(_MAGIC), 0) == _MAGIC:
                    try:
                        return cls(name, file, created=False, pin=pin, threads=threads)
                    except BaseException:
                        os.close(file)
                        raise
                os.close(file)
                state = "is still being written by its creator"
            if time.monotonic() >= deadline:
                raise FileNotFoundError(f"shared rows {name!r} {state} (waited {wait:g} s; see wait=)")
            time.sleep(0.01)

    @staticmethod
    def sweep() -> list[str]:
        """Remove shared rows that no living process uses (their creator was killed), and return their names."""
        removed = []
        for path in sorted(_FOLDER.glob(_PREFIX + "*")):
            with suppress(FileNotFoundError, PermissionError):  # another sweep was faster; another user's file
                file = os.open(path, os.O_RDWR)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                    removed.append(path.name.removeprefix(_PREFIX))
                except BlockingIOError:
                    pass
                finally:
                    os.close(file)
        return removed

    @classmethod
    def of_machine(
        cls, ranks: Ranks, rows: Tensor | NDArray[Any], *, pin: bool | None = None, threads: int | None = None
    ) -> SharedRows:
        """Share one copy of `rows` among the ranks of each machine. Collective. The name is gone when it returns: see `unlink`."""
        first = ranks.machines.index(ranks.machines[ranks.rank])
        shared: list[SharedRows] = []

        def build() -> str | None:
            if ranks.rank == first:
                shared.append(cls.create(rows, pin=pin, threads=threads))
            return shared[0].name if shared else None

        def open_() -> None:
            if not shared:
                shared.append(cls.open(str(names[first]), pin=pin, threads=threads))

        names = together(ranks, build, consequence="rows cannot be shared")
        together(ranks, open_, consequence="rows cannot be shared")
        shared[0].unlink()
        ranks.barrier()
        return shared[0]

    def unlink(self) -> None:
        """Remove the name, if this process created it. Processes that have the rows open keep them; nobody else can open them.

        Without a name no file is left behind, however the processes end.
        """
        if self.created:
            (_FOLDER / (_PREFIX + self.name)).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the memory, and of the name if this process made it. GPUs must not read tensors that look into it any more."""
        self._end()
        self.rows = torch.empty((0, *self.shape[1:]), dtype=self.dtype)
        self.shape = self.rows.shape

    def __enter__(self) -> SharedRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._end.alive:
            raise ValueError(f"shared rows {self.name!r} are closed: they cannot be sent to another process")
        return _open, (self.name, self.pin, self.threads)


def _open(name: str, pin: bool | None, threads: int | None) -> SharedRows:
    return SharedRows.open(name, pin=pin, threads=threads)


def _size(shape: Sequence[int], dtype: torch.dtype) -> int:
    return prod(shape) * torch.empty(0, dtype=dtype).element_size()


def _map(file: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The rows of a file as a tensor over its memory, which stays mapped while any view of the tensor lives."""
    size = _size(shape, dtype)
    if size == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(mmap.mmap(file, _HEADER + size), dtype=torch.uint8, offset=_HEADER).view(dtype).view(tuple(shape))


def _checked(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", name):
        raise ValueError(f"name must be 1 to 200 letters, digits, '.', '_' or '-', not {name!r}")
    return name


def _reserve(name: str, size: int) -> int:
    """A new locked file of that size, its memory promised: running out later would kill the process by SIGBUS."""
    path = _FOLDER / (_PREFIX + name)
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise FileExistsError(f"shared rows {name!r} exist and are in use: open() them, or choose another name") from None
        except FileNotFoundError:
            raise OSError(f"there is no {_FOLDER} on this system: shared rows need POSIX shared memory") from None
        fcntl.flock(file, fcntl.LOCK_SH)
        if os.fstat(file).st_nlink:  # a sweep may have come between the two calls
            break
        os.close(file)
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        path.unlink()
        os.close(file)
        if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.ENOMEM):
            raise
        space = os.statvfs(_FOLDER)
        free, whole = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
        raise OSError(
            errno.ENOSPC,
            f"{_FOLDER} is too small: the rows need {size:,} bytes, {free:,} of {whole:,} are free. "
            f"Enlarge it (mount -o remount,size=... {_FOLDER}; docker run --shm-size=...) or share fewer rows",
        ) from None
    return file


def _pin(rows: Tensor, owner: SharedRows) -> Callable[[], Any]:
    if not torch.cuda.is_available():
        raise ValueError("pin=True needs a GPU that torch sees: use pin=False, or leave it out")
    return pin_in_place(rows, owner, remedy="pin=False keeps the rows unregistered")


def _release(process: int, file: int, name: str | None, unpin: Callable[[], Any] | None) -> None:
    if os.getpid() != process:  # a forked child inherits this, but the name is not its own
        return
    if unpin is not None:
        unpin()
    if name is not None:
        (_FOLDER / (_PREFIX + name)).unlink(missing_ok=True)
    os.close(file)
