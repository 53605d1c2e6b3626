"""`SharedNegatives`: nodes that all edges of a chunk take for negatives, so that scores are one product of two matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids_near, thread_count
from headrace._memory import require_memory
from headrace.sample.sampler import check_seed
from headrace.sample.weights import node_weights

Ranges = Sequence[tuple[int, int]]


class NumberedEdges(NamedTuple):
    """Edges with their negatives: `nodes` are the heads, the tails and the negatives, and `ids[place]` are they too."""

    relation: Tensor  # [b]
    nodes: Tensor  # [2 b + chunks * amount]
    ids: Tensor  # [u], none twice
    place: Tensor  # [2 b + chunks * amount]


class SharedNegatives:
    """Draws `amount` nodes for each of `chunks` parts of a batch (Lerer et al., "PyTorch-BigGraph", MLSys 2019).

    degree_fraction: this share of them are ends of the batch's own edges, so nodes come up as often as they have edges; 1 is
        in-batch sampling. The rest are drawn from all nodes: uniformly, or by `weight`, one number per node.

    Negatives are where the ends are, on the CPU or on a GPU. A draw is Philox of (seed, epoch, batch, slot). Where only some nodes
    are at hand, the buffer of a table on disk, `ranges` of ids restrict it to those: negatives then come from the partitions that
    are resident, not from all nodes.

    >>> import headrace as hr
    >>> sampler = hr.sample.SharedNegatives(100, amount=5, chunks=2, seed=1)
    >>> sampler.sample([1, 2, 3, 4], [5, 6, 7, 8], epoch=0, batch=3).shape
    torch.Size([2, 5])
    >>> ids = sampler.sample([1, 2], [5, 6], epoch=0, batch=3, ranges=[(0, 10), (50, 60)])
    >>> bool(((ids < 10) | ((ids >= 50) & (ids < 60))).all())
    True
    """

    def __init__(
        self,
        num_nodes: int,
        *,
        amount: int,
        chunks: int = 1,
        degree_fraction: float = 0.0,
        weight: Any | None = None,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        if num_nodes < 1 or amount < 1 or chunks < 1:
            raise ValueError(f"num_nodes, amount and chunks must be at least 1, not {num_nodes}, {amount} and {chunks}")
        require_memory(8 * amount * chunks, f"amount {amount} in {chunks} chunks", "draw fewer")
        if not 0 <= degree_fraction <= 1:
            raise ValueError(f"degree_fraction must be from 0 to 1, not {degree_fraction}")
        check_seed(seed)
        self.num_nodes, self.amount, self.chunks, self.seed = num_nodes, amount, chunks, seed
        self.from_batch = round(amount * degree_fraction)
        self.threads = thread_count(threads)
        self._weight = None if weight is None else node_weights(weight, num_nodes, "weight")
        self._of_ranges: tuple[tuple[tuple[int, int], ...], Tensor, Tensor, Tensor | None] | None = None

    def sample(
        self, head: Any, tail: Any, *, epoch: int = 0, batch: int = 0, ranges: Ranges | None = None, chunks: int | None = None
    ) -> Tensor:  # [b], [b] -> [chunks, amount]
        """Negatives of a batch whose edges have these ends, the batch's own first in each chunk; `chunks` where it has fewer."""
        chunks = self.chunks if chunks is None else chunks
        where = head.device if isinstance(head, Tensor) else torch.device("cpu")
        ends = torch.cat([as_ids_near(head, "head", where).long(), as_ids_near(tail, "tail", where).long()])
        if self.from_batch and not len(ends):
            raise ValueError("a batch without edges has no ends to draw from: use degree_fraction 0")
        drawn = torch.from_numpy(_native.shared_negatives(len(ends), **self._draws(epoch, batch, chunks, ranges)))
        ids = drawn.view(chunks, self.amount)
        ids = ids if where.type == "cpu" else ids.pin_memory().to(where, non_blocking=True)
        if self.from_batch:
            own = ids[:, : self.from_batch]
            own.copy_(ends.index_select(0, own.flatten()).view(own.shape))
        return ids

    def of_edges(
        self,
        triples: Tensor,
        positions: Tensor,
        *,
        epoch: int = 0,
        batch: int = 0,
        ranges: Ranges | None = None,
        chunks: int | None = None,
        ascending: bool = False,
    ) -> NumberedEdges:  # [e, 3], [b]
        """Those edges of a list, with their negatives, and a number for each node: in the order that they first come in, or
        `ascending`, as always on a GPU.

        >>> import headrace as hr, torch
        >>> sampler = hr.sample.SharedNegatives(100, amount=5, degree_fraction=1.0)
        >>> edges = sampler.of_edges(torch.tensor([[7, 0, 3], [9, 1, 7]]), torch.tensor([1, 0]))
        >>> edges.relation, edges.ids, edges.place[:4]
        (tensor([1, 0]), tensor([9, 7, 3]), tensor([0, 1, 1, 2]))
        """
        chunks = self.chunks if chunks is None else chunks
        if triples.is_cpu:
            *arrays, count = _native.numbered_edges(triples.numpy(), positions.numpy(), **self._draws(epoch, batch, chunks, ranges))
            relation, nodes, ids, place = map(torch.from_numpy, arrays)
            ids = ids[:count]
            if ascending:
                ids, order = ids.sort()
                place = order.argsort()[place]
            return NumberedEdges(relation, nodes, ids, place)
        head, relation, tail = triples.index_select(0, positions).long().unbind(1)
        drawn = self.sample(head, tail, epoch=epoch, batch=batch, ranges=ranges, chunks=chunks)
        nodes = torch.cat([head, tail, drawn.flatten()])
        return NumberedEdges(relation.contiguous(), nodes, *torch.unique(nodes, return_inverse=True))

    def _draws(self, epoch: int, batch: int, chunks: int, ranges: Ranges | None) -> dict[str, Any]:
        """The arguments of a native draw."""
        starts, before, cumulative = self._domain(ranges)
        return {
            "seed": self.seed,
            "epoch": epoch,
            "batch": batch,
            "chunks": chunks,
            "amount": self.amount,
            "own": self.from_batch,
            "starts": starts.numpy(),
            "before": before.numpy(),
            "cumulative": cumulative,
            "threads": self.threads,
        }

    def _domain(self, ranges: Ranges | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Where the ranges start, how many nodes come before each (and in all), and the running sums of their weights."""
        bounds = tuple((int(a), int(b)) for a, b in ranges) if ranges is not None else ((0, self.num_nodes),)
        kept = self._of_ranges
        if kept is None or kept[0] != bounds:
            bounds = _checked_ranges(bounds, self.num_nodes)
            starts = torch.tensor([a for a, _ in bounds])
            before = torch.tensor([0] + [b - a for a, b in bounds]).cumsum(0)
            cumulative = None
            if self._weight is not None:
                cumulative = torch.cat([self._weight[a:b] for a, b in bounds]).cumsum(0)
                if not float(cumulative[-1]) > 0:
                    raise ValueError(f"all nodes of the ranges {list(bounds)} have weight 0: there is nothing to draw")
            kept = self._of_ranges = (bounds, starts, before, cumulative)
        return kept[1:]


def _checked_ranges(ranges: tuple[tuple[int, int], ...], num_nodes: int) -> tuple[tuple[int, int], ...]:
    for begin, end in ranges:
        if not 0 <= begin <= end <= num_nodes:
            raise ValueError(f"ranges hold ids from 0 to {num_nodes - 1}, not {begin} to {end - 1}")
    kept = tuple(r for r in ranges if r[1] > r[0])
    if not kept:
        raise ValueError("ranges hold no node: there is nothing to draw")
    return kept
