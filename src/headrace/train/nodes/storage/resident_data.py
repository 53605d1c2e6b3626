"""Resident partitions in their slots: `ResidentRows`, their features in one table, and `resident_graph`, the edges between them."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from headrace.graph import Graph
from headrace.store import FileRows


@dataclass
class LoadUse:
    """What loading partitions took. `stall_seconds` is how long training waited for it."""

    bytes_read: int = 0
    loads: int = 0
    read_seconds: float = 0.0
    stall_seconds: float = 0.0


class ResidentRows:
    """Slots of `size` rows each, in one table. `load` reads partitions into their slots; `prefetch` begins to and returns."""

    def __init__(self, features: FileRows, *, size: int, slots: int) -> None:
        self.features, self.size = features, size
        self.table = torch.empty(slots * size, features.shape[1], dtype=features.dtype)  # [slots * size, d]
        self.held: dict[int, int] = {}  # the partition in each slot that is filled
        self._use = LoadUse()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="headrace partitions")
        self._coming: Future[None] | None = None

    def load(self, places: dict[int, int]) -> None:
        """Read every partition that is not yet in its slot."""
        self._settle()
        begin = perf_counter()
        self._read(places)
        self._use.stall_seconds += perf_counter() - begin

    def prefetch(self, places: dict[int, int], *, but: dict[int, int]) -> None:
        """Begin to read the partitions whose slots are not among those of `but`, which are in use."""
        used = set(but.values())
        free = {partition: slot for partition, slot in places.items() if slot not in used}
        self._coming = self._reader.submit(self._read, free)

    def close(self) -> None:
        """Wait for the read under way, and start no other."""
        self._reader.shutdown(cancel_futures=True)
        self._coming = None

    def taken(self) -> LoadUse:
        """What loading took since the last call, after waiting for the reads under way."""
        self._settle()
        use, self._use = self._use, LoadUse()
        return use

    def _settle(self) -> None:
        begin = perf_counter()
        if self._coming is not None:
            coming, self._coming = self._coming, None
            coming.result()
        self._use.stall_seconds += perf_counter() - begin

    def _read(self, places: dict[int, int]) -> None:
        begin = perf_counter()
        for partition, slot in sorted(places.items()):
            if self.held.get(slot) == partition:
                continue
            self.held.pop(slot, None)
            first = partition * self.size
            ids = torch.arange(first, min(first + self.size, len(self.features)))
            self.features.read(ids, self._slot(slot, len(ids)))
            self.held[slot] = partition
            self._use.bytes_read += len(ids) * self.features.row_bytes
            self._use.loads += 1
        self._use.read_seconds += perf_counter() - begin

    def _slot(self, slot: int, rows: int) -> Tensor:
        return self.table[slot * self.size : slot * self.size + rows]


def resident_graph(graph: Graph, places: dict[int, int], *, size: int, slots: int) -> Graph:
    """The edges of `graph` with both ends in a partition of `places`; node v is row `slot * size + v % size` of its slot.

    Partitions are runs of `size` nodes, and `places` names the slot of each that is resident. Rows keep the order of their edges,
    so with every partition in its own place it is the same graph.

    >>> import headrace as hr
    >>> graph = hr.Graph.from_edges([0, 2, 3], [1, 0, 2])
    >>> resident_graph(graph, {1: 0}, size=2, slots=1).edge_index().tolist()
    [[1], [0]]
    """
    moves = torch.zeros(-(-graph.num_nodes // size) + 1, dtype=torch.int64)  # from an id to its row
    resident = torch.zeros(len(moves), dtype=torch.bool)
    for partition, slot in places.items():
        moves[partition], resident[partition] = (slot - partition) * size, True
    degrees = torch.zeros(slots * size, dtype=torch.int64)
    columns: dict[int, Tensor] = {}
    kind = graph.indices.dtype if slots * size <= torch.iinfo(graph.indices.dtype).max else torch.int64
    for partition, slot in places.items():
        begin, end = partition * size, min((partition + 1) * size, graph.num_nodes)
        pointers = graph.indptr[begin : end + 1]
        sources = graph.indices[int(pointers[0]) : int(pointers[-1])].long()
        owner = sources.div(size, rounding_mode="floor")
        kept = resident[owner]
        columns[slot] = (sources[kept] + moves[owner[kept]]).to(kind)
        before = torch.nn.functional.pad(kept.cumsum(0), (1, 0))
        degrees[slot * size : slot * size + end - begin] = before[pointers - pointers[0]].diff()
    indices = torch.cat([columns[slot] for slot in sorted(columns)]) if columns else torch.empty(0, dtype=kind)
    return Graph(torch.nn.functional.pad(degrees.cumsum(0), (1, 0)), indices)
