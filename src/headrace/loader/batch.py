"""`Batch`: what flows to the model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor

from headrace.sample import Block, Sample
from headrace.store import Store

if TYPE_CHECKING:
    from torch_geometric.data import Data


@dataclass(eq=False)
class Batch:
    """A sample with its rows and labels.

    `x` is gathered when it is first asked for, unless the loader gathers ahead. A model that reads rows by global id
    (`kernels.aggregate(..., ids=batch.n_id)`) never asks.
    """

    sample: Sample
    input_id: Tensor  # position of each seed among the loader's input nodes (the node itself, if they were a mask)
    rows: Store | None = None
    labels: Store | None = None
    index: int = 0  # of the batch in its epoch

    @property
    def n_id(self) -> Tensor:
        """Global ids of all sampled nodes, seeds first."""
        return self.sample.nodes

    @property
    def e_id(self) -> Tensor | None:
        """Ids of all sampled edges, if the loader was asked for them."""
        return self.sample.edge_id

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One block per hop, the seeds' first; a model walks them from the last to the first."""
        return self.sample.blocks

    @property
    def batch_size(self) -> int:
        """The number of seeds."""
        return self.sample.num_seeds

    @cached_property
    def x(self) -> Tensor | None:
        """Features of all sampled nodes.  # [nodes, d]"""
        return None if self.rows is None else self.rows.gather(self.n_id)

    @cached_property
    def y(self) -> Tensor | None:
        """Labels of the seeds.  # [batch_size]"""
        return None if self.labels is None else self.labels.gather(self.n_id[: self.batch_size])

    def to_pyg(self) -> Data:
        """The same as a PyG `Data`, with PyG's fields: `y` then holds the labels of all sampled nodes, as PyG's loader gives."""
        from torch_geometric.data import Data

        fields: dict[str, Any] = {
            "x": self.x,
            "edge_index": self.sample.edge_index(),
            "y": None if self.labels is None else self.labels.gather(self.n_id),
            "n_id": self.n_id.long(),
            "input_id": self.input_id,
            "batch_size": self.batch_size,
            "num_sampled_nodes": list(self.sample.num_sampled_nodes),
            "num_sampled_edges": list(self.sample.num_sampled_edges),
        }
        if self.e_id is not None:
            fields["e_id"] = self.e_id.long()
        data = Data(**{name: value for name, value in fields.items() if value is not None})
        data.num_nodes = self.n_id.numel()
        return data

    def __repr__(self) -> str:
        return f"Batch({self.index}, {self.sample})"
