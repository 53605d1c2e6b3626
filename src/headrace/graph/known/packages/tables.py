"""Tables without a header, as numbers."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

Array = np.ndarray[Any, Any]


def read_numbers(path: Path, kind: Any = np.int64, *, skip: int = 0) -> Array:  # -> [rows, columns]
    """The numbers of a CSV file that may be packed (.gz) and has no header, or `skip` lines of one."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: the folder is not complete; remove it and fetch the dataset again")
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        for _ in range(skip):
            file.readline()
        width = len(file.readline().split(","))
    types = {f"f{at}": pa.from_numpy_dtype(kind) for at in range(width)}
    try:
        table = pacsv.read_csv(
            path,
            read_options=pacsv.ReadOptions(column_names=list(types), skip_rows=skip),
            convert_options=pacsv.ConvertOptions(column_types=types),
        )
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    out = np.empty((table.num_rows, width), kind)
    for at in range(width):
        column = table.column(at)
        missing = np.nan if out.dtype.kind == "f" else -1
        out[:, at] = (column.fill_null(missing) if column.null_count else column).to_numpy()
    return out
