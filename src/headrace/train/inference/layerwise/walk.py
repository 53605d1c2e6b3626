"""`walk`: the layers of a model over a graph, each computed for all nodes before the next one begins.

So the rows of a node's neighbors are computed once a layer, where a batch of whole neighborhoods would compute them again for
every seed. A layer is computed in chunks of target nodes: a chunk reads the rows that it needs from the table before, and its new
rows are appended to the table after. Uses differ in where the first rows come from, in what a chunk is, and in the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from headrace.kernels import gather
from headrace.nn.structure import Structure
from headrace.pipeline import Pipeline, Stage
from headrace.ranks import Ranks
from headrace.sample import Block, NeighborSampler
from headrace.store import Store

Progress = Callable[[int, int], None]  # is told (done, of how many) rows
Pieces = Generator[Tensor, None, None]  # the rows of a layer, chunk by chunk


class Inputs(NamedTuple):
    """What a layer computes a chunk from: `layer(x, block)`, or `layer(x, block, ids=ids)` to read rows of `x` in place."""

    x: Tensor  # [n, d]
    block: Structure
    ids: Tensor | None = None  # the rows of x that are the block's sources
    order: Tensor | None = None  # the new rows that are wanted, in this order; by default all

    def through(self, layer: nn.Module, device: torch.device) -> Tensor:  # -> [k, out]
        """The new rows of the chunk, computed on `device`."""
        block = self.block
        if isinstance(block, Block) and block.indptr.device != device:  # graphs and their rows lie where the model is
            degree = None if block.degree is None else block.degree.to(device)
            block = replace(block, indptr=block.indptr.to(device), indices=block.indices.to(device), degree=degree)
        more = {} if self.ids is None else {"ids": self.ids}
        rows: Tensor = layer(self.x.to(device), block, **more)
        return rows if self.order is None else rows[self.order]


Chunk = Callable[[], Inputs]
"""Target nodes that are computed together; a call finds their neighbors and reads the rows."""


class RowExchange(Protocol):
    """How rows go from each rank to all without being pickled: what `headrace.ranks.Exchange` offers."""

    wire: torch.device  # where tensors are sent from

    def all_gather(self, phase: str, tensor: Tensor) -> Tensor:
        """The tensors of all ranks, which have one shape, one after the other.  # [n, ...] -> [size * n, ...]"""
        ...


class Table(Protocol):
    """Rows that are written front to back, then read."""

    def append(self, piece: Tensor) -> None:
        """Write the next rows.  # [k, width]"""
        ...

    def rows(self) -> Store:
        """The table, once all of it is written."""
        ...

    def abandon(self) -> None:
        """Leave nothing of a table that will not be completed."""
        ...


