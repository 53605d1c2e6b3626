"""What a `Tiered` store is made from: rows, a file of them, a device."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headrace.store.array import ArrayStore
from headrace.store.disk.file_rows import FileRows

_READERS = 16  # threads that wait for a disk

Rows = Tensor | NDArray[Any] | FileRows
File = str | os.PathLike[str] | NDArray[Any] | FileRows


def source_of(rows: Rows, threads: int | None) -> ArrayStore | FileRows:
    """Rows as a store to fill tiers from; a memory map is read as the file it is."""
    if isinstance(rows, FileRows):
        return rows
    if isinstance(rows, np.memmap) and isinstance(rows.base, mmap.mmap) and rows.flags.c_contiguous and rows.ndim:
        return FileRows.of_map(rows, threads=threads or _READERS)
    return ArrayStore(rows, threads=threads)


def disk_of(disk: File | None, source: ArrayStore | FileRows, held: int, threads: int | None) -> FileRows:
    """The file of the rows that no tier holds."""
    if disk is None:
        if isinstance(source, FileRows):
            return source
        raise ValueError(
            f"device_cache and host hold {held} of {len(source)} rows, and there is no file for the others: "
            "allow more (host='rest'), or give disk=, the path of an .npy file of all rows"
        )
    if isinstance(disk, FileRows):
        file = disk
    elif isinstance(disk, np.ndarray):
        file = FileRows.of_map(disk, dtype=source.dtype, threads=threads or _READERS)
    else:
        file = FileRows(disk, dtype=source.dtype, threads=threads or _READERS)
    if file.shape != source.shape or file.dtype != source.dtype:
        raise ValueError(f"disk holds {tuple(file.shape)} of {file.dtype}, rows are {tuple(source.shape)} of {source.dtype}")
    return file
