"""What one rank asks of another in a hop, as words: the rows of each batch, behind the key of its draws and their number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADER_BYTES = 16  # of a batch: its Philox key, and how many rows follow

Group = tuple[int, NDArray[Any]]  # the key of a batch, and rows


def packed(groups: Iterable[Group], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Words for the groups that have rows.

    >>> words = packed([(7, np.array([4, 5], np.int32)), (8, np.array([], np.int32))], np.dtype(np.int32))
    >>> words.tolist(), unpacked(words)
    ([7, 0, 2, 0, 4, 5], [(7, array([4, 5], dtype=int32))])
    """
    pieces: list[NDArray[Any]] = [np.empty(0, dtype)]
    for key, rows in groups:
        if len(rows):
            pieces += [np.array([key, len(rows)], np.uint64).view(dtype), rows]
    return np.concatenate(pieces)


def unpacked(words: NDArray[Any]) -> list[Group]:
    """The groups of a message."""
    groups, at, header = [], 0, HEADER_BYTES // words.itemsize
    while at < len(words):
        key, count = words[at : at + header].view(np.uint64).tolist()
        at += header
        groups.append((key, words[at : at + count]))
        at += count
    return groups
