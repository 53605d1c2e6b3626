"""Random knowledge graphs: triples of a power law, with communities that relations lead between, so that ranks can be learnt."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from headrace import _native
from headrace._arrays import thread_count
from headrace._memory import require_memory
from headrace.graph.dataset import Dataset
from headrace.graph.graph import Graph

_WORDS = range(3)  # random words of an edge: community and relation, both ends, what is not by rule
MOST_EXPONENT = 1000  # of a power law: beyond it all are alike
_CHUNK = 1 << 14  # edges made at a time, in the cache of a core; which edges these are is part of what a seed means


def knowledge(
    nodes: int,
    edges: int,
    relations: int = 1,
    *,
    communities: int | None = None,
    structure: float = 0.9,
    exponent: float = 2.5,
    splits: tuple[float, float, float] = (0.9, 0.05, 0.05),
    seed: int = 0,
    threads: int | None = None,
) -> Dataset:
    """Exactly `edges` triples (head, relation, tail) in int32, in the splits train, valid and test of `extra`.

    Nodes are in `communities` of about equal size (the root of `nodes` by default) on a circle. A share `structure` of the edges
    leads from the head's community to the one `relation` places on, a rotation, which complex and rotate can express; the others
    lead anywhere. Within a community the k-th node is the end of an edge as often as a power law with `exponent` has it, and
    relation k comes up about as often as 1 / k. Communities and well-known nodes are scattered over the ids. Loops and repeated
    edges are as rare as chance has them, and stay.

    The result is a function of the arguments, not of `threads`. Memory is that of the triples and a few megabytes a thread. The
    dataset's graph has the nodes and no edges: link prediction reads triples.

    >>> import headrace as hr
    >>> data = hr.generate.knowledge(nodes=1000, edges=20_000, relations=5, seed=1)
    >>> data.num_nodes, tuple(data.extra["train"].shape), tuple(data.extra["test"].shape)
    (1000, (18000, 3), (1000, 3))
    """
    communities = max(math.isqrt(nodes), 1) if communities is None and nodes > 0 else communities
    _check(nodes, edges, relations, communities, structure, exponent, splits, seed)
    require_memory(8 * nodes + 12 * edges, f"a graph of {nodes} nodes and {edges} edges", "generate a smaller one")
    assert communities is not None
    triples = np.empty((edges, 3), np.int32)
    chunk = _Chunk(nodes, relations, communities, structure, exponent, seed, triples)
    _each(chunk, range(0, edges, _CHUNK), thread_count(threads))
    ends = [min(round(sum(splits[:i]) * edges), edges) for i in range(4)]
    rows = torch.from_numpy(triples)
    return Dataset(
        Graph.from_edges([], [], nodes),
        extra={name: rows[ends[i] : ends[i + 1]] for i, name in enumerate(("train", "valid", "test"))},
        info={
            "name": "knowledge",
            "num_relations": relations,
            "communities": communities,
            "structure": structure,
            "exponent": exponent,
            "seed": seed,
        },
    )


class _Chunk:
    """Fills in the edges of one chunk: node ids are an affine scatter of (community, place in it)."""

    def __init__(
        self,
        nodes: int,
        relations: int,
        communities: int,
        structure: float,
        exponent: float,
        seed: int,
        out: NDArray[np.int32],  # [edges, 3]
    ) -> None:
        self.nodes, self.relations, self.communities, self.seed, self.out = nodes, relations, communities, seed, out
        self.by_rule = round(structure * 2**32)
        self.power = (exponent - 1) / (exponent - 2)  # place k of n is drawn as n * u ** power: its share falls as a power of k
        self.step = _step(nodes)
        self.shift = int(_native.random_words(seed, 0, _native.Purpose.knowledge, 1, 1)[0] % np.uint64(nodes))

    def __call__(self, begin: int) -> None:
        size = min(_CHUNK, len(self.out) - begin)
        chunk = begin // _CHUNK + 1
        where, ends, free = (self._halves(chunk * len(_WORDS) + word, size) for word in _WORDS)
        count = self.communities
        relation = np.exp(_uniform(where[1]) * math.log(self.relations + 1)).astype(np.int64) - 1
        np.clip(relation, 0, self.relations - 1, out=relation)
        from_ = where[0] * np.uint64(count) >> np.uint64(32)
        anywhere = free[1] * np.uint64(count) >> np.uint64(32)
        ruled = free[0] < np.uint64(self.by_rule)
        to = np.where(ruled, (from_.astype(np.int64) + relation) % count, anywhere.astype(np.int64))
        out = self.out[begin : begin + size]
        out[:, 0], out[:, 1], out[:, 2] = self._node(from_.astype(np.int64), ends[0]), relation, self._node(to, ends[1])

    def _halves(self, stream: int, size: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        words = _native.random_words(self.seed, stream, _native.Purpose.knowledge, size, 1)
        return words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)

    def _node(self, community: NDArray[np.int64], word: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The id of a node of each community, well-known ones more often."""
        first = community * self.nodes // self.communities
        size = (community + 1) * self.nodes // self.communities - first
        place = (size * _uniform(word) ** self.power).astype(np.int64)
        scattered: NDArray[np.int64] = ((first + np.minimum(place, size - 1)) * self.step + self.shift) % self.nodes
        return scattered


def _uniform(half: NDArray[np.uint64]) -> NDArray[np.float64]:
    return half.astype(np.float64) * 2.0**-32


def _step(nodes: int) -> int:
    """The distance of neighbors after the scatter: near the golden section, and prime to the number of nodes."""
    step = max(int(nodes * 0.6180339887), 1)
    while math.gcd(step, nodes) != 1:
        step += 1
    return step


def _each(work: Callable[[int], None], items: range, threads: int) -> None:
    if threads == 1 or len(items) < 2:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        for _ in pool.map(work, items):  # so that errors are seen
            pass


def _check(
    nodes: int,
    edges: int,
    relations: int,
    communities: int | None,
    structure: float,
    exponent: float,
    splits: tuple[float, float, float],
    seed: int,
) -> None:
    if not 1 <= nodes < 2**31:
        raise ValueError(f"nodes must be from 1 to 2**31 - 1, which int32 holds, not {nodes}")
    if edges < 0:
        raise ValueError(f"edges must not be negative, got {edges}")
    if not 1 <= relations < 2**24:
        raise ValueError(f"relations must be from 1 to 2**24 - 1, not {relations}")
    if communities is None or not 1 <= communities <= nodes:
        raise ValueError(f"communities must be from 1 to the number of nodes, {nodes}, not {communities}")
    if not 0 <= structure <= 1:
        raise ValueError(f"structure must be from 0 to 1, not {structure}")
    if not 2 < exponent <= MOST_EXPONENT:
        raise ValueError(f"exponent must be above 2, or the mean degree is not finite, and at most {MOST_EXPONENT}; got {exponent}")
    if len(splits) != 3 or not min(splits) >= 0 or not abs(sum(splits) - 1) <= 1e-9:
        raise ValueError(f"splits must be three shares (train, valid, test) that add up to 1, not {splits}")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must be from 0 to 2**64 - 1, not {seed}")
