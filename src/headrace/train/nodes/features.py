"""Features that stay on disk: the file they are in, or one that is written for the run, scaled and in the order it needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from headrace.graph import Dataset
from headrace.store import FileRows
from headrace.train.inference.tables import ScratchTable
from headrace.train.nodes.checks import check_pieces, check_rows

_PIECE = 4 << 20  # bytes of rows looked at or written at a time


def row_scaled(x: Tensor) -> Tensor:
    """Rows that sum to one.  # [n, d] -> [n, d]"""
    return x / x.sum(dim=1, keepdim=True).clamp_min(1e-12)


def features_on_disk(data: Dataset, *, scaled: bool, order: Tensor | None = None, folder: Path | None) -> FileRows:
    """The features of `data` as rows of a file, after a check that they are finite.

    Those that are mapped from a file (`headrace.open` does so) are read from there. A file near `folder` is written for those that
    are in memory, that are to be `scaled`, or that are wanted in another `order`: row i is then that of node `order[i]`.
    """
    assert data.x is not None
    x = data.x
    source = FileRows.of_tensor(x)
    rows = max(1, _PIECE // max(x[:1].nbytes, 1))
    if source is not None and not scaled and order is None:
        check_pieces(lambda begin, end, step: source.gather(torch.arange(begin, end, step)), x, rows=rows)
        return source
    read: Callable[[Tensor], Tensor] = source.gather if source is not None else lambda ids: x.index_select(0, ids)
    table = ScratchTable(len(x), x.shape[1], x.dtype, folder=folder)
    try:
        for begin in range(0, len(x), rows):
            ids = torch.arange(begin, min(begin + rows, len(x))) if order is None else order[begin : begin + rows]
            piece = read(ids)
            check_rows(piece, begin)
            table.append(row_scaled(piece) if scaled else piece)
    except BaseException:
        table.abandon()
        raise
    return table.rows()
