"""`Batch`: what flows to the model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headrace.graph import Graph
from headrace.kernels import gather
from headrace.loader.padded import PaddedBatch, Shape
from headrace.sample import Block, Sample
from headrace.store import Store

if TYPE_CHECKING:
    from torch_geometric.data import Data


class SampleFields:
    """The fields of `sample` under the names that PyG gives them."""

    sample: Sample

    @property
    def n_id(self) -> Tensor:
        """Global ids of all sampled nodes, seeds first."""
        return self.sample.nodes

    @property
    def e_id(self) -> Tensor | None:
        """Ids of all sampled edges, if the loader was asked for them."""
        return self.sample.edge_id

    @property
    def tree(self) -> Tensor | None:
        """Which seed's tree each sampled node is in, where trees are disjoint. (PyG's `batch`.)  # [nodes]"""
        return self.sample.tree

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One block per hop, the seeds' first; a model walks them from the last to the first."""
        return self.sample.blocks

    def room(self, *, spare: float = 0.0) -> Shape:
        """What a captured step needs for this batch, and the share `spare` more for others like it."""
        return Shape.of(self.sample, spare=spare)

    def padded(self, room: Shape, model: nn.Module) -> PaddedBatch:
        """Memory of one shape for batches like this one."""
        return PaddedBatch.for_model(room, self, model)


@dataclass(eq=False)
class Batch(SampleFields):
    """A sample with its rows and labels.

    `x` is gathered when it is first asked for, unless the loader gathers ahead. A model that reads rows by global id
    (`kernels.aggregate(..., ids=batch.n_id)`) never asks.
    """

    sample: Sample
    input_id: Tensor  # position of each seed among the loader's input nodes (the node itself, if they were a mask)
    rows: Store | None = None
    labels: Store | None = None
    index: int = 0  # of the batch in its epoch
    graph: Graph | None = None  # that was sampled
    seed_time: Tensor | None = None  # [batch_size], where sampling was by time

    @property
    def batch_size(self) -> int:
        """The number of seeds."""
        return self.sample.num_seeds

    @cached_property
    def x(self) -> Tensor | None:
        """Features of all sampled nodes.  # [nodes, d]"""
        return None if self.rows is None else rows_of(self.rows, self.n_id)

    @property
    def table(self) -> Tensor | None:
        """The array that `x` is gathered from, where it is one and `x` is not gathered yet: row i of `x` is `table[n_id[i]]`."""
        rows = None if self.rows is None else self.rows.table
        if "x" in self.__dict__ or rows is None or rows.device != self.n_id.device:
            return None
        return rows if rows.dim() == 2 and rows.dtype.is_floating_point else None

    @cached_property
    def degree(self) -> Tensor:
        """How many in-neighbors each sampled node has in the whole graph, itself not counted.  # [nodes]"""
        if self.graph is None:
            raise ValueError("this batch does not know its graph")
        if self.sample.num_edges and not self.graph.num_edges:
            raise ValueError("the loader's graph has no edges, but this sample has some: ask its sampler for degrees(batch.n_id)")
        if self.graph.weight is not None:
            raise ValueError(
                "sampled blocks carry no edge weights, which GCN would use: train on the whole graph, or without weights"
            )
        graph, device = self.graph, self.n_id.device
        degrees = graph.derived(f"degrees without loops on {device}", lambda: graph.degrees(loops=False).to(device))
        return gather(degrees, self.n_id, check=False)

    @cached_property
    def y(self) -> Tensor | None:
        """Labels of the seeds.  # [batch_size]"""
        return None if self.labels is None else rows_of(self.labels, self.n_id[: self.batch_size])

    def to_pyg(self) -> Data:
        """The same as a PyG `Data`, with PyG's fields: `y` then holds the labels of all sampled nodes, as PyG's loader gives."""
        from torch_geometric.data import Data

        fields: dict[str, Any] = {
            "x": self.x,
            "edge_index": self.sample.edge_index(),
            "y": None if self.labels is None else rows_of(self.labels, self.n_id),
            "n_id": self.n_id.long(),
            "input_id": self.input_id,
            "batch_size": self.batch_size,
            "num_sampled_nodes": list(self.sample.num_sampled_nodes),
            "num_sampled_edges": list(self.sample.num_sampled_edges),
            "e_id": None if self.e_id is None else self.e_id.long(),
            "batch": None if self.tree is None else self.tree.long(),
            "seed_time": self.seed_time,
        }
        data = Data(**{name: value for name, value in fields.items() if value is not None})
        data.num_nodes = self.n_id.numel()
        return data

    def to(self, device: str | torch.device) -> Batch | MovedBatch:
        """The batch on a device: blocks, rows and labels."""
        return self if torch.device(device).type == self.n_id.device.type else MovedBatch(self, torch.device(device))

    def tensors(self) -> list[Tensor]:
        """The tensors that belong to this batch alone."""
        values = [*vars(self.sample).values(), *vars(self).values()]
        return [value for value in values if isinstance(value, Tensor)]

    def __repr__(self) -> str:
        return f"Batch({self.index}, {self.sample})"


class MovedBatch(SampleFields):
    """A batch on another device: each part is moved when it is first asked for, and kept."""

    def __init__(self, batch: Batch, device: torch.device) -> None:
        self.batch, self.device, self.index, self.batch_size = batch, device, batch.index, batch.batch_size
        self.table = None

    def to(self, device: str | torch.device) -> Batch | MovedBatch:
        """The batch on a device: this one, if that is its device."""
        return self if torch.device(device).type == self.device.type else self.batch.to(device)

    def tensors(self) -> list[Tensor]:
        """The tensors that have been moved, and those of the batch before."""
        moved = [value for value in vars(self).values() if isinstance(value, Tensor)]
        if "sample" in self.__dict__:
            moved += [value for value in vars(self.sample).values() if isinstance(value, Tensor)]
        return moved + self.batch.tensors()

    @cached_property
    def sample(self) -> Sample:  # type: ignore[override]  # moved when it is first asked for
        return self.batch.sample.to(self.device)

    @property
    def input_id(self) -> Tensor:
        return self.batch.input_id

    @cached_property
    def seed_time(self) -> Tensor | None:
        return None if self.batch.seed_time is None else self.batch.seed_time.to(self.device)

    @cached_property
    def degree(self) -> Tensor:
        return self.batch.degree.to(self.device)

    @cached_property
    def x(self) -> Tensor | None:
        rows = self.batch.rows
        if rows is not None and rows.device.type == self.device.type:
            return rows.gather(self.n_id, check=False)
        if self.batch.x is None:
            return None
        return self.batch.x.to(self.device, non_blocking=self.device.type != "cpu")  # to the host, nobody would wait for it

    @cached_property
    def y(self) -> Tensor | None:
        labels = self.batch.labels
        if labels is not None and labels.device.type == self.device.type:
            return labels.gather(self.n_id[: self.batch_size], check=False)
        return None if self.batch.y is None else self.batch.y.to(self.device)


def rows_of(store: Store, ids: Tensor) -> Tensor:
    """Rows of a store for ids that are known to be valid. For ids on a GPU the rows are moved to it, wherever the store gathers."""
    if store.device == ids.device or ids.device.type == "cpu":
        return store.gather(ids, check=False)
    return store.gather(ids.to(store.device), check=False).to(ids.device)
