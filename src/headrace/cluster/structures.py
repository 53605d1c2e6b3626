"""`SplitStructures`: batches of a graph whose rows are split over ranks. A batch is drawn by all, and its block pushed to all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import partial

import torch
from torch import Tensor, nn

from headrace import _native
from headrace.cluster.partial import Pushed
from headrace.cluster.push_pull import Drawn
from headrace.cluster.rounds import Round
from headrace.cluster.team import Team
from headrace.cluster.topology import SplitSampler
from headrace.cluster.traffic import BLOCK_SIZES
from headrace.loader import Batch
from headrace.loader.seeds import Seeds
from headrace.sample import Block
from headrace.store import Store


class _Kind(IntEnum):
    block = 0


class SplitStructures:
    """The rounds of an epoch, drawn from a split graph (`SplitSampler`), for a `PushPull` layer.

    seeds: of this rank's batches. Everything but their order happens on the thread of the exchange, for it needs all ranks.
    """

    def __init__(
        self,
        seeds: Seeds,
        sampler: SplitSampler,
        team: Team,
        model: nn.Module,
        labels: Store | None,
        *,
        epoch: int,
        first: int,
    ) -> None:
        self._seeds, self._sampler, self._team, self._labels, self._epoch = seeds, sampler, team, labels, epoch
        self._jobs: Iterator[tuple[int, Tensor]] = seeds.batches(epoch, first)
        self._degrees = any(getattr(module, "wants_degree", False) for module in model.modules())

    def take(self, round: Round) -> Callable[[], Drawn]:
        rank = self._seeds.shard.rank
        job = None if round.batch(rank) is None else next(self._jobs)
        return partial(
            self._draw, job, [round.batch(member) for member in range(rank - self._team.place, rank)] + self._rest(round)
        )

    def _rest(self, round: Round) -> list[int | None]:
        rank, place = self._seeds.shard.rank, self._team.place
        return [round.batch(member) for member in range(rank, rank + self._team.size - place)]

    def _draw(self, job: tuple[int, Tensor] | None, batches: list[int | None]) -> Drawn:
        index, positions = (0, torch.empty(0, dtype=torch.int64)) if job is None else job
        sample = self._sampler.sample(self._seeds.nodes[positions], self._epoch, index)
        degrees = self._sampler.degrees(sample.nodes) if self._degrees else None
        own: Batch | None = None
        if job is not None:
            own = Batch(sample, self._seeds.input_id[positions], labels=self._labels, index=index)
            if degrees is not None:
                own.degree = degrees
        block = None if job is None else _with_degrees(sample.blocks[-1], degrees)
        keys = [None if b is None else _key(self._seeds.seed, self._epoch, b) for b in batches]
        return Drawn(own, pushed_blocks(self._team, sample.nodes, block, keys))

    def close(self) -> None:
        pass


def _key(seed: int, epoch: int, batch: int) -> int:
    return int(_native.stream_key(seed, epoch, batch, _native.Purpose.step))


def _with_degrees(block: Block, degrees: Tensor | None) -> Block:
    return block if degrees is None else Block(block.indptr, block.indices, block.num_src, degrees[: block.num_src])


def pushed_blocks(team: Team, nodes: Tensor, block: Block | None, keys: Sequence[int | None]) -> list[Pushed | None]:
    """Send a block to all members, and return that of each: None of those that have none. Collective."""
    own = None if block is None else Pushed(nodes, block, keys[team.place] or 0)
    exchange = team.exchange
    if exchange is None:
        return [own]
    packed = _packed(nodes, block)
    lengths = [0 if member == team.place else len(packed) for member in range(team.size)]
    _, receiving = exchange.counts("counts", _Kind.block, lengths)
    sent = torch.cat([packed[: lengths[member]] for member in range(team.size)])
    received = exchange.all_to_all("push", sent, sending=lengths, receiving=receiving).wait().split(receiving)
    pushed: list[Pushed | None] = []
    for member, words in enumerate(received):
        key = keys[member]
        pushed.append(own if member == team.place else None if key is None else _unpacked(words, nodes.dtype, key))
    return pushed


def _packed(nodes: Tensor, block: Block | None) -> Tensor:  # -> [bytes]
    if block is None:
        return torch.empty(0, dtype=torch.uint8)
    header = torch.tensor([block.num_src, block.num_dst, block.num_edges])
    degree = [] if block.degree is None else [block.degree.to(torch.int32)]
    parts = [header, nodes[: block.num_src], block.indptr.diff().to(torch.int32), block.indices.to(torch.int32), *degree]
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts])


def _unpacked(words: Tensor, ids: torch.dtype, key: int) -> Pushed:
    sources, targets, edges = words[:BLOCK_SIZES].clone().view(torch.int64).tolist()
    sizes = [BLOCK_SIZES, ids.itemsize * sources, 4 * targets, 4 * edges]
    _, nodes, counts, indices, degree = words.split([*sizes, len(words) - sum(sizes)])
    indptr = torch.zeros(targets + 1, dtype=torch.int64)
    torch.cumsum(_as(counts, torch.int32), 0, out=indptr[1:])
    known = _as(degree, torch.int32) if len(degree) else None
    return Pushed(_as(nodes, ids), Block(indptr, _as(indices, torch.int32), sources, known), key)


def _as(words: Tensor, dtype: torch.dtype) -> Tensor:
    return words.clone().view(dtype)  # a copy is aligned
