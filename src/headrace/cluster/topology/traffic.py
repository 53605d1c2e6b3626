"""Bytes that a split graph's samples and degrees cost, as functions of their sizes alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from headrace.cluster.topology.message import HEADER_BYTES
from headrace.ranks import Traffic
from headrace.sample import Sample
from headrace.store import Owners

_COUNT_BYTES = 8


@dataclass(frozen=True)
class AskedSizes:
    """What one batch asks of every rank: `nodes[h][r]`, whose neighbors rank r draws in hop h, and the `edges[h][r]` it draws."""

    nodes: tuple[tuple[int, ...], ...]
    edges: tuple[tuple[int, ...], ...]


def asked_sizes(sample: Sample, owners: Owners) -> AskedSizes:
    """The sizes of a sample that was made."""
    ends = list(accumulate(sample.num_sampled_nodes))[:-1]
    owner = owners.locate(sample.nodes[: ends[-1]])[0]
    drawn = sample.indptr.diff().double()
    nodes, edges = [], []
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        of_hop = owner[begin:end]
        nodes.append(tuple(torch.bincount(of_hop, minlength=owners.ranks).tolist()))
        edges.append(tuple(torch.bincount(of_hop, drawn[begin:end], minlength=owners.ranks).long().tolist()))
    return AskedSizes(tuple(nodes), tuple(edges))


def sample_traffic(
    batches: Sequence[Sequence[AskedSizes]], rank: int, *, hops: int, row_bytes: int = 4, id_bytes: int = 4
) -> dict[str, Traffic]:
    """Bytes that rank `rank` sends and receives in one call, `batches[r]` being those of rank r in it, by phase.

    In each hop every rank tells every other two counts of 8 bytes. For a batch with n > 0 frontier nodes at another rank, which
    take e neighbors, a question of 16 + n * row_bytes goes there, and n counts and e neighbors of id_bytes each come back.
    """
    others = [other for other in range(len(batches)) if other != rank]

    def asked(of: int, at: int) -> tuple[int, int]:
        """Bytes of the questions of one rank to another, and of their answers."""
        sizes = [(nodes[at], edges[at]) for batch in batches[of] for nodes, edges in zip(batch.nodes, batch.edges, strict=True)]
        questions = sum(HEADER_BYTES + nodes * row_bytes for nodes, _ in sizes if nodes)
        return questions, sum((nodes + edges) * id_bytes for nodes, edges in sizes)

    mine, theirs = [asked(rank, other) for other in others], [asked(other, rank) for other in others]
    counts = 2 * hops * _COUNT_BYTES * len(others)
    return {
        "counts": Traffic(counts, counts),
        "nodes": Traffic(sum(question for question, _ in mine), sum(question for question, _ in theirs)),
        "neighbors": Traffic(sum(answer for _, answer in theirs), sum(answer for _, answer in mine)),
    }


def degree_traffic(nodes: Sequence[Sequence[int]], rank: int, *, row_bytes: int = 4, id_bytes: int = 4) -> dict[str, Traffic]:
    """The same for one call of `degrees`, in which rank r asks for `nodes[r][o]` nodes of rank o."""
    others = [other for other in range(len(nodes)) if other != rank]
    mine, theirs = sum(nodes[rank][other] for other in others), sum(nodes[other][rank] for other in others)
    counts = _COUNT_BYTES * len(others)
    return {
        "counts": Traffic(counts, counts),
        "nodes": Traffic(mine * row_bytes, theirs * row_bytes),
        "degrees": Traffic(theirs * id_bytes, mine * id_bytes),
    }


def expected_sample_bytes(
    nodes: Sequence[float], edges: Sequence[float], *, ranks: int, row_bytes: int = 4, id_bytes: int = 4
) -> dict[str, float]:
    """Bytes between ranks that one batch is expected to cost where owners are hashed, by phase: for a planner.

    `nodes[h]` are the frontier nodes of hop h (the seeds first) and `edges[h]` the edges that it draws. Of both, the share
    (ranks - 1) / ranks lies elsewhere.

    >>> expected_sample_bytes([1000, 9000], [10000, 40000], ranks=4)
    {'counts': 96.0, 'nodes': 30096.0, 'neighbors': 180000.0}
    """
    away = (ranks - 1) / ranks
    return {
        "counts": 2.0 * len(nodes) * _COUNT_BYTES * (ranks - 1),
        "nodes": len(nodes) * HEADER_BYTES * (ranks - 1) + sum(nodes) * away * row_bytes,
        "neighbors": (sum(nodes) + sum(edges)) * away * id_bytes,
    }
