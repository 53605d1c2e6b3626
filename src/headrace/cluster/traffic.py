"""Bytes that a rank sends in a step, by how ranks train. Pure functions of sizes: training counts the same, a plan asks them.

Notation: N ranks; of a batch's first layer `num_src` nodes (V0), `num_dst` targets (V1) and `edges` (E); F columns of features.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headrace.nn import LayerSplit

_COUNT = 8  # bytes that tell one rank how much comes
BLOCK_SIZES = 24  # bytes that say how many sources, targets and edges a pushed block has


@dataclass(frozen=True)
class Block:
    """How large the first layer's block of a batch is, on average."""

    num_src: float
    num_dst: float
    edges: float

    @classmethod
    def mean(cls, blocks: Iterable[Block]) -> Block:
        """The mean of some."""
        every = list(blocks)
        sums = (sum(getattr(block, name) for block in every) for name in ("num_src", "num_dst", "edges"))
        return cls(*(total / max(len(every), 1) for total in sums))


def fetched(block: Block, *, ranks: int, features: int, itemsize: int = 4, id_size: int = 4, hit_rate: float = 0.0) -> float:
    """Data-parallel training with features spread over ranks: expected bytes of a batch, ids out and rows back.

    A rank asks for what it neither owns nor copies (`hit_rate`); others ask it for as much.

    >>> round(fetched(Block(26_429, 4_126, 37_402), ranks=4, features=768) / 1e6, 1)
    61.0
    """
    asked = (ranks - 1) / ranks * (1 - hit_rate) * block.num_src
    return _COUNT * (ranks - 1) + asked * (id_size + features * itemsize)


def pulled(numbers: float, *, team: int, itemsize: int = 4, scores: float = 0.0, structure: float = 0.0) -> float:
    """Push-pull: bytes of a batch. `numbers` of partial sums (V1 H) come from each other rank, and their gradients go there.

    scores: numbers of attention scores (V0 + V1) heads, which are summed and told, forward and back.
    structure: bytes of the block, where other ranks do not draw it themselves.

    >>> round(pulled(4_126 * 64, team=4, structure=structure_bytes(Block(26_429, 4_126, 37_402))) / 1e6, 1)
    7.2
    """
    counts = (_COUNT + BLOCK_SIZES) * (team - 1) if structure else 0
    return (team - 1) * ((2 * numbers + 4 * scores) * itemsize + structure) + counts


def structure_bytes(block: Block, *, id_size: int = 4, degrees: bool = False) -> float:
    """A block as it is pushed: ids of its nodes, a count per target, a source per edge, and degrees where the layer uses them."""
    return id_size * block.num_src + 4 * block.num_dst + 4 * block.edges + (4 * block.num_src if degrees else 0)


def pulled_by(split: LayerSplit, block: Block, *, team: int, itemsize: int = 4, structure: float = 0.0) -> float:
    """`pulled` of a layer."""
    where: Any = block  # as far as sizes go
    numbers = sum(rows * width for rows, width in split.shapes(where))
    scores = (block.num_src + block.num_dst) * split.heads
    return pulled(numbers, team=team, itemsize=itemsize, scores=scores, structure=structure)


def summed(parameters: int, *, ranks: int, batches: float = 1.0, itemsize: int = 4) -> float:
    """Gradients of weights that every rank has: bytes of a step of `batches` of each rank.

    >>> summed(1000, ranks=4)
    6000.0
    """
    return (batches + 1) * (ranks - 1) / ranks * itemsize * parameters


def break_even(
    block: Block, *, ranks: int, features: int, itemsize: int = 4, structure: float = 0.0, hit_rate: float = 0.0
) -> float:
    """The width of a first layer (sage, gcn, gin) up to which push-pull sends less than data-parallel training.

    >>> block = Block(26_429, 4_126, 37_402)
    >>> [round(break_even(block, ranks=4, features=f, structure=structure_bytes(block))) for f in (768, 100)]
    [607, 73]
    """
    data = fetched(block, ranks=ranks, features=features, itemsize=itemsize, hit_rate=hit_rate)
    fixed = pulled(0.0, team=ranks, itemsize=itemsize, structure=structure)
    return max(data - fixed, 0.0) / ((ranks - 1) * 2 * block.num_dst * itemsize)
