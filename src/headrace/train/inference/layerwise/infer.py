"""`infer`: a model's rows for all nodes over all neighbors, layer by layer.

Memory is the table before and the table after a layer, and one range of rows; a table that is larger than `memory` lies in a
temporary file.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headrace._arrays import as_ids, first_outside
from headrace.graph import Dataset, Graph
from headrace.kernels import gather
from headrace.ranks import Ranks
from headrace.sample import NeighborSampler
from headrace.store import ArrayStore, Store
from headrace.train.inference.layerwise.tables import MappedTable, MemoryTable
from headrace.train.inference.layerwise.walk import (
    Chunk,
    Inputs,
    Progress,
    RowExchange,
    all_neighbors,
    device_of,
    required_layers,
    walk,
)

_RANGE_BYTES = 256 << 20  # of rows computed at a time
_SEEDS = 16_384  # of the last layer, computed at a time


def infer(
    model: nn.Module,
    data: Dataset,
    nodes: Any = None,
    *,
    memory: int | None = None,
    progress: Progress | None = None,
    ranks: Ranks | None = None,
    exchange: RowExchange | None = None,
) -> Tensor:
    """The model's rows of `nodes` (all by default), from all neighbors.  # -> [nodes, out]

    `model.layers` must be the model: `x = layer(x, block)` from the first to the last, as in `headrace.nn.GNN`. It is run as in
    evaluation: no dropout, norms as learnt. `memory` (bytes, by default half of what the machine has) bounds the tables held in
    memory. `progress` is told (done, of how many) rows. A model on a GPU is run there if graph and tables fit, else on the CPU.

    `ranks` share the work: all call with the same model, data and nodes, each computes some ranges of every layer, and all get
    the same rows, with the bits that a single process computes. A layer of one range is computed by every rank. Rows go
    through `exchange` (`headrace.ranks.Exchange`), or are pickled without one.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=100, edges=600, classes=3, features=8)
    >>> hr.train.infer(hr.nn.GNN(8, 16, 3, layers=2), data).shape
    torch.Size([100, 3])
    """
    last = len(required_layers(model)) - 1
    if data.x is None:
        raise ValueError("this dataset has no features")
    wanted = None if nodes is None else as_ids(nodes, "nodes", dtype=torch.int64)
    if wanted is not None and len(wanted) and not 0 <= int(wanted.min()) <= int(wanted.max()) < data.num_nodes:
        at = first_outside(wanted, 0, data.num_nodes)
        raise IndexError(f"nodes[{at}] is {int(wanted[at])}: the graph has nodes 0 to {data.num_nodes - 1}")
    limit = memory if memory is not None else _half_of_memory()
    if device_of(model).type != "cpu":
        try:
            return _InMemory(model, data, wanted, last, limit).rows(progress, ranks, exchange)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
        model = copy.deepcopy(model).cpu()
    return _InMemory(model, data, wanted, last, limit).rows(progress, ranks, exchange)


class _InMemory:
    """Layers over a whole graph, from tables that are read in place, where the model is."""

    def __init__(self, model: nn.Module, data: Dataset, wanted: Tensor | None, last: int, limit: int) -> None:
        self.model, self.data, self.wanted, self.last, self.limit = model, data, wanted, last, limit
        self.device = device_of(model)
        # Few nodes are computed alone in the last layer. A sampled block has no edge weights: with them, all are computed.
        self.few = wanted is not None and 2 * len(wanted) < data.num_nodes and data.graph.weight is None

    def rows(self, progress: Progress | None, ranks: Ranks | None, exchange: RowExchange | None) -> Tensor:
        """The rows that are wanted, in main memory."""
        total = sum(self._count(number) for number in range(self.last + 1))
        table = walk(
            self.model,
            self._source,
            chunks=self._chunks,
            table=self._table,
            total=total,
            progress=progress,
            ranks=ranks,
            exchange=exchange,
        )
        assert isinstance(table, ArrayStore)
        return (table.rows if self.wanted is None or self.few else gather(table.rows, self.wanted)).cpu()

    def _source(self) -> ArrayStore:
        assert self.data.x is not None
        return ArrayStore(self.data.x.to(self.device))

    def _graph(self) -> Graph:
        graph = self.data.graph
        return graph if self.device.type == "cpu" else graph.derived(f"on {self.device}", lambda: graph.to(self.device))

    def _count(self, number: int) -> int:
        """Rows of a layer's table."""
        return len(self.wanted) if self.few and number == self.last and self.wanted is not None else self.data.num_nodes

    def _table(self, number: int, first: Tensor) -> MemoryTable:
        count = self._count(number)
        fits = count * first.shape[1] * first.element_size() <= self.limit
        in_memory = fits or first.is_cuda or len(first) == count or (self.few and number == self.last)
        return (MemoryTable if in_memory else MappedTable)(count, first)

    def _chunks(self, number: int, layer: nn.Module, rows: Store) -> Iterator[Chunk]:
        assert isinstance(rows, ArrayStore)
        graph, x = self._graph(), rows.rows
        if self.few and number == self.last and self.wanted is not None:
            return _seeds(layer, x, graph, self.wanted)
        return _ranges(layer, x, graph)


def _ranges(layer: nn.Module, x: Tensor, graph: Graph) -> Iterator[Chunk]:
    """All nodes, a range at a time; or at once, if the layer multiplies the rows of all sources whatever the range is."""
    nodes = graph.num_nodes
    step = nodes
    if getattr(layer, "reads_ids", False) and nodes:
        width = layer(x, graph.rows(0, 1)).shape[1] + x.shape[1]
        if 4 * nodes * width > _RANGE_BYTES:
            step = max(_RANGE_BYTES // (4 * width), 1)
    if step >= nodes:
        yield lambda: Inputs(x, graph)
        return
    for begin in range(0, nodes, step):
        yield partial(Inputs, x, graph.rows(begin, min(begin + step, nodes)))


def _seeds(layer: nn.Module, x: Tensor, graph: Graph, nodes: Tensor) -> Iterator[Chunk]:
    """Some nodes, so many at a time, each with all of its neighbors."""
    sampler, nodes = NeighborSampler(graph, [-1]), nodes.to(x.device)

    def read(seeds: Tensor) -> Inputs:
        unique, order = torch.unique(seeds, return_inverse=True)  # a sample has a seed only once
        ids, block = all_neighbors(sampler, layer, unique)
        if getattr(layer, "reads_ids", False):
            return Inputs(x, block, ids, order)
        return Inputs(gather(x, ids), block, order=order)

    for begin in range(0, len(nodes), _SEEDS):
        yield partial(read, nodes[begin : begin + _SEEDS])
    if not len(nodes):
        yield lambda: Inputs(x, graph.rows(0, 0))


def _half_of_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (ValueError, OSError, AttributeError):
        return 4 << 30
