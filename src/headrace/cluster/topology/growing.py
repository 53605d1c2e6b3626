"""`Growing`: the samples of one call, as answers come in hop by hop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace import _native
from headrace.cluster.topology.asked import Asked
from headrace.cluster.topology.message import packed
from headrace.cluster.topology.rounds import Message
from headrace.sample import Sample
from headrace.store import BufferPool, Owners


@dataclass(frozen=True)
class Request:
    """A batch to sample: its seeds, which are in range, and the Philox key of its draws."""

    seeds: Tensor  # int64
    key: int


class Tables:
    """Native tables that number the nodes of a sample, kept from call to call: as many as there were batches in one."""

    def __init__(self, num_nodes: int, *, wide: bool, hashed: bool) -> None:
        self._how = {"num_nodes": num_nodes, "wide": wide, "hash": hashed}
        self._idle: list[_native.Hops] = []

    def take(self) -> _native.Hops:
        return self._idle.pop() if self._idle else _native.Hops(**self._how)  # type: ignore[arg-type]

    def give_back(self, tables: Sequence[_native.Hops]) -> None:
        self._idle += tables

    @property
    def nbytes(self) -> int:
        return sum(table.workspace_bytes for table in self._idle)


class Growing:
    """Numbers what the owners of nodes drew, and asks them for the next hop."""

    def __init__(self, owners: Owners, tables: Tables, pool: BufferPool, *, row_dtype: torch.dtype, threads: int) -> None:
        self._owners, self._tables, self._pool = owners, tables, pool
        self._row_dtype, self._threads = row_dtype, threads
        self._requests: Sequence[Request] = ()
        self._hops: list[_native.Hops] = []
        self._asked: list[Asked] = []

    def begin(self, requests: Sequence[Request]) -> Message:
        """Begin the samples, and ask for the neighbors of their seeds."""
        self._requests = requests
        for request in requests:
            self._hops.append(self._tables.take())
            self._hops[-1].begin(request.seeds, self._pool.native)
        return self._ask()

    def add(self, answers: Sequence[Tensor]) -> Message:
        """Add a hop from the answers of all ranks, and ask for the next."""
        self._number(answers)
        return self._ask()

    def finish(self, answers: Sequence[Tensor]) -> list[Sample]:
        """Add the last hop; return the samples."""
        self._number(answers)
        return [_sample_of(hops) for hops in self._hops]

    def release(self) -> None:
        """Give the tables back."""
        self._tables.give_back(self._hops)
        self._hops = []

    def _ask(self) -> Message:
        """Of each rank, the rows it owns among the frontiers of all samples."""
        frontiers = [torch.from_numpy(hops.frontier()) for hops in self._hops]
        self._asked = [Asked.of(nodes, self._owners, self._row_dtype) for nodes in frontiers]
        by_owner = [asked.by_owner() for asked in self._asked]
        keys = [request.key for request in self._requests]
        dtype = np.dtype(np.int32 if self._row_dtype == torch.int32 else np.int64)
        words = [packed(zip(keys, (rows[rank] for rows in by_owner), strict=True), dtype) for rank in range(self._owners.ranks)]
        return torch.from_numpy(np.concatenate(words)), [len(each) for each in words]

    def _number(self, answers: Sequence[Tensor]) -> None:
        drawn = zip(*(self._by_sample(rank, answer.numpy()) for rank, answer in enumerate(answers)), strict=True)
        for hops, asked, rows in zip(self._hops, self._asked, drawn, strict=True):
            hops.add(asked.owner, list(rows), threads=self._threads)

    def _by_sample(self, rank: int, answer: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """What one rank drew for each of the samples: for each of its rows a number of neighbors, then these."""
        counts = [asked.sizes[rank] for asked in self._asked]
        ends, at = [], 0
        for count in counts:
            at += count + int(answer[at : at + count].sum(dtype=np.int64))
            ends.append(at)
        return (answer[begin:end] for begin, end in zip([0, *ends], ends, strict=False))


def _sample_of(hops: _native.Hops) -> Sample:
    nodes, indptr, indices, _, _, node_counts, edge_counts = hops.finish()
    rows = torch.from_numpy(indptr), torch.from_numpy(indices)
    return Sample(torch.from_numpy(nodes), *rows, tuple(node_counts), tuple(edge_counts))
