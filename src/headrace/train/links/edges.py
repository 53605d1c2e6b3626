"""`BucketedEdges`: training edges in the order of their buckets, in a file that is mapped and so takes no memory of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace._arrays import thread_count

Array = NDArray[Any]

_PIECE = 1 << 17  # edges sorted at a time: a few megabytes


@dataclass(frozen=True)
class BucketedEdges:
    """Edges sorted by bucket (partition of the head, partition of the tail), each bucket in the order of the input.

    `ends[i * p + j]` is where bucket (i, j) ends. What a step reads of the file comes through the page cache, which the system
    takes back when memory is short.
    """

    triples: Tensor  # [e, 3]
    ends: tuple[int, ...]
    path: Path

    @classmethod
    def write(cls, path: Path, triples: Tensor, *, num_nodes: int, partitions: int, threads: int | None = None) -> BucketedEdges:
        """Sort `triples`, which may be a mapping too, into a file at `path`: two passes, in memory of a few megabytes a thread."""
        size, workers = rows_per_partition(num_nodes, partitions), thread_count(threads)
        counts = np.zeros(partitions**2, np.int64)
        with ExitStack() as stack:
            each: Callable[..., Iterator[Any]] = map  # a thread's stack and heap would be memory that one worker does not need
            if workers > 1:
                each = stack.enter_context(ThreadPoolExecutor(workers)).map
            for wave in _waves(triples, workers):
                for in_piece in each(lambda piece: _counts(_buckets(piece, size, partitions), partitions), wave):
                    counts += in_piece
            path.unlink(missing_ok=True)  # what maps an older one keeps it
            with path.open("wb") as file:
                if hasattr(os, "posix_fallocate"):  # a full disk is an error here; under a mapping it would end the process
                    os.posix_fallocate(file.fileno(), 0, triples.nbytes)
            mapped = torch.from_file(str(path), shared=True, size=triples.numel(), dtype=triples.dtype).view(-1, 3)
            following = counts.cumsum() - counts  # where the next edge of each bucket goes
            for wave in _waves(triples, workers):
                pieces = list(each(lambda piece: _sorted(piece, size, partitions), wave))
                starts = []
                for _, in_piece in pieces:
                    starts.append(following.copy())
                    following += in_piece
                for _ in each(lambda piece, start: _place(mapped.numpy(), piece[0], piece[1], start), pieces, starts):
                    pass  # errors come with the results
                del pieces
        return cls(mapped, tuple(counts.cumsum().tolist()), path)

    def read_ahead(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Ask the system for some edges, each range in one go: a shuffled step would ask for one page after the other."""
        if not hasattr(os, "posix_fadvise"):
            return
        size = 3 * self.triples.element_size()
        file = os.open(self.path, os.O_RDONLY)
        try:
            for begin, end in ranges:
                if end > begin:  # a length of 0 would mean all that follows
                    os.posix_fadvise(file, begin * size, (end - begin) * size, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(file)


def rows_per_partition(num_nodes: int, partitions: int) -> int:
    """Nodes of a partition; the last ones may have fewer."""
    return max(-(-num_nodes // partitions), 1)


def buckets_of(triples: Tensor, size: int, partitions: int) -> Tensor:  # [e, 3] -> [e]
    """The number of each edge's bucket, by row."""
    return triples[:, 0].long() // size * partitions + triples[:, 2].long() // size


def _waves(triples: Tensor, threads: int) -> Iterator[tuple[Tensor, ...]]:
    """Pieces for all threads at a time, so that memory does not grow with the edges."""
    for wave in triples.split(threads * _PIECE) if len(triples) else ():
        yield wave.split(_PIECE)


def _buckets(triples: Tensor, size: int, partitions: int) -> Array:  # [e, 3] -> [e]
    """`buckets_of` by numpy, which sorts 16 bits by digit, and whose threads start none of their own."""
    partition_of = triples[:, ::2].numpy() // size
    bucket: Array = partition_of[:, 0].astype(np.int64) * partitions + partition_of[:, 1]
    return bucket.astype(np.uint16) if partitions <= 256 else bucket


def _counts(bucket: Array, partitions: int) -> Array:  # [e] -> [partitions ** 2]
    return np.bincount(bucket, minlength=partitions**2)


def _sorted(piece: Tensor, size: int, partitions: int) -> tuple[Array, Array]:  # [e, 3] -> [e, 3], [partitions ** 2]
    """A piece in the order of its buckets, and how many edges each has."""
    bucket = _buckets(piece, size, partitions)
    return piece.numpy()[bucket.argsort(kind="stable")], _counts(bucket, partitions)


def _place(out: Array, piece: Array, counts: Array, start: Array) -> None:
    """Copy the runs of a sorted piece to where their buckets go on."""
    ends = counts.cumsum()
    for bucket in counts.nonzero()[0]:
        end, amount, at = ends[bucket], counts[bucket], start[bucket]
        out[at : at + amount] = piece[end - amount : end]
