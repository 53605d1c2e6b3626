"""`RowsInference`: exact inference, layer by layer, on features and hidden rows that do not fit in memory.

A layer is computed for a range of nodes at a time: the rows of the range and of all its neighbors are read, each once and in the
order in which they lie, and the new rows are appended to a table. A range is as long as its neighbors' rows fit, so a row is read
once for every range that it has a neighbor in: nodes whose neighbors have ids near theirs (`Dataset.reorder`) make for few reads.
Only nodes that the wanted ones depend on are computed. The next range is read while one is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from headrace.graph import Graph
from headrace.ranks import Ranks
from headrace.sample import NeighborSampler
from headrace.store import ArrayStore, Store
from headrace.train.inference.layerwise.tables import MemoryTable, ScratchTable
from headrace.train.inference.layerwise.walk import (
    Chunk,
    Inputs,
    Progress,
    RowExchange,
    Table,
    all_neighbors,
    device_of,
    required_layers,
    walk,
)

_STEP = 1 << 16  # nodes and edges looked at a time while ranges are made


class RowsInference:
    """Rows of a model over `graph` from `features`, in about `memory` bytes beside the graph.

    A quarter of `memory` is for each of the two tables of hidden rows around a layer, which are files near `folder` if they are
    larger; half is for the rows of a range and the next one. `bytes_read` counts what was read from disk, of features and of hidden
    rows. `ranks` share the ranges of a layer; each writes the whole table, to a file of its own where it does not fit.
    """

    def __init__(
        self,
        graph: Graph,
        features: Store,
        *,
        memory: int,
        folder: Path | None = None,
        ranks: Ranks | None = None,
        exchange: RowExchange | None = None,
    ) -> None:
        self.graph, self.features, self.memory, self.folder = graph, features, memory, folder
        self.ranks, self.exchange = ranks, exchange
        self.bytes_read = 0
        self._sampler = NeighborSampler(graph, [-1])

    def __call__(self, model: nn.Module, nodes: Tensor, progress: Progress | None = None) -> Tensor:
        """The model's rows of `nodes`, as `headrace.train.infer` gives them.  # [n] -> [n, out]"""
        layers = required_layers(model)
        if not len(nodes):
            return torch.empty(0, 0)
        wanted, order = torch.unique(nodes.long(), return_inverse=True)
        needed = [wanted]  # the nodes of each layer
        for _ in layers[1:]:
            needed.insert(0, self._with_neighbors(needed[0]))

        def chunks(number: int, layer: nn.Module, rows: Store) -> Iterator[Chunk]:
            return self._chunks(layer, rows, needed[number], needed[number - 1] if number else None)

        def table(number: int, first: Tensor) -> Table:
            count = len(needed[number])
            if number == len(layers) - 1 or count * first.shape[1] * first.element_size() <= self.memory // 4:
                return MemoryTable(count, first, device=torch.device("cpu"))
            return ScratchTable(count, first.shape[1], first.dtype, folder=self.folder)

        hidden = walk(
            model,
            lambda: self.features,
            chunks=chunks,
            table=table,
            total=sum(map(len, needed)),
            progress=progress,
            read_ahead=True,
            ranks=self.ranks,
            exchange=self.exchange,
        )
        return hidden.gather(order)

    def _chunks(self, layer: nn.Module, rows: Store, ids: Tensor, among: Tensor | None) -> Iterator[Chunk]:
        """The ranges of `ids`; row i of `rows` is that of node `among[i]`, or of node i."""
        on_disk = not isinstance(rows, ArrayStore)

        def read(part: Tensor) -> Inputs:
            nodes, block = all_neighbors(self._sampler, layer, part)
            nodes = nodes.long()
            if on_disk:
                self.bytes_read += len(nodes) * rows.shape[1] * rows.dtype.itemsize
            return Inputs(rows.gather(nodes if among is None else torch.searchsorted(among, nodes), check=False), block)

        width = read(ids[:1]).through(layer, device_of(layer)).shape[1]
        row = rows.shape[1] * rows.dtype.itemsize
        # Two ranges' rows, and one range's as the layer maps them; the other half of the memory is for the new rows.
        limit = max(self.memory // 2 // (2 * row + 4 * width + 1), 1)
        return (partial(read, part) for part in self._ranges(ids, limit, row))

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
            nodes = self._sampler.sample(ids[at:end]).nodes.long()
            fresh = nodes[~seen[nodes]]
            first = int(cost[begin - 1]) if begin else 0
            if at > begin and (held + len(fresh) > limit or int(cost[end - 1]) - first > most):
                yield ids[begin:at]
                seen.zero_()
                begin, held, fresh = at, 0, nodes
            seen[fresh] = True
            held, at = held + len(fresh), end
        yield ids[begin:]

    def _with_neighbors(self, ids: Tensor) -> Tensor:
        """`ids` and all nodes with an edge to them, rising."""
        needed = torch.zeros(self.graph.num_nodes, dtype=torch.bool)
        for part in self._ranges(ids, 4 * _STEP, 64):
            needed[self._sampler.sample(part).nodes.long()] = True
        return needed.nonzero().flatten()
