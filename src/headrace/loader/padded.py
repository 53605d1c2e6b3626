"""Batches of one shape: what a captured training step is replayed on."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from headrace.sample import Block, Sample

_ROUND = 256


@dataclass(frozen=True)
class Shape:
    """Room for batches: nodes after each hop, and edges after each hop, all hops before counted in."""

    nodes: tuple[int, ...]
    edges: tuple[int, ...]

    @classmethod
    def of(cls, sample: Sample, *, spare: float = 0.0) -> Shape:
        """Room for a sample, and the share `spare` more for others like it. The number of seeds is fixed: it has no spare."""

        def room(counts: tuple[int, ...]) -> list[int]:
            return [-(-int(n * (1 + spare)) // _ROUND) * _ROUND for n in accumulate(counts)]

        seeds = sample.num_seeds
        return cls((seeds, *(max(n, seeds) for n in room(sample.num_sampled_nodes)[1:])), tuple(room(sample.num_sampled_edges)))

    def alike(self, other: Shape) -> bool:
        """Whether both have as many seeds: that is fixed."""
        return self.nodes[0] == other.nodes[0]

    def holds(self, other: Shape) -> bool:
        """Whether batches of another shape fit in: they must have exactly as many seeds."""
        pairs = (*zip(self.nodes, other.nodes, strict=True), *zip(self.edges, other.edges, strict=True))
        return self.alike(other) and all(mine >= theirs for mine, theirs in pairs)

    def union(self, other: Shape) -> Shape:
        """Room for batches of either shape."""
        return Shape(tuple(map(max, self.nodes, other.nodes)), tuple(map(max, self.edges, other.edges)))


class PaddedBatch:
    """Memory of one shape that batches are copied into. A model takes it as it takes them, and computes the same rows of seeds.

    Nodes keep their local ids, so nothing is renumbered. Rows of a layer beyond those that a batch has there have no entries: they
    are finite, nobody reads them, and their gradients are zero.
    """

    def __init__(self, shape: Shape, like: Any, *, in_place: bool = True) -> None:
        self.shape, device = shape, like.n_id.device
        total = shape.nodes[-1]
        self.index, self.batch_size = 0, shape.nodes[0]
        self.n_id = torch.zeros(total, dtype=like.n_id.dtype, device=device)
        self.indices = torch.zeros(shape.edges[-1], dtype=torch.int32, device=device)
        self.table: Tensor | None = like.table if in_place else None  # rows are read from it by id, where a model can
        self.x: Tensor | None = None
        if self.table is None and like.x is not None:
            self.x = torch.zeros((total, *like.x.shape[1:]), dtype=like.x.dtype, device=device)
        self.y = None if like.y is None else torch.zeros_like(like.y)
        self.degree: Tensor | None = None
        self.blocks = tuple(
            Block(torch.zeros(rows + 1, dtype=torch.int64, device=device), self.indices[:edges], sources)
            for rows, edges, sources in zip(shape.nodes, shape.edges, shape.nodes[1:], strict=False)
        )

    @classmethod
    def for_model(cls, shape: Shape, like: Any, model: nn.Module) -> PaddedBatch:
        """Memory for what a model's layers ask of a batch."""
        batch = cls(shape, like, in_place=bool(getattr(model, "reads_table", False)))
        if any(getattr(module, "wants_degree", False) for module in model.modules()):
            batch.keep_degrees(like)
        return batch

    def keep_degrees(self, batch: Any) -> None:
        """Make room for degrees, for layers that ask for them."""
        self.degree = torch.zeros(len(self.n_id), dtype=batch.degree.dtype, device=self.n_id.device)

    def rehearse(self, batch: Any) -> None:
        """The same as `fill`: a step of theirs leaves nothing behind but gradients."""
        self.fill(batch)

    def fill(self, batch: Any) -> None:
        """Copy a batch in; nothing waits for the device."""
        sample: Sample = batch.sample
        nodes = sample.nodes.numel()
        self.n_id[:nodes].copy_(sample.nodes)
        self.indices[: sample.num_edges].copy_(sample.indices)
        for block, rows in zip(self.blocks, accumulate(sample.num_sampled_nodes), strict=False):
            block.indptr[: rows + 1].copy_(sample.indptr[: rows + 1])
            block.indptr[rows + 1 :].copy_(sample.indptr[rows : rows + 1].expand(block.num_dst - rows))
        if self.x is not None:
            self.x[:nodes].copy_(batch.x)
        if self.y is not None:
            self.y.copy_(batch.y)
        if self.degree is not None:
            self.degree[:nodes].copy_(batch.degree)
