"""`fingerprint`: whether two arrays, or two datasets, hold the same numbers, from a short text of each."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from headrace.graph.dataset import Dataset

_WHOLE = 64 << 20  # bytes of an array that is read as a whole
_PIECE = 4 << 20  # bytes read at a time
_SAMPLES, _SAMPLE = 1024, 64 << 10  # pieces of a larger array, and bytes of each


def fingerprint(array: Tensor) -> str:
    """The shape and a checksum of an array, the same wherever it lies and however it was stored.

    Whole numbers of any width count as equal. Of more than 64 MiB, 1024 pieces of 64 KiB are looked at, from the first rows to the
    last at even distances: enough to tell other data, not every single change.

    >>> import torch
    >>> fingerprint(torch.tensor([1, 2])) == fingerprint(torch.tensor([1, 2], dtype=torch.int32))
    True
    """
    rows = array.detach().reshape(1) if array.dim() == 0 else array.detach()
    whole = not rows.dtype.is_floating_point and not rows.dtype.is_complex
    checksum = 0
    for begin, end in _ranges(rows):
        piece = rows[begin:end].cpu()
        piece = (piece.to(torch.int64) if whole else piece).contiguous().view(-1).view(torch.uint8)
        checksum = zlib.crc32(piece.numpy().data, checksum)
    kind = "int" if whole else str(rows.dtype).removeprefix("torch.")
    return f"{kind}[{','.join(map(str, array.shape))}]:{checksum:08x}"


def fingerprints(data: Dataset) -> dict[str, str]:
    """What tells the data of a node classification from others: the fingerprint of each of its arrays, under a name for people."""
    graph = data.graph
    arrays = {"degrees": graph.indptr, "edges": graph.indices, "edge weights": graph.weight, "features": data.x, "labels": data.y}
    arrays |= {f"{name} nodes": data.splits.get(name) for name in ("train", "val", "test")}
    return {name: fingerprint(array) for name, array in arrays.items() if array is not None}


def _ranges(rows: Tensor) -> Iterator[tuple[int, int]]:
    count, size = len(rows), rows.nbytes
    if not size:
        return
    if size <= _WHOLE:
        step = max(_PIECE * count // size, 1)
        yield from ((begin, min(begin + step, count)) for begin in range(0, count, step))
        return
    step = max(_SAMPLE * count // size, 1)
    for number in range(_SAMPLES):
        begin = number * (count - step) // (_SAMPLES - 1)
        yield begin, begin + step