def walk(
    model: nn.Module,
    source: Callable[[], Store],
    *,
    chunks: Callable[[int, nn.Module, Store], Iterable[Chunk]],
    table: Callable[[int, Tensor], Table],
    total: int,
    progress: Progress | None = None,
    read_ahead: bool = False,
    ranks: Ranks | None = None,
    exchange: RowExchange | None = None,
) -> Store:
    """The rows after the last layer. The model is run as in evaluation, and `progress` is told (done, `total`) rows.

    source: opens the rows that the first layer reads; they are let go of after it.
    chunks: those of layer `number`, which reads the store it is passed, in the order of the rows of its table; at least one.
    table: a table for the rows of layer `number`, from the first piece of them.
    read_ahead: read a chunk while the one before is computed.
    ranks: the chunks of a layer are dealt to them in turn. Every rank gets all rows and is told of all progress at the same
        points. The chunks are those of a single process, so rows have the same bits with any number of ranks.
    exchange: what sends their rows; without it `ranks` itself does.
    """
    done, device = 0, device_of(model)

    def tell(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None and count:
            progress(done, total)

    shared = _Shared(ranks, exchange, device) if ranks is not None and ranks.size > 1 else None
    with evaluating(model), torch.no_grad(), shared or nullcontext():
        rows = source()
        for number, layer in enumerate(required_layers(model)):
            compute = partial(_computed, layer, device=device, read_ahead=read_ahead)
            of_layer = chunks(number, layer, rows)
            pieces = compute(of_layer) if shared is None else shared.pieces(of_layer, compute)
            rows = _written(pieces, partial(table, number), tell)
            del of_layer, pieces  # they refer to the table before, whose memory is for the next
    return rows


def _computed(layer: nn.Module, chunks: Iterable[Chunk], *, device: torch.device, read_ahead: bool) -> Pieces:
    """The new rows of each chunk."""
    inputs: Any = (chunk() for chunk in chunks)
    if read_ahead:
        inputs = iter(Pipeline(chunks, [Stage("read", lambda chunk: chunk())], staleness=1))
    with closing(inputs):
        for one in inputs:
            piece = one.through(layer, device)
            del one  # its memory is for the next chunk
            yield piece
            del piece


def _written(pieces: Pieces, new_table: Callable[[Tensor], Table], tell: Callable[[int], None]) -> Store:
    """The table that the pieces make up."""
    table: Table | None = None
    try:
        with closing(pieces):
            for piece in pieces:
                table = table or new_table(piece)
                table.append(piece)
                tell(len(piece))
                del piece
    except BaseException:
        if table is not None:
            table.abandon()
        raise
    assert table is not None, "a layer has at least one chunk"
    return table.rows()


@dataclass(frozen=True)
class _Failure:
    """What a rank sends instead of rows when it cannot go on."""

    text: str
    out_of_memory: bool


class _Shared:
    """Chunks dealt to ranks, and their rows sent from each to all. Within it, what fails on one rank fails on all.

    In a round every rank computes one chunk, chunk i on rank i % size, so no more than a round is held beside the table.
    """

    def __init__(self, ranks: Ranks, exchange: RowExchange | None, device: torch.device) -> None:
        self.ranks, self.exchange, self.device = ranks, exchange, device
        self._over = False  # a rank has failed, and all know

    def pieces(self, chunks: Iterable[Chunk], compute: Callable[[Iterable[Chunk]], Pieces]) -> Pieces:
        """The new rows of all chunks, in their order; a single one is computed by every rank, which is faster than to send it."""
        chunks = iter(chunks)
        first = list(islice(chunks, 2))
        if len(first) < 2:
            return compute(first)
        return self._of_all(compute(islice(chain(first, chunks), self.ranks.rank, None, self.ranks.size)))

    def _of_all(self, pieces: Pieces) -> Pieces:
        """The pieces of all ranks, from those of this one."""
        complete = True
        with closing(pieces):
            while complete:
                piece = next(pieces, None)
                answers = self._sent(piece)
                complete = answers[-1] is not None  # ranks without a chunk are the last ones, in the last round
                for rank, answer in enumerate(answers):
                    if answer is not None:
                        yield piece if rank == self.ranks.rank and piece is not None else answer.to(self.device)
                del piece, answer, answers  # before the next round is computed

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Learn whether the other ranks ended well, or let them know that this one did not."""
        if error is None:
            self._round(None)
        elif isinstance(error, Exception) and not self._over:
            self.ranks.all_gather(_Failure(f"{type(error).__name__}: {error}", isinstance(error, torch.cuda.OutOfMemoryError)))

    def _sent(self, piece: Tensor | None) -> list[Tensor | None]:
        """The pieces of all ranks, by rank: None of those that had no chunk."""
        if self.exchange is None:
            return self._round(None if piece is None else piece.cpu())  # what is on this GPU another cannot take
        shapes = self._round(None if piece is None else (len(piece), piece.shape[1], piece.dtype))
        some = [shape for shape in shapes if shape is not None]
        if not some:
            return shapes
        length, (_, width, dtype) = max(shape[0] for shape in some), some[0]
        padded = torch.empty(length, width, dtype=dtype, device=self.exchange.wire)
        if piece is not None:
            padded[: len(piece)] = piece
        gathered = self.exchange.all_gather("inference", padded).view(self.ranks.size, length, width)
        return [None if shape is None else rows[: shape[0]] for shape, rows in zip(shapes, gathered, strict=True)]

    def _round(self, answer: Any) -> list[Any]:
        answers = self.ranks.all_gather(answer)
        for rank, other in enumerate(answers):
            if isinstance(other, _Failure):
                self._over = True
                kind = torch.cuda.OutOfMemoryError if other.out_of_memory else RuntimeError
                raise kind(f"rank {rank} failed in exact inference: {other.text}")
        return answers


def layers_of(model: nn.Module) -> list[nn.Module] | None:
    """The layers that a model is made of, in order; None if it has no `layers`."""
    layers: Any = getattr(model, "layers", None)
    return list(layers) if isinstance(layers, (nn.ModuleList, nn.Sequential, list, tuple)) and len(layers) else None


def required_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of a model, as `layers_of` gives them; TypeError if it has none."""
    layers = layers_of(model)
    if layers is None:
        raise TypeError(
            f"{type(model).__name__} has no `layers`: exact inference calls them one after the other as layer(x, block)"
        )
    return layers


def device_of(model: nn.Module) -> torch.device:
    """Where a model computes: the device of its parameters."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode; every module is put back into its own mode afterwards."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def all_neighbors(sampler: NeighborSampler, layer: nn.Module, targets: Tensor) -> tuple[Tensor, Block]:  # [k] -> [n]
    """Ids of targets and their neighbors, and their block, with degrees in the whole graph if the layer uses them."""
    sample = sampler.sample(targets)
    block = sample.blocks[0]
    if getattr(getattr(layer, "conv", layer), "wants_degree", False):
        block = replace(block, degree=gather(sampler.graph.degrees(loops=False), sample.nodes))
    return sample.nodes, block
