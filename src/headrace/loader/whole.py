"""`WholeBatch`: a whole dataset as one batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headrace.graph import Dataset, Graph
from headrace.nn import FirstSum
from headrace.nn.first_sum import Keep

if TYPE_CHECKING:
    from torch_geometric.data import Data


@dataclass(eq=False)
class WholeBatch:
    """A whole dataset as one batch, for models of `layers` layers: every node is a seed and every block is the graph.

    uses: how many times models will be given this batch (epochs, and validations among them). The more, the sooner it pays to
        keep the first layer's sums of the features, which are then made once (`first_sum`); `keep_sum` decides it instead.
    """

    data: Dataset
    layers: int
    index: int = 0
    uses: int = field(default=1, kw_only=True)
    keep_sum: Keep = field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        self.first_sum = FirstSum(self.uses, keep=self.keep_sum)

    @property
    def device(self) -> torch.device:
        """Where graph, rows and labels lie."""
        return self.data.graph.device

    @property
    def n_id(self) -> Tensor:
        return torch.arange(self.data.num_nodes, device=self.device)

    @property
    def blocks(self) -> tuple[Graph, ...]:
        return (self.data.graph,) * self.layers

    @property
    def batch_size(self) -> int:
        return self.data.num_nodes

    @property
    def x(self) -> Tensor | None:
        return self.data.x

    @property
    def y(self) -> Tensor | None:
        return self.data.y

    @property
    def table(self) -> None:
        """None: `x` itself is the array, in order."""
        return None

    @property
    def degree(self) -> Tensor:
        return self.data.graph.degrees(loops=False)

    def to(self, device: str | torch.device) -> WholeBatch:
        """The same on a device: graph (its weights too), rows and labels are moved, once; the graph's copy is kept by the graph."""
        device = torch.device(device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if device == self.device:
            return self
        graph = self.data.graph
        moved = graph.derived(f"on {device}", lambda: graph.to(device))
        x, y = (None if rows is None else rows.to(device) for rows in (self.data.x, self.data.y))
        return replace(self, data=replace(self.data, graph=moved, x=x, y=y))

    def to_pyg(self) -> Data:
        """The same as a PyG `Data`."""
        from torch_geometric.data import Data

        fields = {"x": self.x, "y": self.y, "edge_index": self.data.graph.edge_index(), "n_id": self.n_id}
        data = Data(**{name: value for name, value in fields.items() if value is not None})
        data.num_nodes, data.batch_size = self.data.num_nodes, self.batch_size
        return data
