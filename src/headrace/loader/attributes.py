"""Weights and times that a loader draws by: from PyG's keywords, and ours, to a graph that has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from headrace._arrays import as_times
from headrace.graph import Dataset, Graph

Temporal = Literal["uniform", "last"]


@dataclass(frozen=True)
class Attributes:
    """The keywords, as given: `weight_attr`, `time_attr`, `temporal_strategy` and `input_time` are PyG's."""

    weighted: bool
    weight_attr: str | None
    temporal: Temporal | None
    time_attr: str | None
    temporal_strategy: Any
    input_time: Any | None

    def __post_init__(self) -> None:
        strategy = getattr(self.temporal_strategy, "value", self.temporal_strategy)
        if strategy not in ("uniform", "last"):
            raise ValueError(f"temporal_strategy must be 'uniform' or 'last', not {strategy!r}")
        if strategy != "uniform" and self.temporal not in (None, strategy):
            raise ValueError(f"temporal={self.temporal!r} and temporal_strategy={strategy!r} say different things: give one")
        if self.strategy is None and (strategy != "uniform" or self.input_time is not None):
            raise ValueError("input_time and temporal_strategy are for temporal sampling: say by time_attr= where times stand")

    @property
    def strategy(self) -> Temporal | None:
        """How to draw from the past, or None to draw from all edges."""
        if self.temporal is not None or self.time_attr is None:
            return self.temporal
        chosen: Temporal = getattr(self.temporal_strategy, "value", self.temporal_strategy)
        return chosen

    @property
    def by_weight(self) -> bool:
        return self.weighted or self.weight_attr is not None

    def graph_of(self, data: Dataset | Graph) -> Graph:
        """The graph of a dataset, in order of time where it is sampled by time."""
        for name, attribute, only in (("weight_attr", self.weight_attr, "weight"), ("time_attr", self.time_attr, "time")):
            if attribute not in (None, only):
                raise ValueError(f"{name} must be {only!r}, which stands for graph.{only}, not {attribute!r}")
        graph = data.graph if isinstance(data, Dataset) else data
        return graph if self.strategy is None else graph.sorted_by_time()

    def graph_of_pyg(self, data: Any, *, threads: int) -> Graph:
        """The graph of a PyG `Data` with the attributes it is sampled by. A node's time is that of the edges out of it."""
        from headrace.sample.pyg import graph_of

        if self.by_weight and self.weight_attr is None:
            raise ValueError("weighted=True needs weight_attr=, the name of the edge attribute to draw by")
        if self.strategy is not None and self.time_attr is None:
            raise ValueError("temporal= needs time_attr=, the name of the node or edge attribute that holds times")
        weight = None
        if self.weight_attr is not None:
            if self.weight_attr not in data or not data.is_edge_attr(self.weight_attr):
                raise ValueError(f"weight_attr names {self.weight_attr!r}, which is no edge attribute of the data")
            weight = data[self.weight_attr]
        if self.time_attr is None:
            return graph_of(data, weight=weight, threads=threads)
        time = {"node_time" if self._on_nodes(data) else "edge_time": data[self.time_attr]}
        return graph_of(data, weight=weight, **time, threads=threads).sorted_by_time()

    def seed_times(self, data: Any, nodes: Tensor) -> Tensor | None:  # [input nodes]
        """The time of every input node: `input_time`, or its own where nodes have times."""
        if self.strategy is None:
            return None
        if self.input_time is not None:
            return input_times(self.input_time, nodes)
        if isinstance(data, (Dataset, Graph)) or not self._on_nodes(data):
            raise ValueError("temporal sampling needs input_time=, one time for every input node: only edges have times here")
        return as_times(torch.as_tensor(data[self.time_attr]), str(self.time_attr))[nodes]

    def _on_nodes(self, data: Any) -> bool:
        if self.time_attr in data and (data.is_node_attr(self.time_attr) or data.is_edge_attr(self.time_attr)):
            return bool(data.is_node_attr(self.time_attr))
        raise ValueError(f"time_attr names {self.time_attr!r}, which is neither a node nor an edge attribute of the data")


def input_times(input_time: Any, nodes: Tensor) -> Tensor:  # -> [input nodes]
    """`input_time` as a tensor, after a check that every input node has one."""
    times = as_times(input_time, "input_time")
    if len(times) != len(nodes):
        raise ValueError(f"input_time has {len(times)} entries for {len(nodes)} input nodes")
    return times
