"""`Neighborhoods`: whom an encoder may ask about a batch's nodes, which are neighbors by training edges that are at hand.

An edge is followed in both directions. Without partitions all training edges are at hand; with them those between nodes that are
resident, so no row is needed that is not in the buffer (Waleffe et al., "MariusGNN", EuroSys 2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headrace.graph import Graph
from headrace.sample import NeighborSampler, Sample
from headrace.train.links.batches import EdgeBatch, EdgeBatches
from headrace.train.links.options import LinkOptions

_PIECE = 1 << 20  # edges looked at in one go


@dataclass(frozen=True)
class Numbering:
    """The ids of some ranges, ascending, numbered from 0 without gaps.

    >>> import torch
    >>> numbering = Numbering.of([(0, 3), (10, 12)])
    >>> numbering.number(torch.tensor([2, 10, 11])), numbering.ids(torch.tensor([2, 3, 4]))
    (tensor([2, 3, 4]), tensor([ 2, 10, 11]))
    """

    starts: Tensor  # [r]
    before: Tensor  # [r + 1], ids in the ranges before each, and in all

    @classmethod
    def of(cls, ranges: Sequence[tuple[int, int]]) -> Numbering:
        kept = [(begin, end) for begin, end in ranges if end > begin]
        return cls(torch.tensor([b for b, _ in kept]), torch.tensor([0, *(end - begin for begin, end in kept)]).cumsum(0))

    def __len__(self) -> int:
        return int(self.before[-1])

    def number(self, ids: Tensor) -> Tensor:  # [k] -> [k]
        """The numbers of ids, each of which must be in a range."""
        part = torch.searchsorted(self.starts, ids.long().contiguous(), right=True) - 1
        return ids - self.starts[part] + self.before[part]

    def ids(self, numbers: Tensor) -> Tensor:  # [k] -> [k]
        """The ids of numbers."""
        part = torch.searchsorted(self.before, numbers.long().contiguous(), right=True) - 1
        return numbers - self.before[part] + self.starts[part]


class Neighborhoods:
    """Samples around the targets of batches, on the CPU.

    The neighbors of a node are drawn once a batch, and every layer that needs the node uses them (DENSE): that is how
    `NeighborSampler` samples. Of what was drawn, edges between the ends of the batch's own edges are left out (`without_edges`).
    """

    def __init__(self, triples: Tensor, num_nodes: int, options: LinkOptions) -> None:
        self.triples, self.num_nodes, self.options = triples, num_nodes, options
        self._ranges: tuple[tuple[int, int], ...] | None = None
        self._numbering = Numbering.of([(0, num_nodes)])
        self._sampler: NeighborSampler | None = None

    def sample(self, targets: Tensor, edges: EdgeBatch, *, epoch: int) -> tuple[Tensor, Sample]:  # [u] -> [n], u of them targets
        """Ids of the targets, which must be resident and no two the same, and of those around them; and the sample itself."""
        sampler = self._at_hand(edges)
        numbers = self._numbering.number(targets.cpu())
        sample = sampler.sample(numbers, epoch=epoch, batch=edges.index)
        ids = self._numbering.ids(sample.nodes.long())
        head, _, tail = self.triples[edges.positions.to(self.triples.device)].cpu().long().unbind(1)
        return ids, without_edges(sample, ids, head, tail)

    def degree(self, sample: Sample) -> Tensor:  # -> [n]
        """How many neighbors at hand the nodes of the last sample have, themselves not counted."""
        assert self._sampler is not None
        return self._sampler.graph.degrees(loops=False)[sample.nodes.long()]

    def _at_hand(self, edges: EdgeBatch) -> NeighborSampler:
        """The sampler of the edges between resident nodes, made when the buffer's state is a new one."""
        if self._sampler is None or edges.ranges != self._ranges:
            self._sampler = None  # its memory is for the next one
            self._ranges = edges.ranges
            self._numbering = Numbering.of(edges.ranges or ((0, self.num_nodes),))
            if edges.resident is None:
                picked = self.triples
            else:
                picked = self.triples[edges.resident().to(self.triples.device)]
            head, tail = (self._local(picked[:, column].cpu()) for column in (0, 2))
            graph = Graph.from_edges(head, tail, len(self._numbering), undirected=True, threads=self.options.threads)
            self._sampler = sampler_of(graph, self.options.fanouts, self.options)
        return self._sampler

    def _local(self, ids: Tensor) -> Tensor:  # [e] -> [e]
        """Numbers of ids in the smallest type, some at a time: a graph's ends are many."""
        if self._ranges is None:
            return ids.contiguous()
        kind = torch.int32 if len(self._numbering) <= torch.iinfo(torch.int32).max else torch.int64
        out = torch.empty(len(ids), dtype=kind)
        for begin in range(0, len(ids), _PIECE):
            out[begin : begin + _PIECE] = self._numbering.number(ids[begin : begin + _PIECE])
        return out


