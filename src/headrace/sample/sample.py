"""`Sample` and `Block`: what a sampler returns."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import check_apart


@dataclass(frozen=True, eq=False)
class Block:
    """One bipartite hop in compressed rows: row i lists the sampled in-neighbors of node i of the sample.

    Targets are the first `num_dst` nodes of the sample and sources the first `num_src`, so the targets' own rows are a prefix of
    the sources'. A model walks the blocks from the last to the first: `x = conv(x, block)` turns num_src rows into num_dst.
    """

    indptr: Tensor
    indices: Tensor
    num_src: int
    degree: Tensor | None = None  # of the sources in the whole graph, loops not counted, where a layer asks for it (GCN)
    permutation: None = None
    first: int = 0  # row i is of source first + i

    @property
    def num_dst(self) -> int:
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.indices.numel()

    def to(self, device: str | torch.device) -> Block:
        """The block on a device."""
        degree = None if self.degree is None else self.degree.to(device)
        return dataclasses.replace(self, indptr=self.indptr.to(device), indices=self.indices.to(device), degree=degree)

    def __repr__(self) -> str:
        return f"Block({self.num_src} -> {self.num_dst}, num_edges={self.num_edges})"


@dataclass(frozen=True, eq=False)
class Sample:
    """The sampled neighborhood of a batch of seeds.

    `nodes` are global ids: the seeds as given, then what each hop added, in order of first appearance. All sampled edges are one
    CSR over local ids, with one row per expanded node; each hop's edges are a range of its rows. Where trees are disjoint, a node
    stands once for each tree it is in; where hops go by the times of edges, once for each edge.
    """

    nodes: Tensor
    indptr: Tensor  # int64, [expanded nodes + 1]
    indices: Tensor  # int32, [edges], local ids
    num_sampled_nodes: tuple[int, ...]  # seeds, then the nodes each hop added
    num_sampled_edges: tuple[int, ...]  # edges each hop drew
    edge_id: Tensor | None = None  # [edges], if asked for
    tree: Tensor | None = None  # int32, [nodes], where every seed grows a tree of its own: the position of that seed
    edge_time: Tensor | None = None  # [edges], if asked for

    @property
    def num_seeds(self) -> int:
        return self.num_sampled_nodes[0]

    @property
    def num_edges(self) -> int:
        return self.indices.numel()

    @property
    def nbytes(self) -> int:
        return sum(
            a.nbytes for a in (self.nodes, self.indptr, self.indices, self.edge_id, self.tree, self.edge_time) if a is not None
        )

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """One block per hop, the seeds' hop first. Views of the one CSR: the block of hop h holds the rows of all nodes found
        before hop h + 1, which is what the layer that computes them needs."""
        blocks: list[Block] = []
        rows = edges = 0
        for nodes, drawn in zip(self.num_sampled_nodes, self.num_sampled_edges, strict=False):
            rows += nodes
            edges += drawn
            sources = rows + self.num_sampled_nodes[len(blocks) + 1]
            blocks.append(Block(self.indptr[: rows + 1], self.indices[:edges], sources))
        return tuple(blocks)

    def edge_index(self, *, out: Tensor | None = None) -> Tensor:
        """Local ids of all edges as PyG writes them, hop by hop.  # -> [2, edges], int64"""
        if out is None:
            out = torch.empty(2, self.num_edges, dtype=torch.int64, device=self.indices.device)
        if out.device.type != "cpu":
            check_apart(out, indptr=self.indptr, indices=self.indices)
            rows = torch.arange(self.indptr.numel() - 1, device=out.device)
            out[0] = self.indices
            out[1] = torch.repeat_interleave(rows, self.indptr.diff(), output_size=self.num_edges)
            return out
        _native.expand_csr(self.indptr, self.indices, out, 1)
        return out

    @property
    def device(self) -> torch.device:
        return self.nodes.device

    def to(self, device: str | torch.device) -> Sample:
        """The sample on a device. From page-locked memory the copies are not waited for."""
        held = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        unwaited = torch.device(device).type != "cpu"  # to the host, nobody would wait for them
        moved: dict[str, Any] = {name: value.to(device, non_blocking=unwaited) for name, value in held.items()}
        return dataclasses.replace(self, **moved)

    def __repr__(self) -> str:
        return f"Sample(seeds={self.num_seeds}, nodes={self.nodes.numel()}, edges={'+'.join(map(str, self.num_sampled_edges))})"
