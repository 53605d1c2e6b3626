"""`encode_all`: the encoded rows of all nodes, over the whole training graph, layer by layer.

A layer is computed for every node before the next one begins, partition by partition and in pieces of a few megabytes of rows.
Rows in memory become a table in memory; rows on disk are copied to a file that any row can be read from, and each layer is another
file. All neighbors count, but of nodes with very many some are drawn, by the seed alone, which bounds a piece. A sum grows with
the number of its terms: gin is given as many neighbors as in training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from headrace._files import put_in_place, replaced
from headrace.kernels import gather
from headrace.nn import GNN
from headrace.sample import Sample
from headrace.store import FileRows, TrainedArray, TrainedRows
from headrace.train.inference.export_files import NpyRows
from headrace.train.inference.ranking import scan
from headrace.train.links.batches import EdgeBatches
from headrace.train.links.memory import encoding_memory
from headrace.train.links.neighborhoods import RowsOfGraph, degrees_of, rows_of_graph, sampler_of
from headrace.train.links.options import LinkOptions

ENCODED = "encoded.npy"  # in the directory of a run
MOST = 1 << 12  # neighbors of a node, at the most
_READERS = 4  # threads that wait for the disk

Tell = Callable[[int, int], None]


class EncodedRows:
    """Encoded rows in a file, as `rank`, `export` and `neighbors` read rows; they have no optimizer's state."""

    def __init__(self, path: Path) -> None:
        self._file = FileRows(path, threads=_READERS)
        self.num_rows, self.width = self._file.shape

    def gather(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Rows by id, and no state.  # [k] -> [k, width], [k, 0]"""
        return self._file.gather(ids.cpu()), torch.empty(len(ids), 0)

    def close(self) -> None:
        self._file.close()


def encode_all(
    model: GNN, rows: TrainedRows, triples: Tensor, deal: EdgeBatches, *, place: Path | None = None, progress: Tell | None = None
) -> TrainedArray | EncodedRows:
    """The encoded rows of all nodes: in memory with the rows, or in a file at `place`, which is written aside and renamed.

    `deal` knows the partitions that `triples` are sorted by. `progress` is told (done, of how many) rows.
    """
    options, layers, done = deal.options, len(model.layers), 0
    degree = degrees_of(triples, rows.num_rows) if options.encoder == "gcn" else None

    def tell(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, layers * rows.num_rows)

    was = model.training
    model.eval()
    try:
        with torch.no_grad():
            if place is not None:
                return _to_file(model, rows, triples, deal, degree, place, tell)
            table, read = torch.empty(0), lambda ids: rows.gather(ids.to(getattr(rows, "device", "cpu")))[0]
            for number, layer in enumerate(model.layers):
                pieces = _pieces(layer, number, read, triples, deal, degree)
                table = torch.empty(rows.num_rows, cast(int, layer.out_channels), device=getattr(rows, "device", "cpu"))
                for begin, piece in pieces:
                    table[begin : begin + len(piece)] = piece
                    tell(len(piece))
                read = lambda ids, table=table: gather(table, ids.to(table.device))  # type: ignore[misc] # noqa: E731
            return TrainedArray(table, torch.empty(len(table), 0, device=table.device), threads=options.threads)
    finally:
        model.train(was)


def _to_file(
    model: GNN,
    rows: TrainedRows,
    triples: Tensor,
    deal: EdgeBatches,
    degree: Tensor | None,
    place: Path,
    tell: Callable[[int], None],
) -> EncodedRows:
    """A file for the rows, and one for each layer; no more than two are there at a time."""
    steps = [place.with_name(f"{place.name}.{number}") for number in range(len(model.layers) + 1)]
    try:
        _write(steps[0], rows.num_rows, rows.width, (piece for _, piece in scan(rows, limit=_piece_rows(deal.options))))
        for number, layer in enumerate(model.layers):
            source = FileRows(steps[number], threads=_READERS)
            pieces = _pieces(layer, number, source.gather, triples, deal, degree)
            _write(steps[number + 1], rows.num_rows, cast(int, layer.out_channels), _told(pieces, tell))
            source.close()
            steps[number].unlink()
        put_in_place(steps[-1], place)
    finally:
        for step in steps:
            step.unlink(missing_ok=True)
    return EncodedRows(place)


def save_encoded(rows: TrainedArray, place: Path) -> None:
    """Write rows that are in memory to a file that `EncodedRows` reads."""
    with replaced(place) as aside:
        _write(aside, rows.num_rows, rows.width, (piece for _, piece in scan(rows)))


def _told(pieces: Iterator[tuple[int, Tensor]], tell: Callable[[int], None]) -> Iterator[Tensor]:
    for _, piece in pieces:
        yield piece
        tell(len(piece))


def _write(path: Path, count: int, width: int, pieces: Iterator[Tensor]) -> None:
    file = NpyRows(path, count, width)
    try:
        for piece in pieces:
            file.append(torch.empty(0), piece.cpu())
        file.close()
    finally:
        file.abandon()


def _pieces(
    layer: nn.Module, number: int, read: Callable[[Tensor], Tensor], triples: Tensor, deal: EdgeBatches, degree: Tensor | None
) -> Iterator[tuple[int, Tensor]]:
    """What a layer makes of the table that `read` reads, as (first id, rows), front to back."""
    options = deal.options
    most, limit = most_neighbors(options)[number], _piece_rows(options)
    where = next(layer.parameters()).device
    for part in rows_of_graph(deal, triples, threads=options.threads):
        sampler = sampler_of(part.graph, [most], options)
        for begin, end in _ranges(part, most, limit):
            sample: Sample = sampler.sample(torch.arange(begin, end))
            ids = part.ids(sample.nodes.long())
            block = sample.to(where).blocks[0]
            if degree is not None:
                block = dataclasses.replace(block, degree=degree[ids].to(where))
            yield part.begin + begin, layer(read(ids).to(where), block)


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
