"""`ArrayFile`: one array as a `.npy` file, written in pieces."""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

_CHUNK = 16 << 20  # bytes written at a time


class ArrayFile:
    """One array written front to back, in pieces, without being held in memory."""

    def __init__(self, path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.path, self.dtype, self.shape = path, dtype, shape
        stored = stored_dtype(dtype)
        header = BytesIO()
        description = {"descr": npy.dtype_to_descr(stored), "fortran_order": False, "shape": shape}
        npy.write_array_header_2_0(header, description)  # type: ignore[no-untyped-call]
        self._left = int(np.prod(shape, dtype=np.int64)) * stored.itemsize
        self._crc = zlib.crc32(header.getbuffer())
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 - closed by close()
        self._file.write(header.getbuffer())

    def append(self, piece: Tensor | np.ndarray[Any, Any]) -> None:
        data = _as_stored(piece).reshape(-1).view(np.uint8).data
        if len(data) > self._left:
            raise ValueError(f"{self.path.name} was declared with shape {self.shape}, and more was written")
        for start in range(0, len(data), _CHUNK):
            part = data[start : start + _CHUNK]
            self._crc = zlib.crc32(part, self._crc)
            self._file.write(part)
        self._left -= len(data)

    def close(self, *, sync: bool = True) -> dict[str, object]:
        """Flush to the disk (unless nobody needs it there after this process), and describe the file for meta.json."""
        if self._left:
            self._file.close()
            raise ValueError(f"{self.path.name} was declared with shape {self.shape}; {self._left} bytes are missing")
        self._file.flush()
        if sync:
            os.fsync(self._file.fileno())
        self._file.close()
        return {
            "file": self.path.name,
            "dtype": str(self.dtype).removeprefix("torch."),
            "shape": list(self.shape),
            "crc32": self._crc,
        }

    def abandon(self) -> None:
        with suppress(OSError):  # what is left to write finds no room either
            self._file.close()


def stored_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The type that numpy has for values of `dtype`, or for their bits."""
    if dtype == torch.bfloat16:  # numpy has no such type: the bits are kept
        return np.dtype(np.int16)
    return torch.empty(0, dtype=dtype).numpy().dtype


def _as_stored(piece: Tensor | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if isinstance(piece, Tensor):
        piece = piece.detach().cpu().contiguous()
        piece = (piece.view(torch.int16) if piece.dtype == torch.bfloat16 else piece).numpy()
    return np.ascontiguousarray(piece)
