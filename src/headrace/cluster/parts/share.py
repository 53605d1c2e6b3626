"""Writing one part: the rows of the nodes that it owns, copied in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headrace._arrays import check_ids
from headrace.cluster.parts.own_edges import edge_positions, own_indptr
from headrace.cluster.parts.summary import Neighbors, Share
from headrace.graph import Dataset
from headrace.graph.saved.io import DatasetWriter
from headrace.kernels import gather
from headrace.store import ArrayStore, FileRows, HashOwners, TableOwners
from headrace.store.raw_rows import pieces

SPLIT, PLACE = "split_", "place_"
EDGE_ARRAYS = ("indices", "weight", "time", "edge_id")
_PIECE = 16 << 20  # bytes of rows that are copied at a time
Wrote = Callable[[int], None]


def write_share(
    writer: DatasetWriter,
    data: Dataset,
    owners: HashOwners | TableOwners,
    number: int,
    *,
    rows: bool,
    wrote: Wrote,
    threads: int | None = None,
) -> Share:
    """Write what part `number` owns: its rows of the graph, labels and splits; its features too if `rows`.

    `wrote` is told the bytes of each piece.
    """
    graph, ids = data.graph, owners.ids_of(number)
    own = torch.zeros(data.num_nodes, dtype=torch.bool)
    own[ids] = True
    indptr = own_indptr(graph.indptr, ids)
    writer.write("indptr", indptr)
    wrote(indptr.nbytes)
    arrays = {name: array for name in EDGE_ARRAYS if (array := getattr(graph, name)) is not None}
    files = {name: writer.array(name, a.dtype, (int(indptr[-1]), *a.shape[1:])) for name, a in arrays.items()}
    neighbors = Neighbors(own)
    for positions in edge_positions(graph.indptr, ids, indptr):
        for name, array in arrays.items():
            piece = gather(array, positions, threads=threads)
            files[name].append(piece)
            wrote(piece.nbytes)
            if name == "indices":
                neighbors.add(piece)
    for name, nodes in (("x", data.x if rows else None), ("y", data.y)):
        if nodes is not None:
            _write_rows(writer, name, nodes, ids, wrote, threads)
    for name, array in own_splits(data, own).items():
        writer.write(name, array)
    if isinstance(owners, TableOwners):
        writer.write("owner", owners.owner)
    return Share(len(ids), neighbors.edges, neighbors.cut_edges, neighbors.ghosts)


def own_splits(data: Dataset, own: Tensor) -> dict[str, Tensor]:
    """The nodes of each split among those that are `own`, and where they are in it.  # own: [num_nodes], bool"""
    arrays: dict[str, Tensor] = {}
    for name, nodes in data.splits.items():
        check_ids(nodes, data.num_nodes, name=f"split {name!r}", of="nodes")
        places = own[nodes.long()].nonzero().flatten()
        arrays |= {f"{SPLIT}{name}": nodes[places], f"{PLACE}{name}": places}
    return arrays


def _write_rows(writer: DatasetWriter, name: str, rows: Tensor, ids: Tensor, wrote: Wrote, threads: int | None) -> None:
    source = FileRows.of_tensor(rows) or ArrayStore(rows, threads=threads)  # a file is read by many threads at a time
    file = writer.array(name, rows.dtype, (len(ids), *rows.shape[1:]))
    for begin, end in _pieces(len(ids), source.row_bytes):
        piece = source.gather(ids[begin:end])
        file.append(piece)
        wrote(piece.nbytes)


def write_columns(writers: Sequence[DatasetWriter], x: Tensor, bounds: Sequence[tuple[int, int]], wrote: Wrote) -> None:
    """Write to each part its columns of all nodes; the features are read once for all of these parts."""
    rows = x if x.dim() > 1 else x.unsqueeze(1)
    files = [writer.array("x", x.dtype, (len(x), end - begin)) for writer, (begin, end) in zip(writers, bounds, strict=True)]
    for first, last in _pieces(len(rows), rows.shape[1] * rows.element_size()):
        for file, (begin, end) in zip(files, bounds, strict=True):
            piece = rows[first:last, begin:end]
            file.append(piece)
            wrote(piece.numel() * piece.element_size())


def _pieces(count: int, row_bytes: int) -> list[tuple[int, int]]:
    return list(pieces(count, row_bytes, most=max(1, _PIECE // max(1, row_bytes))))
