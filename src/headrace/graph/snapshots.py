"""`Snapshots`: a sequence of graphs over the same nodes, with rows of features and targets for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headrace._arrays import as_tensor
from headrace._device import device_of
from headrace.graph.dataset import Dataset
from headrace.graph.graph import Graph
from headrace.graph.known.signals import Missing, as_rows, graphs_of, without_missing
from headrace.graph.stream import EventStream
from headrace.graph.topology.differences import Topologies


class Snapshot(NamedTuple):
    """One graph of a sequence, the rows of its nodes, and their targets."""

    graph: Graph
    x: Tensor | None  # [num_nodes, features]
    y: Tensor | None  # [num_nodes]


class Snapshots:
    """Graphs over the same nodes, one after the other in time. `snapshots[t]` is a graph, its features x and its targets y.

    Node ids stay the same; a node that is away has no edges (`present` says which are there). y[t] is what is observed at time t:
    a forecast from the snapshots up to t is compared with y[t + 1], y[t + 2], ... A topology that comes again is kept once, and
    one that resembles its predecessor as a difference (`summary` says what that takes). Rows of a graph are sorted by source.

    graphs: the topology of each snapshot: a list of edges (src, dst), or (src, dst, weight).
    x, y: features [T, num_nodes, features] and targets [T, num_nodes], where there are any; arrays or lists of them.
    mask: which targets count  # [T, num_nodes] bool
    nodes: the nodes of each snapshot, sorted, where not all are there. x is then a list of the rows of these nodes.

    >>> import headrace as hr, torch
    >>> snapshots = hr.Snapshots([([0, 1], [1, 2]), ([1, 0], [2, 1]), ([2], [0])], 3, y=torch.zeros(3, 3))
    >>> len(snapshots), snapshots[2].graph, snapshots.summary()["topologies"]
    (3, Graph(num_nodes=3, num_edges=1), 2)
    """

    def __init__(
        self,
        graphs: Sequence[Sequence[Any]],
        num_nodes: int,
        *,
        x: Any | None = None,
        y: Any | None = None,
        mask: Any | None = None,
        nodes: Sequence[Any] | None = None,
        info: dict[str, Any] | None = None,
    ) -> None:
        self.num_nodes, self.info = num_nodes, dict(info or {})
        self._topologies = Topologies(num_nodes)
        self._number: list[int] = []
        self._weight: list[Tensor | None] = []
        self._same: list[int] = []
        for at, edges in enumerate(graphs):
            self._add(at, *edges)
            is_same = at > 0 and self._number[-2:-1] == self._number[-1:] and self._weight[-2] is self._weight[-1]
            self._same.append(self._same[-1] if is_same and nodes is None else at)
        self._graphs: dict[tuple[int, bool], Graph] = {}
        self.device = torch.device("cpu")
        self.nodes = None if nodes is None else self._checked_nodes(nodes)
        self.x = None if x is None else self._checked_rows(x)
        self.y, self.mask = (None if part is None else as_rows(part, name) for part, name in ((y, "y"), (mask, "mask")))
        for part, name in ((self.y, "y"), (self.mask, "mask")):
            if part is not None and part.shape != (len(self), num_nodes):
                raise ValueError(f"{name} must be {[len(self), num_nodes]}, snapshots by nodes, and is {list(part.shape)}")

    def _checked_nodes(self, ids_by_snapshot: Sequence[Any]) -> list[Tensor]:
        nodes = [as_tensor(ids, "nodes").long() for ids in ids_by_snapshot]
        if len(nodes) != len(self):
            raise ValueError(f"nodes tells of {len(nodes)} snapshots, and there are {len(self)}")
        for at, ids in enumerate(nodes):
            if len(ids) and (int(ids[0]) < 0 or int(ids[-1]) >= self.num_nodes or bool((ids.diff() <= 0).any())):
                raise ValueError(f"nodes of snapshot {at} must be distinct ids from 0 to {self.num_nodes - 1}, in rising order")
            away = torch.ones(self.num_nodes, dtype=torch.bool)
            away[ids] = False
            if bool((away & self.present(at)).any()):
                node = int((away & self.present(at)).nonzero()[0])
                raise ValueError(f"snapshot {at} has an edge at node {node}, which is not among its nodes")
        return nodes

    def _checked_rows(self, x: Any) -> list[Tensor]:
        parts = [as_rows(part, "x") for part in x]
        rows = [part.unsqueeze(1) if part.dim() == 1 else part for part in parts]
        if len(rows) != len(self):
            raise ValueError(f"x has rows of {len(rows)} snapshots, and there are {len(self)}")
        for at, part in enumerate(rows):
            count = self.num_nodes if self.nodes is None else len(self.nodes[at])
            if part.dim() != 2 or len(part) != count:
                raise ValueError(f"x of snapshot {at} must have a row for each of its {count} nodes, and is {list(part.shape)}")
            if part.shape[1] != rows[0].shape[1]:
                raise ValueError(
                    f"snapshots must be of one width: snapshot 0 has {rows[0].shape[1]} features, snapshot {at} has {part.shape[1]}"
                )
        return rows

    def _add(self, at: int, src: Any, dst: Any, weight: Any | None = None) -> None:
        source, target = (np.asarray(ids).astype(np.int64).reshape(-1) for ids in (src, dst))
        if len(source) != len(target):
            raise ValueError(f"snapshot {at} has {len(source)} sources and {len(target)} targets: they must have one length")
        for ids in (source, target):
            if len(ids) and not 0 <= ids.min() <= ids.max() < self.num_nodes:
                raise ValueError(
                    f"snapshot {at} names nodes from {ids.min()} to {ids.max()}, and there are {self.num_nodes}: give num_nodes"
                )
        self._number.append(self._topologies.add(source, target))
        if weight is None:
            self._weight.append(None)
            return
        values = torch.as_tensor(np.asarray(weight))
        if len(values) != len(source):
            raise ValueError(f"snapshot {at} has {len(values)} weights for {len(source)} edges")
        if not bool(values.isfinite().all()):
            edge = int((~values.isfinite()).nonzero()[0])
            raise ValueError(f"weight {edge} of snapshot {at} is {values[edge].item()}: mend it, or leave its edge out")
        order = np.lexsort((source, target))  # stable, as the sort of its keys
        values = values[torch.from_numpy(order)].float()
        before = self._weight[-1] if self._weight else None
        is_same = before is not None and self._number[-2] == self._number[-1] and torch.equal(before, values)
        self._weight.append(before if is_same else values)

    @classmethod
    def of(cls, data: Dataset, *, every: float | None = None, missing: Missing = "refuse") -> Snapshots:
        """The snapshots of a dataset that has them: one graph with a signal, a graph for each time, or events.

        every: the time unit of a snapshot, where the dataset is a list of events (`from_stream`).
        missing: what a NaN in the signal means: an error that says where it is, or ("mask") an input of 0 and a target that does
            not count; `info["missing"]` says how many.

        >>> import headrace as hr
        >>> data = hr.generate.snapshots(nodes=100, edges=400, steps=10, features=4)
        >>> len(data), data[0].x.shape
        (10, torch.Size([91, 4]))
        """
        if isinstance(data, cls):
            return data
        arrays = {name: array.numpy() for name, array in data.extra.items()}
        signal = arrays.get("signal")
        if signal is None and "x" not in arrays and (every is not None or "src" in arrays):
            if every is None:
                raise ValueError(
                    "this dataset is a list of events: say every=, the time unit of a snapshot, in the unit of its times"
                )
            snapshots = cls.from_stream(EventStream.of(data), every=every)
            snapshots.info["name"] = data.info.get("name")
            return snapshots
        if signal is None and "x" not in arrays:
            known = ", ".join(sorted(arrays)) or "nothing"
            raise ValueError(
                "this dataset has no snapshots: they have a signal or x beside their edges, "
                f"and this one has {known} beside its graph"
            )
        steps, nodes = (signal if signal is not None else arrays["x"]).shape[:2]
        x = torch.from_numpy(arrays["x"] if "x" in arrays else arrays["signal"][:, :, None]).float()
        y = None if signal is None else torch.from_numpy(signal).float()
        if "y" in arrays:
            y = torch.from_numpy(arrays["y"])
            y = y.float() if y.is_floating_point() else y.long()  # integers are classes
        x, y, mask, lacking = without_missing(x, y, missing)
        info = {"name": data.info.get("name"), **lacking}
        return cls(graphs_of(arrays, steps), nodes, x=x, y=y, mask=mask, info=info)

    @classmethod
    def from_stream(
        cls, stream: EventStream, *, every: float | None = None, count: int | None = None, span: int | None = 1
    ) -> Snapshots:
        """Snapshots of a stream of events.

        every: the time unit of a snapshot; or count: events of a snapshot.
        span: over how many units or counts a snapshot reaches back: 1 for its own alone, more for a sliding window, None for all
            edges so far.
        """
        if (every is None) == (count is None):
            raise ValueError("say either every=, the time unit of a snapshot, or count=, its events")
        if (every is not None and not every > 0) or (count is not None and count < 1) or (span is not None and span < 1):
            raise ValueError(f"every, count and span must be above 0, and are {every}, {count}, {span}")
        src, dst, time = (getattr(stream, name).numpy() for name in ("src", "dst", "time"))
        if count is not None:
            unit = np.arange(len(src)) // count
        else:
            unit = ((time - time[0]) // every).astype(np.int64) if len(time) else np.zeros(0, np.int64)
        steps = int(unit[-1]) + 1 if len(unit) else 0
        ends = np.searchsorted(unit, np.arange(steps + 1))
        reach = [slice(0 if span is None else int(ends[max(at + 1 - span, 0)]), int(ends[at + 1])) for at in range(steps)]
        info = {"every": every, "count": count, "span": span}
        return cls([(src[own], dst[own]) for own in reach], stream.num_nodes, info=info)

    def __len__(self) -> int:
        return len(self._number)

    def __getitem__(self, at: int) -> Snapshot:
        if not -len(self) <= at < len(self):
            raise IndexError(f"there are {len(self)} snapshots, and {at} is none of them")
        at %= len(self)
        x = None if self.x is None else self.x[at]
        if x is not None and self.nodes is not None:
            x = x.new_zeros(self.num_nodes, x.shape[1]).index_copy(0, self.nodes[at].to(x.device), x)
        return Snapshot(self.graph(at), x, None if self.y is None else self.y[at])

    def __iter__(self) -> Iterator[Snapshot]:
        return (self[at] for at in range(len(self)))

    def graph(self, at: int) -> Graph:
        """The graph of a snapshot. Snapshots of equal edges and weights share one, and what is derived from it."""
        return self._graph(at, whole=True)

    def own_graph(self, at: int) -> Graph:
        """The graph of a snapshot over its own nodes, numbered in their order; where all are there, `graph`."""
        return self._graph(at, whole=self.nodes is None)

    def _graph(self, at: int, *, whole: bool) -> Graph:
        key = self.same_as(at), whole
        if key not in self._graphs:
            indptr, indices = self._topologies[self._number[at]]
            if not whole:
                assert self.nodes is not None
                ids = self.nodes[at]
                indices = torch.searchsorted(ids, indices.long()).to(indices.dtype)
                indptr = torch.cat([indptr[:1], indptr[1:][ids]])  # rows of nodes that are away are empty
            self._graphs[key] = Graph(indptr, indices, weight=self._weight[at]).to(self.device)
        return self._graphs[key]

    def same_as(self, at: int) -> int:
        """The first snapshot whose graph is that of this one, as far as it is known to be: a key for what follows from a graph."""
        return self._same[at]

    def with_rows(self, x: Sequence[Tensor]) -> Snapshots:
        """The same graphs and targets with other features."""
        other = copy(self)
        other.x = other._checked_rows(x)
        return other

    def to(self, device: str | torch.device) -> Snapshots:
        """The same sequence on a device: features, targets and, as they are asked for, graphs. Topologies stay in host memory, as
        little as they take, and so do the ids of nodes that come and go.
        """
        device = device_of(device)
        if device == self.device:
            return self
        other = copy(self)
        other.device, other._graphs = device, {}
        other.x = None if self.x is None else [rows.to(device) for rows in self.x]
        other.y, other.mask = (None if part is None else part.to(device) for part in (self.y, self.mask))
        return other

    def forget(self) -> None:
        """Let go of graphs that were built, and of what was derived from them."""
        self._graphs.clear()

    @property
    def num_features(self) -> int:
        return 0 if not self.x else self.x[0].shape[1]

    @property
    def num_edges(self) -> list[int]:
        """Edges of each snapshot."""
        return [self._topologies.num_edges(number) for number in self._number]

    def present(self, at: int) -> Tensor:
        """Which nodes have an edge in a snapshot.  # -> [num_nodes] bool"""
        graph = self.graph(at)
        has_edge = graph.degrees() > 0
        has_edge[graph.indices.long()] = True
        return has_edge

    def never_present(self) -> Tensor:
        """Nodes without an edge in any snapshot.  # -> [n]"""
        has_edge = torch.zeros(self.num_nodes, dtype=torch.bool)
        for number in set(self._number):
            indptr, indices = self._topologies[number]
            has_edge |= indptr.diff() > 0
            has_edge[indices.long()] = True
        return (~has_edge).nonzero().flatten()

    def summary(self) -> dict[str, int]:
        """How many topologies there are, how many are kept as differences, their bytes, and those of plain compressed rows."""
        kept = self._topologies
        plain = sum(8 * (self.num_nodes + 1) + 4 * edges for edges in self.num_edges)
        weights = {id(w): w.nbytes for w in self._weight if w is not None}
        return {
            "snapshots": len(self),
            "topologies": len(kept),
            "differences": kept.differences,
            "topology_bytes": kept.nbytes,
            "plain_topology_bytes": plain,
            "weight_bytes": sum(weights.values()),
        }

    def __repr__(self) -> str:
        edges = self.num_edges
        return f"Snapshots({len(self)} of {self.num_nodes} nodes, {min(edges, default=0)} to {max(edges, default=0)} edges)"
