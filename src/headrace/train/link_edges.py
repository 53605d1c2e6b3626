"""`BucketedEdges`: training edges in the order of their buckets, in a file that is mapped and so takes no memory of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

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
    def write(cls, path: Path, triples: Tensor, *, num_nodes: int, partitions: int) -> BucketedEdges:
        """Sort `triples`, which may be a mapping too, into a file at `path`: two passes, in memory of a few megabytes."""
        size = rows_per_partition(num_nodes, partitions)
        counts = torch.zeros(partitions**2, dtype=torch.int64)
        for piece in triples.split(_PIECE):
            counts += torch.bincount(buckets_of(piece, size, partitions), minlength=partitions**2)
        path.unlink(missing_ok=True)  # what maps an older one keeps it
        with path.open("wb") as file:
            if hasattr(os, "posix_fallocate"):  # a full disk is an error here; under a mapping it would end the process
                os.posix_fallocate(file.fileno(), 0, triples.nbytes)
        mapped = torch.from_file(str(path), shared=True, size=triples.numel(), dtype=triples.dtype).view(-1, 3)
        following = counts.cumsum(0) - counts  # where the next edge of each bucket goes
        for piece in triples.split(_PIECE):
            bucket, order = buckets_of(piece, size, partitions).sort(stable=True)
            here = torch.bincount(bucket, minlength=partitions**2)
            within = torch.arange(len(bucket)) - (here.cumsum(0) - here)[bucket]
            mapped[following[bucket] + within] = piece[order]
            following += here
        return cls(mapped, tuple(counts.cumsum(0).tolist()), path)

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
