"""`Graph`: immutable compressed rows, row v listing the in-neighbors of v."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids, as_tensor, as_times, thread_count
from headrace._pinned import PinError, pin_in_place
from headrace.graph.topology.edges import count_nodes, take
from headrace.graph.topology.permutation import checked_order, permuted
from headrace.graph.topology.rows import RowRange
from headrace.graph.topology.summary import summarize
from headrace.graph.topology.time import before_all, sorted_order, times_in_order
from headrace.graph.topology.transpose import transposed

SelfLoops = Literal["keep", "add", "drop"]
T = TypeVar("T")
_ARRAYS = ("indptr", "indices", "weight", "time", "edge_id", "permutation")


class Graph:
    """A graph in compressed sparse row form: row v lists the sources of the edges into v.

    `indptr` is int64, `indices` int32 while node ids fit and int64 beyond. `weight`, `time`, `edge_id` and `permutation` are
    optional and stand in the order of `indices`: an edge's weight, its time (int64 or float64), its id in the list it came
    from (-1 for a self loop that was added), and, in a reversed graph, its position in the graph that was reversed.

    >>> import headrace as hr
    >>> graph = hr.Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> graph
    Graph(num_nodes=3, num_edges=3)
    >>> graph.neighbors(1).tolist()
    [0]
    """

    __slots__ = ("__weakref__", "_derived", "edge_id", "indices", "indptr", "is_pinned", "permutation", "time", "weight")

    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        *,
        weight: Tensor | None = None,
        time: Tensor | None = None,
        edge_id: Tensor | None = None,
        permutation: Tensor | None = None,
    ) -> None:
        self.indptr = as_ids(indptr, "indptr", dtype=torch.int64)
        self.indices = as_ids(indices, "indices")
        if self.indptr.numel() == 0:
            raise ValueError("indptr must hold at least one element: one more than there are nodes")
        for name, values in (("weight", weight), ("time", time), ("edge_id", edge_id), ("permutation", permutation)):
            if values is not None and values.shape[:1] != self.indices.shape:
                raise ValueError(f"{name} has {len(values)} entries for {len(self.indices)} edges")
        self.weight = None if weight is None else as_tensor(weight, "weight")
        self.time = None if time is None else as_times(time, "time")
        self.edge_id = None if edge_id is None else as_ids(edge_id, "edge_id")
        self.permutation = permutation
        self._derived: dict[str, Any] = {}
        self.is_pinned = False  # whether it was made by `pin`

    @classmethod
    def from_edges(
        cls,
        src: Any,
        dst: Any,
        num_nodes: int | None = None,
        *,
        weight: Any | None = None,
        time: Any | None = None,
        edge_id: Any | None = None,
        undirected: bool = False,
        deduplicate: bool = False,
        self_loops: SelfLoops = "keep",
        threads: int | None = None,
    ) -> Graph:
        """Build a graph from edges `src[i] -> dst[i]` given as torch tensors, numpy arrays or lists.

        Rows keep the order of the edges. `undirected` adds every edge's reverse (with its weight, time and id);
        `deduplicate` keeps the first of equal edges and sorts rows by source; `self_loops="add"` gives one, of weight
        1 and before all times, to every node that has none. `edge_id=True` keeps each edge's position in the input; a
        tensor keeps its values; by default no ids are kept.
        """
        source, target = as_ids(src, "src"), as_ids(dst, "dst")
        if len(source) != len(target):
            raise ValueError(f"src has {len(source)} edges, dst has {len(target)}: they must have one length")
        if source.dtype != target.dtype:
            source, target = source.long(), target.long()
        workers = thread_count(threads)
        nodes = count_nodes(source, target, num_nodes, workers)
        if self_loops not in ("keep", "add", "drop"):
            raise ValueError(f"self_loops must be 'keep', 'add' or 'drop', not {self_loops!r}")

        values = None if weight is None else as_tensor(weight, "weight")
        times = None if time is None else as_times(time, "time")
        ids = None
        if edge_id is not None and not isinstance(edge_id, bool):
            ids = as_ids(edge_id, "edge_id")
        for name, array in (("weight", values), ("time", times), ("edge_id", ids)):
            if array is not None and len(array) != len(source):
                raise ValueError(f"{name} has {len(array)} entries for {len(source)} edges")

        keep_ids = ids is not None or edge_id is True
        indptr, indices, where = _native.build_csr(
            source,
            target,
            nodes,
            wide_index=nodes > torch.iinfo(torch.int32).max,
            undirected=undirected,
            deduplicate=deduplicate,
            self_loops=self_loops,
            positions=keep_ids or values is not None or times is not None,
            threads=workers,
        )
        position = None if where is None else torch.from_numpy(where)
        return cls(
            torch.from_numpy(indptr),
            torch.from_numpy(indices),
            weight=None if values is None or position is None else take(values, position, missing=1),
            time=None if times is None else take(times, position, missing=before_all(times)),
            edge_id=position if keep_ids and ids is None else None if ids is None else take(ids, position, missing=-1),
        )

    @classmethod
    def of_rows(cls, indptr: Tensor, indices: Tensor, **beside: Tensor | None) -> Graph:
        """Compressed rows that are known to be good, where they lie: the constructor takes those of a CPU alone."""
        graph = cls.__new__(cls)
        for name, array in {"indptr": indptr, "indices": indices, **dict.fromkeys(_ARRAYS[2:]), **beside}.items():
            setattr(graph, name, array)
        graph._derived, graph.is_pinned = {}, False
        return graph

    @property
    def num_nodes(self) -> int:
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.indices.numel()

    # A graph is also the block from all its nodes to all of them.
    first = 0

    @property
    def num_src(self) -> int:
        return self.num_nodes

    @property
    def num_dst(self) -> int:
        return self.num_nodes

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, what was derived from them not counted."""
        return sum(array.nbytes for array in self._arrays())

    @property
    def device(self) -> torch.device:
        """Where the graph lies. One in page-locked memory (`is_pinned`) is on the CPU, and a GPU reads it too."""
        return self.indices.device

    def to(self, device: str | torch.device) -> Graph:
        """The graph in the memory of a device, where a sampler's kernels read it fastest."""
        device = torch.device(device)
        if device.type == self.device.type and device.index in (None, self.device.index):
            return self
        if device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(f"graph.to({str(device)!r}), but torch sees no GPU here")
        if self.device.type == "cpu":
            self.validate()  # kernels of a GPU follow indices unchecked
        return self._mapped(lambda array: array.to(device))

    def pin(self) -> Graph:
        """The graph in page-locked host memory (`is_pinned`), which kernels of a GPU read over the bus (UVA). Made once and kept.

        It shares this graph's arrays, locked in place; a copy is made only of memory that the driver cannot lock.
        """
        if self.device.type != "cpu":
            raise ValueError(f"this graph is on {self.device}: only one in host memory can be pinned")
        if not torch.cuda.is_available():
            raise RuntimeError("pinning serves a GPU, and torch sees none here")
        return self if self.is_pinned else self.derived("pinned", self._pinned)

    def _pinned(self) -> Graph:
        self.validate()
        graph, locked = self._mapped(lambda array: array), []
        try:
            for array in self._arrays():
                locked.append(pin_in_place(array, graph))
        except PinError:
            for unlock in locked:  # a copy is made of arrays that are not locked
                unlock()
            graph = self._mapped(lambda array: array.pin_memory())
        graph.is_pinned = True
        return graph

    def with_weight(self, weight: Tensor | None) -> Graph:
        """The same edges with other weights, in the order of `indices`; nothing else is copied."""
        return Graph(self.indptr, self.indices, weight=weight, time=self.time, edge_id=self.edge_id, permutation=self.permutation)

    def _arrays(self) -> list[Tensor]:
        arrays = (getattr(self, name) for name in _ARRAYS)
        return [array for array in arrays if array is not None]

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> Graph:
        """The same graph over changed arrays."""
        beside = {name: getattr(self, name) for name in _ARRAYS[2:]}
        changed = {name: None if array is None else change(array) for name, array in beside.items()}
        return Graph.of_rows(change(self.indptr), change(self.indices), **changed)

    def degrees(self, *, loops: bool = True) -> Tensor:
        """In-degree of every node, without edges from itself if `loops` is False.  # -> [num_nodes]"""
        return self.indptr.diff() if loops else self.derived("degrees without loops", self._degrees_without_loops)

    def neighbors(self, node: int) -> Tensor:
        """The in-neighbors of one node, in order."""
        if not 0 <= node < self.num_nodes:
            raise IndexError(f"node {node} is not in a graph of {self.num_nodes} nodes")
        return self.indices[int(self.indptr[node]) : int(self.indptr[node + 1])]

    def edge_index(self) -> Tensor:
        """All edges as PyG writes them, sources above targets, in row order.  # -> [2, num_edges]"""
        self._needs_cpu("edge_index")
        out = torch.empty(2, self.num_edges, dtype=torch.int64)
        _native.expand_csr(self.indptr, self.indices, out, thread_count(None))
        return out

    def reverse(self, *, threads: int | None = None) -> Graph:
        """The transposed graph: row u lists the targets of the edges out of u. Made once and kept, where this graph lies.

        Its `permutation[i]` is the position in this graph of the reverse's edge i.
        """
        return self.derived("reverse", lambda: self._reversed(thread_count(threads)))

    def reordered(self, order: Tensor, *, threads: int | None = None) -> Graph:
        """The graph with other node ids: node i is the one that was `order[i]`, as `headrace.reorder` finds orders.

        Rows keep the order of their edges, so that sums over neighbors have the same bits. Weights, times and edge ids go with
        their edges; `permutation`, which names places in another graph, does not.

        >>> import headrace as hr
        >>> graph = hr.Graph.from_edges([0, 1], [1, 2]).reordered([2, 1, 0])
        >>> graph.neighbors(0).tolist(), graph.neighbors(1).tolist()
        ([1], [2])
        """
        self._needs_cpu("reordered")
        beside = {name: getattr(self, name) for name in ("weight", "time", "edge_id")}
        return Graph(
            **permuted(self.indptr, self.indices, beside, order=checked_order(order, self.num_nodes, threads), threads=threads)
        )

    def sorted_by_time(self) -> Graph:
        """The graph with every row in order of `time`, as temporal sampling reads it. Made once and kept.

        Edges of one time keep their order. Weights and ids go with their edges; a graph that kept no ids gets them: the
        positions in this graph. A graph in order already is returned as it is.
        """
        time = self.time
        if time is None:
            raise ValueError("this graph has no times to sort by: give from_edges(..., time=...)")
        return self if self.is_sorted_by_time() else self.derived("sorted by time", lambda: self._in_order_of(time))

    def is_sorted_by_time(self) -> bool:
        """Whether times do not decrease within any row."""
        time = self.time
        return time is not None and self.derived("is sorted by time", lambda: times_in_order(self.indptr, time))

    def is_symmetric(self, *, threads: int | None = None) -> bool:
        """Whether every edge stands in both directions, as often in the one as in the other. Found once and kept.

        The graph is then its own reverse but for the order within rows; weights, times and ids are not compared. Told by a
        fingerprint of 128 bits of edges and reversed edges, for which there is no need to build the reverse.

        >>> import headrace as hr
        >>> hr.Graph.from_edges([0, 1], [1, 2], undirected=True).is_symmetric()
        True
        """
        return bool(self.summary(threads=threads)["symmetric"])

    def summary(self, *, threads: int | None = None) -> dict[str, float]:
        """What one pass over the edges tells, for `headrace.graph.topology.properties`. Found once and kept."""
        return self.derived("summary", lambda: summarize(self.indptr, self.indices, threads))

    def rows(self, begin: int, end: int) -> RowRange:
        """Rows `begin` to `end` as a view: a layer computes these nodes from all."""
        if not 0 <= begin <= end <= self.num_nodes:
            raise IndexError(f"rows {begin} to {end} are not in a graph of {self.num_nodes} nodes")
        return RowRange(self, begin, end)

    def derived(self, name: str, make: Callable[[], T]) -> T:
        """What follows from the graph alone (its reverse, norms of its edges): made once and kept, since a graph never changes."""
        if name not in self._derived:
            self._derived[name] = make()
        value: T = self._derived[name]
        return value

    def _degrees_without_loops(self) -> Tensor:
        degrees = self.indptr.diff()
        rows = torch.arange(self.num_nodes, dtype=self.indices.dtype, device=self.device)
        target = torch.repeat_interleave(rows, degrees)
        own = target[self.indices == target]
        return degrees - torch.bincount(own, minlength=self.num_nodes) if len(own) else degrees

    def _reversed(self, threads: int) -> Graph:
        if self.device.type == "cpu":
            arrays = _native.transpose_csr(self.indptr, self.indices, self.num_nodes, positions=True, threads=threads)
            indptr, indices, position = (torch.from_numpy(array) for array in arrays)
        else:
            indptr, indices, position = transposed(self.indptr, self.indices)
        beside = {name: getattr(self, name) for name in ("weight", "time", "edge_id")}
        moved = {name: None if values is None else values[position] for name, values in beside.items()}
        return Graph.of_rows(indptr, indices, permutation=position, **moved)

    def _in_order_of(self, time: Tensor) -> Graph:
        self.validate()
        order = sorted_order(self.indptr, time)
        beside = {name: getattr(self, name) for name in ("weight", "time", "edge_id", "permutation")}
        beside["edge_id"] = order if self.edge_id is None else self.edge_id
        moved = {name: values if values is None or values is order else values[order] for name, values in beside.items()}
        return Graph(self.indptr, self.indices[order], **moved)

    def validate(self, *, threads: int | None = None) -> None:
        """Raise ValueError unless every row lies within `indices` and every index names a node."""
        self._needs_cpu("validate")
        try:
            _native.check_csr(self.indptr, self.indices, self.num_nodes, thread_count(threads))
        except ValueError as error:
            raise ValueError(f"not a valid graph of {self.num_nodes} nodes: {error}") from None

    def _needs_cpu(self, what: str) -> None:
        if self.device.type != "cpu":
            raise ValueError(f"{what} works on a graph in host memory, and this one is on {self.device}: use graph.to('cpu')")

    def __repr__(self) -> str:
        extra = "".join(f", {n}" for n in ("weight", "time", "edge_id", "permutation") if getattr(self, n) is not None)
        place = "" if self.device.type == "cpu" else f", device={str(self.device)!r}"
        return f"Graph(num_nodes={self.num_nodes}, num_edges={self.num_edges}{extra}{place})"
