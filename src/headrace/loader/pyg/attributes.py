"""Weights and times that a loader draws by: from PyG's keywords, and ours, to a graph that has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from headrace._arrays import as_times
from headrace.graph import Dataset, Graph, HeteroGraph, Relation

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

        self._check_named()
        weight = None
        if self.weight_attr is not None:
            if self.weight_attr not in data or not data.is_edge_attr(self.weight_attr):
                raise ValueError(f"weight_attr names {self.weight_attr!r}, which is no edge attribute of the data")
            weight = data[self.weight_attr]
        if self.time_attr is None:
            return graph_of(data, weight=weight, threads=threads)
        time = {"node_time" if self._on_nodes(data) else "edge_time": data[self.time_attr]}
        return graph_of(data, weight=weight, **time, threads=threads).sorted_by_time()

    def typed_graph_of(self, graph: HeteroGraph) -> HeteroGraph:
        """The graph of types as it is given: its relations have their own weights and times."""
        for name, attribute, only in (("weight_attr", self.weight_attr, "weight"), ("time_attr", self.time_attr, "time")):
            if attribute not in (None, only):
                raise ValueError(f"{name} must be {only!r}, which stands for relation.{only}, not {attribute!r}")
        return graph

    def typed_graph_of_pyg(self, data: Any, *, threads: int) -> HeteroGraph:
        """The graph of a PyG `HeteroData` with the attributes it is sampled by, of those edge types that have them."""
        graph = HeteroGraph.from_pyg(data, threads=threads)
        self._check_named()
        name = self.weight_attr
        weights = {} if name is None else {t: data[t][name] for t in graph.edge_types if name in data[t]}
        if self.weight_attr is not None and not weights:
            raise ValueError(f"weight_attr names {self.weight_attr!r}, which no edge type of the data has")
        of_edges: dict[Any, Any] = {}
        of_nodes: dict[str, Tensor] = {}
        if self.time_attr is not None:
            of_nodes = self.node_times(data)
            of_edges = {t: data[t][self.time_attr] for t in graph.edge_types if self.time_attr in data[t]}
            if bool(of_nodes) == bool(of_edges):
                which = "both nodes and edges have" if of_nodes else "neither nodes nor edges of the data have"
                raise ValueError(f"time_attr names {self.time_attr!r}, which {which}")
        relations = {}
        for edge_type, relation in graph.relations.items():
            time = _beside(relation, of_edges.get(edge_type), "time_attr")
            if edge_type[0] in of_nodes:
                time = of_nodes[edge_type[0]][relation.indices.long()]
            relations[edge_type] = replace(relation, weight=_beside(relation, weights.get(edge_type), "weight_attr"), time=time)
        return HeteroGraph(graph.num_nodes, relations)

    def node_times(self, data: Any) -> dict[str, Tensor]:
        """The times of the nodes of each type that has them, by `time_attr`, of a `HeteroData`."""
        if self.time_attr is None:
            return {}
        kinds = [kind for kind in data.node_types if self.time_attr in data[kind]]
        return {kind: as_times(data[kind][self.time_attr], self.time_attr) for kind in kinds}

    def _check_named(self) -> None:
        """Raise unless the attributes of a PyG object to draw by are named."""
        if self.by_weight and self.weight_attr is None:
            raise ValueError("weighted=True needs weight_attr=, the name of the edge attribute to draw by")
        if self.strategy is not None and self.time_attr is None:
            raise ValueError("temporal= needs time_attr=, the name of the node or edge attribute that holds times")

    def typed_seed_times(self, data: Any, kind: str, nodes: Tensor) -> Tensor | None:  # [input nodes]
        """The time of every input node of type `kind`."""
        if self.strategy is None:
            return None
        if self.input_time is not None:
            return input_times(self.input_time, nodes)
        own: Mapping[str, Tensor] = {} if isinstance(data, HeteroGraph) else self.node_times(data)
        if kind not in own:
            raise ValueError(f"temporal sampling needs input_time=, one time for every input node: {kind!r} nodes have no times")
        return own[kind][nodes]

    def own_times(self, data: Any) -> Tensor | None:  # [nodes]
        """The times of the nodes of a PyG `Data`, where it is they that have them."""
        if self.time_attr is None or not self._on_nodes(data):
            return None
        return as_times(torch.as_tensor(data[self.time_attr]), self.time_attr)

    def seed_times(self, data: Any, nodes: Tensor) -> Tensor | None:  # [input nodes]
        """The time of every input node: `input_time`, or its own where nodes have times."""
        if self.strategy is None:
            return None
        if self.input_time is not None:
            return input_times(self.input_time, nodes)
        own = None if isinstance(data, (Dataset, Graph)) else self.own_times(data)
        if own is None:
            raise ValueError("temporal sampling needs input_time=, one time for every input node: only edges have times here")
        return own[nodes]

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


def _beside(relation: Relation, values: Any, name: str) -> Tensor | None:
    """`values` of the edges of a PyG object in the order of the relation's rows."""
    if values is None:
        return None
    tensor = torch.as_tensor(values)
    if tensor.shape != (relation.num_edges,):
        raise ValueError(f"{name} names an attribute of shape {tuple(tensor.shape)} of {relation.num_edges} edges")
    return tensor if relation.edge_id is None else tensor[relation.edge_id]
