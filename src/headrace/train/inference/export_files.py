"""Files that rows are exported to, one piece after the other: Parquet, `.npy`, and texts of names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor


class Rows(Protocol):
    """A file of rows that is being written."""

    def append(self, numbers: Tensor, rows: Tensor, *, names: Any = None, reciprocal: bool = False) -> None:
        """Write some more.  # [n], [n, d]"""
        ...

    def close(self) -> None:
        """Flush to the disk."""
        ...

    def abandon(self) -> None:
        """Let go of a file that will not be completed; nothing after `close`."""
        ...


class ParquetRows:
    """Numbers, names and fixed-size lists of floats, uncompressed: trained floats have nothing to compress."""

    def __init__(self, path: Path, width: int, columns: tuple[str, str], names: Any) -> None:
        number, rows = columns
        fields = [(number, pa.int64())]
        fields += [("reciprocal", pa.bool_())] if number == "relation" else []
        fields += [("id", names)] if names is not None else []
        self._width, self._path = width, path
        self._schema = pa.schema([*fields, (rows, pa.list_(pa.float32(), width))])
        self._writer = pq.ParquetWriter(path, self._schema, compression="none", use_dictionary=False, write_statistics=[number])

    def append(self, numbers: Tensor, rows: Tensor, *, names: Any = None, reciprocal: bool = False) -> None:
        """Write a row group.  # [n], [n, d]"""
        lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.contiguous().view(-1).numpy()), self._width)
        columns = [pa.array(numbers.numpy())]
        columns += [pa.array(np.full(len(numbers), reciprocal))] if "reciprocal" in self._schema.names else []
        columns += [names] if names is not None else []
        self._writer.write_table(pa.table([*columns, lists], schema=self._schema))

    def close(self) -> None:
        self._writer.close()
        with open(self._path, "rb") as file:
            os.fsync(file.fileno())

    def abandon(self) -> None:
        self._writer.close()


class _Written:
    """A file that is written front to back."""

    _file: IO[Any]

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        self._file.close()


class NpyRows(_Written):
    """A float32 array whose size is known before its rows are."""

    def __init__(self, path: Path, count: int, width: int) -> None:
        self._file = open(path, "wb")  # noqa: SIM115
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, numbers: Tensor, rows: Tensor, *, names: Any = None, reciprocal: bool = False) -> None:
        """Write rows behind those before.  # [n], [n, d]"""
        self._file.write(rows.contiguous().numpy().astype("<f4", copy=False).data)


class TextLines(_Written):
    """A name per line."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115

    def append(self, names: Any) -> None:
        """Write some more names."""
        for name in names.to_pylist():
            text = str(name)
            if "\n" in text or "\r" in text:
                raise ValueError(f"the name {text!r} has several lines, which a text of names cannot hold: use format parquet")
            self._file.write(text + "\n")
