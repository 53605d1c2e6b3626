"""`ResidentRecipe`: node classification that samples only among partitions of nodes that are in memory.

MariusGNN's way (EuroSys'23): training nodes have the lowest ids and their partitions stay, the others in memory are drawn anew
every epoch, and nothing is read within one. Reads are long and few, and accuracy pays for it: neighbors that are on disk are not
seen. Validation is exact all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace.graph import Dataset
from headrace.loader import Batch, NeighborLoader
from headrace.pipeline import StageTimes
from headrace.train.nodes.storage.disk import DiskRecipe
from headrace.train.nodes.storage.memory import slot_budget
from headrace.train.nodes.storage.residence import Residence
from headrace.train.nodes.storage.resident_data import ResidentRows, resident_graph

_PARTITIONS = 64


def training_first(train: Tensor, nodes: int, *, seed: int) -> Tensor:
    """An order of all nodes: those of `train`, then the others, both at random, so that no partition is like another.  # -> [nodes]

    >>> training_first(torch.tensor([3, 1]), 4, seed=0)[:2].sort().values.tolist()
    [1, 3]
    """
    words = torch.from_numpy(_native.random_words(seed, 0, _native.Purpose.node_order, nodes, 1).argsort(kind="stable"))
    first = torch.zeros(nodes, dtype=torch.bool)
    first[train.long()] = True
    chosen = first[words]
    return torch.cat([words[chosen], words[~chosen]])


class ResidentRecipe(DiskRecipe):
    """As `DiskRecipe`, of data whose training nodes come first; batches have only edges between resident nodes."""

    resident: ResidentRows | None = None
    epoch_loader: NeighborLoader | None = None
    places: dict[int, int]
    epoch = 0

    @cached_property
    def size(self) -> int:
        """Nodes of a partition."""
        return -(-self.data.num_nodes // (self.options.partitions or _PARTITIONS))

    @cached_property
    def residence(self) -> Residence:
        """What fits into the memory: as many partitions as possible, and some slots to read ahead into."""
        data, options = self.data, self.options
        partitions = -(-data.num_nodes // self.size)
        pinned = int(self.train_nodes.max()) // self.size + 1
        edge_bytes = data.graph.indices.nbytes // partitions  # of its rows, were all of their neighbors resident
        slots = slot_budget(
            options.memory_bytes,
            self.batch_size,
            partitions=partitions,
            pinned=pinned,
            partition_bytes=self.size * (self.features.row_bytes + 8) + edge_bytes,
            copies=not getattr(self.model, "reads_table", False) or self.device.type != "cpu",
            ahead=any(not self._validates(epoch) for epoch in range(options.epochs)),
        )
        return Residence(partitions, pinned, slots.resident, slots.spare, options.seed)

    def batches(self, epoch: int, first: int) -> Iterator[Batch | None]:
        residence = self.residence
        self.cache = None
        if self.resident is None:
            self.resident = ResidentRows(self.features, size=self.size, slots=residence.slots)
        self.epoch, self.places = epoch, residence.placed(epoch)
        self.resident.load(self.places)
        if residence.spare and not self._validates(epoch):  # before one, it would be forgotten
            self.resident.prefetch(residence.following(self.places, epoch + 1), but=self.places)
        self.epoch_loader = self._loader_over(self._resident_data(), self.train_nodes, shuffle=True, trace=self.trace, on_cpu=True)
        self.epoch_loader.resume(epoch, first)
        return iter(self.epoch_loader)

    def stages(self) -> list[StageTimes]:
        return [] if self.epoch_loader is None else self.epoch_loader.stage_times

    def _resident_data(self) -> Dataset:
        """The resident nodes. Pinned partitions are in the first slots, so training nodes have their own ids, and labels there."""
        assert self.resident is not None
        assert self.data.y is not None
        rows = self.residence.slots * self.size
        labels = self.data.y.new_zeros(rows, *self.data.y.shape[1:])
        pinned = min(self.residence.pinned * self.size, self.data.num_nodes)
        labels[:pinned] = self.data.y[:pinned]
        graph = resident_graph(self.data.graph, self.places, size=self.size, slots=self.residence.slots)
        return Dataset(graph, x=self.resident.table, y=labels)

    def _validates(self, epoch: int) -> bool:
        options = self.options
        last = epoch + 1 >= options.epochs
        return last or (options.validate != "none" and "val" in self.data.splits and (epoch + 1) % options.validate_every == 0)

    def _check_memory(self) -> None:
        self.residence  # noqa: B018 - does it fit?
        if not self.exact:
            self._budget()  # sampled validation is over the whole graph, from a cache

    def _disk_facts(self) -> dict[str, Any]:
        assert self.resident is not None
        assert self.epoch_loader is not None
        return {
            **asdict(self.resident.taken()),
            "hit_rate": 1.0,  # within an epoch every row that is asked for is there
            "resident": self.residence.resident / self.residence.partitions,
            "resident_edges": self.epoch_loader.data.num_edges / max(self.data.num_edges, 1),
            "partitions": self.residence.partitions,
            "pinned": self.residence.pinned,
        }

    def _release(self) -> None:
        super()._release()
        if self.resident is not None:
            self.resident.close()
        self.resident = self.epoch_loader = None

    def _each(self, loader: NeighborLoader) -> Iterator[Any]:
        self._release()  # a sampled validation: the cache takes the place of the partitions
        return super()._each(loader)
