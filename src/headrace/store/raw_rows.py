"""Rows of any type as bytes or words, and runs of rows of a bounded size: what moving rows is about."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

import torch
from torch import Tensor

_PIECE = 64 << 20  # bytes of rows moved at a time


def as_bytes(rows: Tensor) -> Tensor:  # [n, ...] -> [n, bytes]
    """The same memory: torch moves rows by index for some types only, but bytes it always does."""
    return rows.view(len(rows), rows.shape[1:].numel()).view(torch.uint8)


def word_of(*sizes: int) -> torch.dtype:
    """The widest whole number that rows of these sizes in bytes are made of."""
    return {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[gcd(8, *sizes)]


def words_of(rows: Tensor, row_bytes: int, stride: int) -> Tensor:  # [n, ...] -> [n, words of a row]
    """Rows as whole numbers of the widest kind that fits rows of `row_bytes` and of `stride` bytes; padding is left out."""
    word = word_of(row_bytes, stride)
    return as_bytes(rows).view(word)[:, : row_bytes // word.itemsize]


def piece_rows(row_bytes: int) -> int:
    """How many rows are worth making or moving at a time: 64 MiB of them."""
    return max(1, _PIECE // max(row_bytes, 1))


def pieces(count: int, row_bytes: int, *, most: int | None = None) -> Iterator[tuple[int, int]]:
    """Begins and ends of runs of rows that are moved at a time, of at most `most` rows."""
    if most is not None and most < 1:
        raise ValueError(f"rows must be at least 1, not {most}")
    step = piece_rows(row_bytes) if most is None else most
    return ((begin, min(begin + step, count)) for begin in range(0, count, step))
