"""`encode_all`: the encoded rows of all nodes, over the whole training graph, layer by layer.

A layer is computed partition by partition, in chunks of a few megabytes of rows. Rows in memory become a table in memory; rows on
disk are copied to a file that any row can be read from, and each layer is another file. All neighbors count, but of nodes with very
many some are drawn, by the seed alone, which bounds a chunk. A sum grows with the number of its terms: gin sees as many neighbors
as in training.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from headrace.nn import GNN
from headrace.sample import NeighborSampler
from headrace.store import ArrayStore, BaseStore, FileRows, Store, TrainedArray, TrainedRows
from headrace.train.inference.layerwise.tables import FileTable, MemoryTable, ScratchTable, filled
from headrace.train.inference.layerwise.walk import Chunk, Inputs, Progress, Table, walk
from headrace.train.inference.ranking import scan
from headrace.train.links.batches import EdgeBatches
from headrace.train.links.memory import encoding_memory
from headrace.train.links.neighborhoods import RowsOfGraph, degrees_of, rows_of_graph, sampler_of
from headrace.train.links.options import LinkOptions

ENCODED = "encoded.npy"  # in the directory of a run
MOST = 1 << 12  # neighbors of a node, at the most
_READERS = 4  # threads that wait for the disk


class EncodedRows:
    """Encoded rows in a file, as `rank`, `export` and `neighbors` read rows; they have no optimizer's state.

    crc32: the checksum that the file was written with, if it is known and to be compared: after the last piece of a scan.
    """

    def __init__(self, path: Path, *, crc32: int | None = None) -> None:
        self._file, self._crc32 = FileRows(path, threads=_READERS), crc32
        if len(self._file.shape) != 2:
            raise ValueError(f"{path} is damaged: it has the shape {tuple(self._file.shape)}, and rows have two dimensions")
        self.num_rows, self.width = self._file.shape

    def gather(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Rows by id, and no state.  # [k] -> [k, width], [k, 0]"""
        return self._file.gather(ids.cpu()), torch.empty(len(ids), 0)

    @property
    def disk(self) -> None:
        """Any row can be read at any time."""
        return None

    def scan(self, *, rows: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """All rows, front to back, in pieces of at most `rows`.  # int, [n, width]"""
        checksum = 0
        if self._crc32 is not None:
            with open(self._file.path, "rb") as file:
                checksum = zlib.crc32(file.read(self._file.offset))
        for begin, piece in self._file.scan(rows=rows):
            if self._crc32 is not None:
                checksum = zlib.crc32(piece.view(-1).view(torch.uint8).numpy().data, checksum)
            yield begin, piece
        if self._crc32 is not None and checksum != self._crc32:
            raise ValueError(f"{self._file.path} is damaged: its checksum is wrong; restore it from a copy, or train the run again")

    def close(self) -> None:
        self._file.close()


class WrittenRows(EncodedRows):
    """Encoded rows in a file that this process has just written. `checksum` is for those who read it later."""

    def __init__(self, path: Path, checksum: int) -> None:
        super().__init__(path)
        self.checksum = checksum


def encode_all(
    model: GNN,
    rows: TrainedRows,
    triples: Tensor,
    deal: EdgeBatches,
    *,
    place: Path | None = None,
    progress: Progress | None = None,
) -> TrainedArray | WrittenRows:
    """The encoded rows of all nodes: in memory with the rows, or in a file at `place`, which is written aside and renamed.

    `deal` knows the partitions that `triples` are sorted by. `progress` is told (done, of how many) rows.
    """
    way = _Encoding(rows, triples, deal, place, last=len(model.layers) - 1)
    total = len(model.layers) * rows.num_rows
    table = walk(model, way.source, chunks=way.chunks, table=way.table, total=total, progress=progress)
    if place is not None:
        assert way.file is not None
        return WrittenRows(place, way.file.crc32)
    assert isinstance(table, ArrayStore)
    return TrainedArray(table.rows, torch.empty(rows.num_rows, 0, device=table.device), threads=deal.options.threads)


def save_encoded(rows: TrainedArray, place: Path) -> int:
    """Write rows that are in memory to a file that `EncodedRows` reads; returns its checksum."""
    table = FileTable(rows.num_rows, rows.width, torch.float32, place=place)
    filled(table, (piece for _, piece in scan(rows))).close()
    return table.crc32


class _Encoding:
    """An encoder's layers over the training graph, partition by partition: with tables in memory, or in files beside `place`."""

    def __init__(self, rows: TrainedRows, triples: Tensor, deal: EdgeBatches, place: Path | None, *, last: int) -> None:
        self.rows, self.triples, self.deal, self.place, self.last = rows, triples, deal, place, last
        self.options, self.limit = deal.options, _piece_rows(deal.options)
        self.device = torch.device("cpu") if place is not None else rows.device  # of tables
        self.file: FileTable | None = None  # of the last layer, where it is one
        self.degree = degrees_of(triples, rows.num_rows) if self.options.encoder == "gcn" else None

    def source(self) -> Store:
        """The trained rows, where any of them can be read: of rows on disk only some can, so they are copied to a file."""
        rows = self.rows
        if self.place is None:
            return _WithoutState(rows, self.device)
        copy = ScratchTable(rows.num_rows, rows.width, torch.float32, folder=self.place.parent)
        return filled(copy, (piece for _, piece in scan(rows, limit=self.limit)), threads=_READERS)

    def table(self, number: int, first: Tensor) -> Table:
        count, width = self.rows.num_rows, first.shape[1]
        if self.place is None:
            return MemoryTable(count, first, device=self.device)
        if number == self.last:
            self.file = FileTable(count, width, first.dtype, place=self.place)
            return self.file
        return ScratchTable(count, width, first.dtype, folder=self.place.parent)

    def chunks(self, number: int, layer: nn.Module, rows: Store) -> Iterator[Chunk]:
        most = most_neighbors(self.options)[number]
        for part in rows_of_graph(self.deal, self.triples, threads=self.options.threads):
            sampler = sampler_of(part.graph, [most], self.options)
            for begin, end in _ranges(part, most, self.limit):
                yield partial(self._read, rows, part, sampler, begin, end)

    def _read(self, rows: Store, part: RowsOfGraph, sampler: NeighborSampler, begin: int, end: int) -> Inputs:
        sample = sampler.sample(torch.arange(begin, end))
        ids = part.ids(sample.nodes.long())
        block = sample.blocks[0]
        if self.degree is not None:
            block = replace(block, degree=self.degree[ids])
        return Inputs(rows.gather(ids.to(self.device)), block)


class _WithoutState(BaseStore):
    """Trained rows as a `Store`."""

    def __init__(self, rows: TrainedRows, device: torch.device) -> None:
        self._rows, self.device = rows, device
        self.shape, self.dtype = torch.Size((rows.num_rows, rows.width)), torch.float32

    def gather(self, ids: Tensor, *, out: Tensor | None = None, check: bool = True) -> Tensor:
        """Rows by id.  # [n] -> [n, d]"""
        rows = self._rows.gather(ids)[0]
        return rows if out is None else out.copy_(rows)


def _ranges(part: RowsOfGraph, most: int, limit: int) -> Iterator[tuple[int, int]]:
    """Nodes whose neighbors and themselves are at most `limit`, or one node."""
    size = part.end - part.begin
    ends = (part.graph.degrees()[:size].clamp_max(most) + 1).cumsum(0)
    begin = before = 0
    while begin < size:
        end = max(int(torch.searchsorted(ends, before + limit, right=True)), begin + 1)
        yield begin, end
        begin, before = end, int(ends[end - 1])


def most_neighbors(options: LinkOptions) -> tuple[int, ...]:
    """How many neighbors each layer is given, the first layer first."""
    if options.encoder == "gin":
        return tuple(reversed(options.fanouts))
    return (min(MOST, _piece_rows(options) - 1),) * len(options.fanouts)


def evaluated_with(options: LinkOptions) -> str:
    """How nodes are encoded to be ranked, for the record of a run."""
    if options.encoder == "gin":
        return f"{','.join(map(str, options.fanouts))} drawn neighbors in the whole training graph, layer by layer"
    return (
        f"all neighbors in the whole training graph, layer by layer ({most_neighbors(options)[0]} drawn ones of a node with more)"
    )


def _piece_rows(options: LinkOptions) -> int:
    """Rows that are read at a time, of a node and its neighbors or of many."""
    return max(encoding_memory(options) // (4 * max(options.dim, options.hidden)), 2)
