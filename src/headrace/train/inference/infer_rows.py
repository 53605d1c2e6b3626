"""`RowsInference`: exact inference, layer by layer, on features and hidden rows that do not fit in memory.

A layer is computed for a range of nodes at a time: all neighbors of the range are found, the rows of those nodes, once each, are
read in the order in which they lie, and the new rows are appended to a table. A range is as long as its neighbors' rows fit, so a
row is read once for every range that it has a neighbor in: nodes whose neighbors have ids near theirs (`Dataset.reorder`) make
for few reads. Only nodes that the wanted ones depend on are computed. The next range is read while one is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from headrace.graph import Graph
from headrace.kernels import gather
from headrace.pipeline import Pipeline, Stage
from headrace.sample import Block, NeighborSampler, Sample
from headrace.store import ArrayStore, Store
from headrace.train.inference.infer import evaluating, layers_of
from headrace.train.inference.scratch import ScratchTable

_STEP = 1 << 16  # nodes and edges looked at a time while ranges are made


class RowsInference:
    """Rows of a model over `graph` from `features`, in about `memory` bytes beside the graph.

    A quarter of `memory` is for each of the two tables of hidden rows around a layer, which lie near `folder` if they are larger;
    half is for the rows of a range and the next one. `bytes_read` counts what was read, of features and of hidden rows on disk.
    """

    def __init__(self, graph: Graph, features: Store, *, memory: int, folder: Path | None = None) -> None:
        self.graph, self.features, self.memory, self.folder = graph, features, memory, folder
        self.bytes_read = 0
        self._sampler = NeighborSampler(graph, [-1])

    def __call__(self, model: nn.Module, nodes: Tensor, progress: Callable[[int, int], None] | None = None) -> Tensor:
        """The model's rows of `nodes`, as `headrace.train.infer` gives them.  # [n] -> [n, out]"""
        layers = layers_of(model)
        if layers is None:
            raise TypeError(f"{type(model).__name__} has no `layers`: exact inference calls them one after the other")
        wanted, place = torch.unique(nodes.long(), return_inverse=True)
        needed = [wanted]
        for _ in layers[1:]:
            needed.insert(0, self._with_neighbors(needed[0]))
        total, done = sum(len(ids) for ids in needed), 0
        rows, among = self.features, None
        with evaluating(model), torch.no_grad():
            for number, layer in enumerate(layers):
                table: _MemoryTable | ScratchTable | None = None
                try:
                    for out in self._layer(layer, rows, needed[number], among):
                        table = table or self._table(len(needed[number]), out, last=number == len(layers) - 1)
                        table.append(out)
                        done += len(out)
                        if progress is not None:
                            progress(done, total)
                except BaseException:
                    if table is not None:
                        table.abandon()
                    raise
                if table is None:  # no node was asked for
                    return torch.empty(0, 0)
                rows, among = table.rows(), needed[number]
        assert isinstance(rows, ArrayStore)
        return gather(rows.rows, place)

    def _layer(self, layer: nn.Module, rows: Store, ids: Tensor, among: Tensor | None) -> Iterator[Tensor]:
        """New rows of `ids`, range after range; row i of `rows` is that of node `among[i]`, or of node i."""
        device = next((p.device for p in layer.parameters()), torch.device("cpu"))
        conv = getattr(layer, "conv", layer)
        degrees = self.graph.degrees(loops=False) if getattr(conv, "wants_degree", False) else None
        on_disk = not isinstance(rows, ArrayStore)

        def read(part: Tensor) -> tuple[Sample, Tensor]:
            sample = self._sampler.sample(part)
            found = sample.nodes.long()
            if on_disk:
                self.bytes_read += len(found) * rows.shape[1] * rows.dtype.itemsize
            return sample, rows.gather(found if among is None else torch.searchsorted(among, found), check=False)

        def compute(sample: Sample, x: Tensor) -> Tensor:
            block, degree = sample.blocks[0], None if degrees is None else gather(degrees, sample.nodes)
            parts = (None if part is None else part.to(device) for part in (block.indptr, block.indices, degree))
            indptr, indices, degree = parts
            assert indptr is not None
            assert indices is not None
            out: Tensor = layer(x.to(device), Block(indptr, indices, block.num_src, degree))
            return out.cpu()

        if len(ids) == 0:
            return
        width = compute(*read(ids[:1])).shape[1]
        row = rows.shape[1] * rows.dtype.itemsize
        # Two ranges' rows, and one range's as the layer maps them; the other half of the memory is for what it makes of them.
        limit = max(self.memory // 2 // (2 * row + 4 * width + 1), 1)
        running = iter(Pipeline(self._ranges(ids, limit, row), [Stage("read", read)], staleness=1))
        try:
            for sample, x in running:
                yield compute(sample, x)
                del sample, x
        finally:
            running.close()  # type: ignore[attr-defined]

    def _ranges(self, ids: Tensor, limit: int, row: int) -> Iterator[Tensor]:
        """Runs of `ids` with about `limit` different nodes in them and among their neighbors; or one id, if that has more."""
        indptr = self.graph.indptr
        cost = (indptr[ids + 1] - indptr[ids] + 1).cumsum(0)
        small = max(min(_STEP, limit // 4), 1)
        most = max(limit * row // 16, small)  # edges: what a block takes of them must not outgrow the rows
        seen = torch.zeros(self.graph.num_nodes, dtype=torch.bool)
        begin = at = held = 0
        while at < len(ids):
            spent = int(cost[at - 1]) if at else 0
            end = max(int(torch.searchsorted(cost, spent + small, right=True)), at + 1)
            found = self._sampler.sample(ids[at:end]).nodes.long()
            fresh = found[~seen[found]]
            first = int(cost[begin - 1]) if begin else 0
            if at > begin and (held + len(fresh) > limit or int(cost[end - 1]) - first > most):
                yield ids[begin:at]
                seen.zero_()
                begin, held, fresh = at, 0, found
            seen[fresh] = True
            held, at = held + len(fresh), end
        yield ids[begin:]

    def _with_neighbors(self, ids: Tensor) -> Tensor:
        """`ids` and all nodes with an edge to them, rising."""
        there = torch.zeros(self.graph.num_nodes, dtype=torch.bool)
        for part in self._ranges(ids, 4 * _STEP, 64):
            there[self._sampler.sample(part).nodes.long()] = True
        return there.nonzero().flatten()

    def _table(self, rows: int, like: Tensor, *, last: bool) -> _MemoryTable | ScratchTable:
        size = rows * like.shape[1] * like.element_size()
        if last or size <= self.memory // 4:
            return _MemoryTable(rows, like)
        return ScratchTable(rows, like.shape[1], like.dtype, folder=self.folder)


class _MemoryTable:
    """As `ScratchTable`, in memory."""

    def __init__(self, rows: int, like: Tensor) -> None:
        self._rows, self._done = like.new_empty(rows, like.shape[1]), 0

    def append(self, piece: Tensor) -> None:
        self._rows[self._done : self._done + len(piece)] = piece
        self._done += len(piece)

    def rows(self) -> ArrayStore:
        return ArrayStore(self._rows)

    def abandon(self) -> None:
        """There is nothing to leave behind."""
