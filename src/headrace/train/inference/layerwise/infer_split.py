"""`infer_split`: exact inference over a graph whose rows are split over ranks: each computes the rows of the nodes it owns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headrace.cluster import Drawn, PushPull
from headrace.cluster.structures import pushed_blocks
from headrace.cluster.topology import SplitSampler
from headrace.ranks import Exchange, Ranks
from headrace.sample import Block
from headrace.store import BaseStore, Owners, Remote, Store
from headrace.train.inference.layerwise.walk import Chunk, Inputs, Progress, required_layers, walk

_NODES = 4096  # computed at a time


@dataclass(frozen=True)
class SplitGraph:
    """A graph over ranks: who owns which node, and a sampler that takes all neighbors."""

    ranks: Ranks
    owners: Owners
    sampler: SplitSampler

    @property
    def rounds(self) -> int:
        """In how many pieces nodes are computed: as many on every rank."""
        return max(-(-self.owners.size(rank) // _NODES) for rank in range(self.ranks.size)) or 1


def infer_split(
    model: nn.Module,
    graph: SplitGraph,
    first: Remote | PushPull,
    *,
    progress: Progress | None = None,
) -> Tensor:
    """The model's rows of this rank's own nodes, in the order of `owners.ids_of(rank)`. Collective.  # -> [own, out]

    first: what the first layer reads: rows that are spread over ranks, or columns of all of them.
    """
    layers = required_layers(model)
    own = graph.owners.ids_of(graph.ranks.rank)
    remotes: list[Remote] = []

    def chunks(number: int, layer: nn.Module, rows: Store) -> Iterator[Chunk]:
        read = partial(_pulled, first) if number == 0 and isinstance(first, PushPull) else partial(_gathered, rows)
        for at in range(graph.rounds):
            yield partial(_chunk, graph, layer, own[at * _NODES : (at + 1) * _NODES], read)

    def table(number: int, piece: Tensor) -> _OwnTable:
        return _OwnTable(graph, number == len(layers) - 1, remotes)

    source: Store = _Nothing() if isinstance(first, PushPull) else first
    try:
        rows = walk(model, lambda: source, chunks=chunks, table=table, total=len(layers) * len(own), progress=progress)
        assert isinstance(rows, _OwnRows)
        return rows.rows
    finally:
        for remote in remotes:
            remote.close()


Read = Callable[[nn.Module, Tensor, Block], Any]


def _chunk(graph: SplitGraph, layer: nn.Module, targets: Tensor, read: Read) -> Any:
    sample = graph.sampler.sample(targets)
    block = sample.blocks[0]
    if getattr(getattr(layer, "conv", layer), "wants_degree", False):
        block = replace(block, degree=graph.sampler.degrees(sample.nodes))
    return read(layer, sample.nodes, block)


def _gathered(rows: Store, layer: nn.Module, nodes: Tensor, block: Block) -> Inputs:
    return Inputs(rows.gather(nodes.long()), block)


@dataclass(frozen=True)
class _Pulled:
    """The `Inputs` of a layer that all ranks have computed together: its rows only need to be handed out."""

    rows: Tensor

    def through(self, layer: nn.Module, device: torch.device) -> Tensor:
        return self.rows


def _pulled(engine: PushPull, layer: nn.Module, nodes: Tensor, block: Block) -> _Pulled:
    blocks = pushed_blocks(engine.team, nodes, block, [0] * engine.team.size)
    _, sums = engine.forward(partial(Drawn, None, blocks)).wait()
    return _Pulled(engine.split.finish(sums, block.to(engine.device)))


class _OwnTable:
    """Rows of this rank's nodes, which others read through a `Remote` once they are complete."""

    def __init__(self, graph: SplitGraph, last: bool, remotes: list[Remote]) -> None:
        self.graph, self.last, self.remotes = graph, last, remotes
        self.pieces: list[Tensor] = []

    def append(self, piece: Tensor) -> None:
        self.pieces.append(piece)

    def rows(self) -> Store:
        rows = torch.cat(self.pieces)
        if self.last:
            return _OwnRows(rows)
        remote = Remote.from_local(rows.cpu(), self.graph.owners, group=getattr(self.graph.ranks, "group", None))
        self.remotes.append(remote)
        return remote

    def abandon(self) -> None:
        self.pieces.clear()


class _OwnRows(BaseStore):
    def __init__(self, rows: Tensor) -> None:
        self.rows, self.shape, self.dtype = rows, rows.shape, rows.dtype

    def gather(self, ids: Tensor, *, out: Tensor | None = None, check: bool = True) -> Tensor:
        return torch.index_select(self.rows, 0, ids, out=out)


class _Nothing(BaseStore):
    shape, dtype = torch.Size((0, 0)), torch.float32

    def gather(self, ids: Tensor, *, out: Tensor | None = None, check: bool = True) -> Tensor:
        raise NotImplementedError("columns are read by the ranks that hold them")


def rows_of_all(own: Tensor, wanted: Tensor, owners: Owners, exchange: Exchange) -> Tensor:
    """Rows of `wanted` nodes (the same on all ranks), from what each rank has of its own. Collective.  # [own, out] -> [n, out]"""
    owner, row = owners.locate(wanted)
    counts = torch.bincount(owner, minlength=owners.ranks).tolist()
    mine = own[row[owner == exchange.rank]]
    padded = own.new_zeros((max(counts), own.shape[1]))
    padded[: len(mine)] = mine
    gathered = exchange.all_gather("predictions", padded.to(exchange.wire)).view(owners.ranks, max(counts), own.shape[1])
    rows = torch.empty(len(wanted), own.shape[1], dtype=own.dtype)
    for rank, count in enumerate(counts):
        rows[owner == rank] = gathered[rank, :count].cpu()
    return rows
