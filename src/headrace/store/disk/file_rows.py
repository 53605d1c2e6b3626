"""Rows that stay in a file: read by threads when they are asked for, or through a memory map."""

from __future__ import annotations

import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids, as_tensor, check_ids, thread_count
from headrace.kernels import gather
from headrace.store.disk.mapped import mapped_place
from headrace.store.pool import BufferPool
from headrace.store.raw_rows import as_bytes
from headrace.store.store import BaseStore, check_out, check_rows


class FileRows(BaseStore):
    """The rows of an `.npy` file as a `Store`. Nothing is held in memory.

    A gather sorts the ids, reads rows that touch in one call, and has `threads` reads under way: a disk answers many questions at
    a time faster than one after another, and a thread that waits costs no processor. `mapped` reads through a memory map instead,
    which is as fast where the file is in the page cache already. `dtype` names the type of rows that numpy has none for: bfloat16
    is stored as the bits of int16. `writable` allows `add_` and `put_`, which change the file.

    >>> import numpy, os, tempfile, torch
    >>> from headrace.store import FileRows
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "x.npy")
    >>> numpy.save(path, numpy.arange(6.0).reshape(3, 2))
    >>> FileRows(path).gather(torch.tensor([2, 0])).tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        dtype: torch.dtype | None = None,
        threads: int = 16,
        mapped: bool = False,
        writable: bool = False,
        pool: BufferPool | None = None,
    ) -> None:
        with open(path, "rb") as file:
            offset, shape, stored = _header(file, path)
        self._open(Path(path), offset, shape, _torch_type(stored, dtype, path), threads, mapped, writable, pool)

    @classmethod
    def of_map(
        cls, array: NDArray[Any], *, dtype: torch.dtype | None = None, threads: int = 16, pool: BufferPool | None = None
    ) -> FileRows:
        """The rows of a whole numpy memory map, read from its file; writable if the map is."""
        if not isinstance(array, np.memmap) or not isinstance(array.base, mmap.mmap) or array.filename is None:
            raise ValueError("this is no whole memory map of a file (a part of one?): give the path of an .npy file")
        if not array.flags.c_contiguous or array.ndim == 0:
            raise ValueError("the memory map's rows do not lie one after the other (Fortran order?): save it in C order")
        store = cls.__new__(cls)
        path, shape, writable = Path(array.filename), tuple(int(n) for n in array.shape), array.mode in ("r+", "w+")
        store._open(path, array.offset, shape, _torch_type(array.dtype, dtype, path), threads, False, writable, pool)
        return store

    @classmethod
    def of_tensor(cls, rows: Tensor, *, threads: int = 16, pool: BufferPool | None = None) -> FileRows | None:
        """The rows of a tensor that is mapped from a file, read from there; None for one that is not, or was changed since.

        >>> import torch
        >>> from headrace.store import FileRows
        >>> FileRows.of_tensor(torch.zeros(3, 2)) is None
        True
        """
        place = mapped_place(rows)
        if place is None or rows.dim() == 0:
            return None
        store = cls.__new__(cls)
        store._open(place.path, place.offset, tuple(rows.shape), rows.dtype, threads, False, False, pool)
        return store

    def _open(
        self,
        path: Path,
        offset: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        threads: int,
        mapped: bool,
        writable: bool,
        pool: BufferPool | None,
    ) -> None:
        self.path, self.shape, self.dtype = path, torch.Size(shape), dtype
        self.threads, self.mapped, self.writable, self.pool = thread_count(threads), mapped, writable, pool
        self._offset = offset
        self._fd = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        self._close = weakref.finalize(self, os.close, self._fd)
        needed, size = offset + len(self) * self.row_bytes, os.fstat(self._fd).st_size
        if size < needed:
            self.close()
            raise ValueError(f"{path} is cut short: {shape} of {dtype} need {needed} bytes, it has {size}")
        self._map = self._mapped() if mapped or writable else None

    @property
    def offset(self) -> int:
        """The byte at which rows begin in the file."""
        return self._offset

    def gather(self, ids: Tensor, *, out: Tensor | None = None, check: bool = True) -> Tensor:
        """Rows by id. They are checked in any case.  # [n] -> [n, d]"""
        ids = as_ids(ids, "ids")
        check_ids(ids, len(self))
        if out is None:
            shape = (len(ids), *self.shape[1:])
            out = torch.empty(shape, dtype=self.dtype) if self.pool is None else self.pool.empty(shape, self.dtype)
        else:
            check_out(out, ids, self, held=self._map)
        self.read(ids, out)
        return out

    def read(self, ids: Tensor, out: Tensor, *, positions: Tensor | None = None) -> None:
        """Row ids[i] into row positions[i] of `out`, or into row i."""
        if self.row_bytes == 0 or len(ids) == 0:
            return
        if self._map is not None and self.mapped:
            if positions is None:
                gather(self._map, ids, out=out, threads=self.threads)
            else:
                as_bytes(out)[positions] = as_bytes(gather(self._map, ids, threads=self.threads))
            return
        try:
            _native.read_rows(
                self._fd,
                self._offset,
                len(self),
                self.row_bytes,
                ids,
                as_bytes(out),
                positions=positions,
                threads=self.threads,
            )
        except ValueError as error:
            raise OSError(f"{self.path}: {error}") from None

    def add_(self, ids: Tensor, delta: Tensor) -> None:
        """Add `delta[i]` to row `ids[i]`, repeated ids included. After `flush` it is on the disk.  # [n], [n, d]"""
        self._writable().index_add_(0, self._positions(ids), delta)

    def put_(self, ids: Tensor, rows: Tensor) -> None:
        """Put `rows[i]` in place of row `ids[i]`, no id twice. After `flush` they are on the disk.  # [n], [n, d]"""
        check_rows(ids, rows, self, "rows")
        as_bytes(self._writable())[self._positions(ids)] = as_bytes(rows.detach().contiguous())

    def flush(self) -> None:
        """Wait until what was written is on the disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        self._close()
        self._fd = -1  # the number may soon be that of another file

    def _positions(self, ids: Tensor) -> Tensor:
        ids = as_ids(ids, "ids")
        check_ids(ids, len(self))
        return ids.long()

    def _writable(self) -> Tensor:
        if self._map is None or not self.writable:
            raise ValueError(f"the rows of {self.path} are read-only: open them with writable=True, or their map with mode 'r+'")
        return self._map

    def _mapped(self) -> Tensor:
        if self.shape.numel() == 0:
            return torch.empty(self.shape, dtype=self.dtype)
        mode, size = "r+" if self.writable else "r", self.shape.numel() * self.dtype.itemsize
        array = np.memmap(self.path, np.uint8, mode=mode, offset=self._offset, shape=(size,))  # type: ignore[call-overload]
        return as_tensor(array, "rows").view(self.dtype).view(self.shape)

    def __repr__(self) -> str:
        return f"FileRows({str(self.path)!r}, {tuple(self.shape)}, {self.dtype})"


def _header(file: Any, path: str | os.PathLike[str]) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    """Where rows begin, their shape and numpy type."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)} is no .npy file that can be read: {error}") from None
    if fortran and len(shape) > 1:
        raise ValueError(f"{os.fspath(path)} is in Fortran order, so its rows are scattered: save numpy.ascontiguousarray of it")
    if len(shape) == 0:
        raise ValueError(f"{os.fspath(path)} holds a single number, no rows")
    return file.tell(), shape, dtype


def _torch_type(stored: np.dtype[Any], wanted: torch.dtype | None, path: str | os.PathLike[str]) -> torch.dtype:
    try:
        dtype = torch.from_numpy(np.empty(0, stored)).dtype
    except (TypeError, ValueError) as error:
        raise ValueError(f"{os.fspath(path)} holds {stored}, which torch has no type for: {error}") from None
    if wanted is None or wanted == dtype:
        return dtype
    if wanted.itemsize != dtype.itemsize or wanted != torch.bfloat16:
        raise ValueError(f"{os.fspath(path)} holds {stored}, not {wanted}")
    return wanted
