"""Which nodes a loader starts from, and in which order: a function of (input nodes, seed, epoch)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids
from headrace.loader.shard import Shard


@dataclass(frozen=True)
class Order:
    """An order of inputs that the user decides, as for torch's `DataLoader`: one of the two gives positions of inputs.

    `sampler` gives one position after the other, `batch_sampler` those of one batch after the other.
    """

    sampler: Iterable[Any] | None = None
    batch_sampler: Iterable[Any] | None = None

    @classmethod
    def of(cls, sampler: Any, batch_sampler: Any, *, batch_size: int, shuffle: bool, drop_last: bool) -> Order | None:
        """From what a loader is passed, or None where it is neither."""
        if sampler is None and batch_sampler is None:
            return None
        if sampler is not None and (shuffle or batch_sampler is not None):
            raise ValueError("sampler decides the order of inputs, so shuffle and batch_sampler must be left out")
        if batch_sampler is not None and (shuffle or drop_last or batch_size != 1):
            raise ValueError("batch_sampler decides the batches, so batch_size, shuffle and drop_last must be left out")
        return cls(sampler, batch_sampler)


@dataclass(frozen=True)
class Seeds:
    """Input nodes and the id each is reported under, in batches that are dealt to ranks."""

    nodes: Tensor
    input_id: Tensor
    batch_size: int
    shuffle: bool
    drop_last: bool
    seed: int
    shard: Shard = field(default_factory=Shard)
    order: Order | None = None

    @property
    def num_batches(self) -> int:
        """Batches of an epoch, over all ranks."""
        if self.order is not None and self.order.batch_sampler is not None:
            return len(self.order.batch_sampler)  # type: ignore[arg-type]
        inputs = len(self.nodes) if self.order is None else len(self.order.sampler)  # type: ignore[arg-type]
        whole, rest = divmod(inputs, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __len__(self) -> int:
        """Batches of an epoch that this rank makes."""
        return self.shard.count(self.num_batches)

    def batches(self, epoch: int, first: int = 0) -> Iterator[tuple[int, Tensor]]:
        """This rank's batches from position `first` of the list of all ranks on: (index of the batch, positions of its seeds)."""
        if self.order is None:
            return self._batches(epoch, first)
        # Drawn here, in the consumer's thread: samplers of torch read its global generator.
        if self.order.batch_sampler is not None:
            listed = [self._positions(batch) for batch in self.order.batch_sampler]
        else:
            assert self.order.sampler is not None
            listed = list(self._positions(list(self.order.sampler)).split(self.batch_size))
        if self.drop_last and listed and len(listed[-1]) < self.batch_size:
            listed.pop()
        return ((index, listed[index]) for index in self.shard.indices(len(listed), first))

    def _positions(self, order: Any) -> Tensor:
        """Positions from a sampler of the user's own, after a check that they are of inputs."""
        positions, count = as_ids(order, "the positions of sampler or batch_sampler", dtype=torch.int64), len(self.nodes)
        low, high = _native.id_range(positions, 1)
        if low < 0 or high >= count:
            raise IndexError(f"sampler gives positions from {low} to {high}, but there are {count} inputs")
        return positions

    def _batches(self, epoch: int, first: int) -> Iterator[tuple[int, Tensor]]:
        order = torch.arange(len(self.nodes))
        if self.shuffle:
            words = _native.random_words(self.seed, epoch, _native.Purpose.shuffle, len(self.nodes), 1)
            order = torch.from_numpy(words.argsort(kind="stable"))
        for index in self.shard.indices(self.num_batches, first):
            yield index, order[index * self.batch_size : (index + 1) * self.batch_size]


def input_nodes_of(input_nodes: Any, num_nodes: int, splits: dict[str, Tensor] | None) -> tuple[Tensor, Tensor]:
    """Input nodes and their input ids from what PyG allows: None, a mask, indices, or a pair of a node type and those.

    As in PyG, the input id of a masked node is the node, of a listed one its position. A headrace `Dataset` also takes the
    name of one of its splits.
    """
    if isinstance(input_nodes, tuple) and len(input_nodes) == 2 and (input_nodes[0] is None or isinstance(input_nodes[0], str)):
        kind, input_nodes = input_nodes
        if kind is not None:
            raise ValueError(f"input_nodes names the node type {kind!r}, but this graph has only one kind of node")
    if input_nodes is None:
        nodes = torch.arange(num_nodes)
        return nodes, nodes
    if isinstance(input_nodes, str):
        if not splits or input_nodes not in splits:
            raise ValueError(f"there is no split {input_nodes!r}: input_nodes may be one of {sorted(splits or ())}")
        input_nodes = splits[input_nodes]
    mask = torch.as_tensor(input_nodes)
    if mask.dtype == torch.bool:
        if mask.shape != (num_nodes,):
            raise ValueError(f"input_nodes is a mask of shape {tuple(mask.shape)} for {num_nodes} nodes")
        nodes = mask.nonzero().flatten()
        return nodes, nodes
    nodes = as_ids(input_nodes, "input_nodes", dtype=torch.int64)
    low, high = _native.id_range(nodes, 1)
    if low < 0 or high >= num_nodes:
        raise ValueError(f"input_nodes holds ids from {low} to {high}, but the graph has nodes 0 to {num_nodes - 1}")
    return nodes, torch.arange(len(nodes))


def input_ids_of(input_id: Any, otherwise: Tensor) -> Tensor:  # -> [inputs]
    """The id that each input is reported under: `input_id`, where the user has their own, or `otherwise`."""
    if input_id is None:
        return otherwise
    ids = as_ids(input_id, "input_id", dtype=torch.int64)
    if len(ids) != len(otherwise):
        raise ValueError(f"input_id has {len(ids)} entries for {len(otherwise)} inputs")
    return ids