def without_edges(sample: Sample, ids: Tensor, head: Tensor, tail: Tensor) -> Sample:
    """The sample less all edges between `head[i]` and `tail[i]`, which are among its seeds; its nodes, whose ids are `ids`, stay.

    An encoder that is shown the edge it is asked about learns to look for it, and edges that are not known yet cannot be found so.
    """
    if not len(head):
        return sample
    seeds, edges = sample.num_seeds, sample.num_sampled_edges[0]  # only rows of seeds have such edges
    neighbors = sample.indices[:edges]
    row = torch.repeat_interleave(torch.arange(seeds), sample.indptr[: seeds + 1].diff(), output_size=edges)
    most = int(ids.max()) + 1
    kept = ~torch.isin(_pairs(ids[row], ids[neighbors.long()], most), _pairs(head, tail, most))
    lengths = sample.indptr.diff()
    lengths[:seeds] = torch.bincount(row[kept], minlength=seeds)
    indptr = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    indices = torch.cat([neighbors[kept], sample.indices[edges:]])
    counts = (int(kept.sum()), *sample.num_sampled_edges[1:])
    return replace(sample, indptr=indptr, indices=indices, num_sampled_edges=counts)


def _pairs(one: Tensor, other: Tensor, most: int) -> Tensor:  # [k], [k] -> [k]
    return torch.minimum(one, other) * most + torch.maximum(one, other)


@dataclass(frozen=True)
class RowsOfGraph:
    """All neighbors of nodes `begin` to `end`: they are the first of `graph`, `others` come after them and have no neighbors."""

    begin: int
    end: int
    graph: Graph
    others: Tensor  # [m] ids

    def ids(self, numbers: Tensor) -> Tensor:  # [k] -> [k]
        """The ids of nodes of the graph."""
        size = self.end - self.begin
        own = numbers + self.begin
        return own if not len(self.others) else torch.where(numbers < size, own, self.others[(numbers - size).clamp_min(0)])


def rows_of_graph(deal: EdgeBatches, triples: Tensor, *, threads: int | None) -> Iterator[RowsOfGraph]:
    """The neighbors of all nodes, partition by partition: memory is that of one partition's edges."""
    if not deal.options.partitions:
        head, _, tail = triples.cpu().unbind(1)
        graph = Graph.from_edges(head, tail, deal.num_nodes, undirected=True, threads=threads)
        yield RowsOfGraph(0, deal.num_nodes, graph, torch.empty(0, dtype=torch.int64))
        return
    for partition in range(deal.options.partitions):
        begin, end = deal.rows_of(partition)
        if begin == end:
            continue
        size, away, towards = end - begin, *deal.edges_of_partition(partition)
        out, into = triples[away.to(triples.device)].cpu(), triples[towards.to(triples.device)].cpu()
        into = into[into[:, 0] != into[:, 2]]  # a loop is one edge, not two
        inside = torch.cat([out[:, 0], into[:, 2]]).sub_(begin)
        far = torch.cat([out[:, 2], into[:, 0]])
        outside = (far < begin) | (far >= end)
        others = far[outside].unique()
        place = torch.searchsorted(others, far[outside], out_int32=far.dtype == torch.int32)
        far = (far - begin).masked_scatter_(outside, place.add_(size))
        yield RowsOfGraph(begin, end, Graph.from_edges(far, inside, size + len(others), threads=threads), others.long())


def sampler_of(graph: Graph, fanouts: Sequence[int], options: LinkOptions) -> NeighborSampler:
    """A sampler by the options' seed, on the CPU."""
    return NeighborSampler(graph, fanouts, seed=options.seed, threads=options.threads, mode="cpu")


def degrees_of(triples: Tensor, num_nodes: int) -> Tensor:  # [e, 3] -> [num_nodes]
    """How many neighbors every node has in the whole training graph, itself not counted."""
    counts = torch.zeros(num_nodes, dtype=torch.int64)
    for begin in range(0, len(triples), _PIECE):
        ends = triples[begin : begin + _PIECE, ::2].cpu().long()
        ends = ends[ends[:, 0] != ends[:, 1]].flatten()
        counts.index_add_(0, ends, torch.ones_like(ends))
    return counts
