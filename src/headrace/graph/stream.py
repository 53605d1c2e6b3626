"""`EventStream`: a list of edges in order of time."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids, as_tensor, as_times, thread_count
from headrace.graph.dataset import Dataset
from headrace.graph.graph import Graph

_TIMES = ("time", "ts")  # what a list of times is called among the extra arrays of a dataset
_BLOCK = 1 << 22  # events that are looked at together, so that a list on disk is never in memory whole


class EventSplits(NamedTuple):
    """Where a stream is parted: events `[0, train)`, `[train, val)` and `[val, test)`. Equal times are in one part."""

    train: int
    val: int
    test: int


class EventStream:
    """Events `src[i] -> dst[i]` at `time[i]`, which never decreases, with optional rows `edge_x[i]`.

    Times are int64 or float64, as in `Graph`. Arrays are taken by reference: those of a dataset on disk stay there. `num_nodes` is
    one more than the largest id unless given. `label` is a class per event. `val_time` and `test_time` are the last times of
    training and of validation.

    >>> import headrace as hr
    >>> stream = hr.EventStream([0, 1, 0], [2, 2, 3], [10, 20, 20])
    >>> stream
    EventStream(num_events=3, num_nodes=4, time=10..20)
    >>> stream.graph().neighbors(2).tolist()
    [0, 1]
    """

    def __init__(
        self,
        src: Any,
        dst: Any,
        time: Any,
        edge_x: Any | None = None,
        *,
        num_nodes: int | None = None,
        label: Any | None = None,
        val_time: float | None = None,
        test_time: float | None = None,
    ) -> None:
        self.src, self.dst, self.time = as_ids(src, "src"), as_ids(dst, "dst"), as_times(time, "time")
        self.edge_x = None if edge_x is None else as_tensor(edge_x, "edge_x")
        self.label = None if label is None else as_ids(label, "label")
        for name in ("dst", "time", "edge_x", "label"):
            array = getattr(self, name)
            if array is not None and len(array) != len(self.src):
                raise ValueError(f"{name} has {len(array)} entries and src has {len(self.src)}: an event has one of each")
        if self.edge_x is not None and self.edge_x.dim() == 1:
            self.edge_x = self.edge_x[:, None]
        self.num_nodes = _checked_nodes(self.src, self.dst, num_nodes)
        check_times(self.time)
        if val_time is not None and test_time is not None and not val_time <= test_time:
            raise ValueError(f"val_time is {val_time} and test_time {test_time}: training ends before validation does")
        self.val_time, self.test_time = val_time, test_time
        self._graph: Graph | None = None

    @classmethod
    def of(cls, data: Dataset | EventStream, *, label: str = "edge_label") -> EventStream:
        """The events of a dataset: its `extra` arrays `src`, `dst` and `time` (or `ts`) where it has them, else its graph's edges.

        A graph's edges are put in order of time; those of one time stand as their ids do (`edge_id`), or row by row. Rows of
        events are `extra["edge_features"]`, classes `extra[label]`, and `info` may have `val_time` and `test_time`.
        """
        if isinstance(data, EventStream):
            return data
        extra, graph = data.extra, data.graph
        beside: dict[str, Any] = {
            "edge_x": extra.get("edge_features"),
            "label": extra.get(label),
            "num_nodes": data.num_nodes,
        }
        beside |= {name: data.info.get(name) for name in ("val_time", "test_time")}
        if label not in ("edge_label", *extra):
            raise ValueError(f"the dataset's extra has no array {label!r} of classes: it has {', '.join(extra) or 'none'}")
        named = next((extra[name] for name in _TIMES if name in extra), None)
        if named is not None and "src" in extra and "dst" in extra:
            stream = cls(extra["src"], extra["dst"], named, **beside)
            stream._graph = graph if _lists_both_ways(graph, stream) else None
            return stream
        if graph.time is None:
            raise ValueError("this dataset has no times of events: import it with --time-column, or build an EventStream yourself")
        src, dst = graph.edge_index()
        ids = None if graph.edge_id is None else graph.edge_id.long()
        order = graph.time.argsort(stable=True) if ids is None else ids.argsort()
        if ids is not None:
            ids = ids[order]
            if len(ids) > 1 and bool((ids.diff() == 0).any()):
                raise ValueError("the graph has every event in both directions: import it without --undirected, as events have one")
            order = order[graph.time[order].argsort(stable=True)]
        if len(order) != len(src):
            raise ValueError("the graph's edge ids are not those of its edges")
        for name in ("edge_x", "label"):
            if beside[name] is not None:
                beside[name] = beside[name][order if graph.edge_id is None else graph.edge_id[order].long()]
        return cls(src[order], dst[order], graph.time[order], **beside)

    def __len__(self) -> int:
        return len(self.src)

    @property
    def edge_width(self) -> int:
        """Numbers in an event's row; 0 where there are none."""
        return 0 if self.edge_x is None else self.edge_x.shape[1]

    def part(self, begin: int, end: int) -> EventStream:
        """Events `begin` to `end`, over the same arrays and with the same nodes."""
        if not 0 <= begin <= end <= len(self):
            raise ValueError(f"part({begin}, {end}) of {len(self)} events: give 0 <= begin <= end <= {len(self)}")
        stream = EventStream.__new__(EventStream)
        for name in ("src", "dst", "time", "edge_x", "label"):
            array = getattr(self, name)
            setattr(stream, name, None if array is None else array[begin:end])
        stream.num_nodes, stream.val_time, stream.test_time = self.num_nodes, self.val_time, self.test_time
        stream._graph = None
        return stream

    def splits(self, val: float = 0.15, test: float = 0.15) -> EventSplits:
        """Where training and validation end: at `val_time` and `test_time`, or so that the latest events are held out.

        Events of one time are in one part. A part without events is an error that names it.
        """
        if not len(self):
            raise ValueError("the stream has no events")
        cuts = []
        for cut_time, share in ((self.val_time, 1 - val - test), (self.test_time, 1 - test)):
            last = self.time[max(int(share * len(self)) - 1, 0)].item() if cut_time is None else cut_time
            last = last if self.time.dtype.is_floating_point else math.floor(last)  # of whole numbers, the same events
            cuts.append(int(torch.searchsorted(self.time, torch.tensor(last, dtype=self.time.dtype), right=True)))
        splits = EventSplits(cuts[0], cuts[1], len(self))
        sizes = {"train": splits.train, "val": splits.val - splits.train, "test": splits.test - splits.val}
        for name, size in sizes.items():
            if size < 1:
                has = ", ".join(f"{part} has {many}" for part, many in sizes.items())
                if bool(self.time[0] == self.time[-1]):
                    raise ValueError(
                        f"the {name} split has no events: all events have one time, and no part can be later than another"
                    )
                raise ValueError(f"the {name} split has no events ({has}): choose other val_time and test_time")
        return splits

    def graph(self) -> Graph:
        """All events as a graph in both directions: row v lists whom v met, in order of time. Made once and kept.

        `edge_id` is an event's place in the stream and `time` its time. A self loop stands once.
        """
        if self._graph is None:
            ids = torch.arange(len(self))  # int64: a sampler goes by them as by times
            self._graph = Graph.from_edges(self.src, self.dst, self.num_nodes, time=self.time, edge_id=ids, undirected=True)
        return self._graph

    def __repr__(self) -> str:
        between = f", time={self.time[0].item()}..{self.time[-1].item()}" if len(self) else ""
        width = f", edge_width={self.edge_width}" if self.edge_x is not None else ""
        return f"EventStream(num_events={len(self)}, num_nodes={self.num_nodes}{between}{width})"


def check_times(time: Tensor) -> None:
    """ValueError unless times are numbers that never decrease; it names the first that is not."""
    before = None
    for begin in range(0, len(time), _BLOCK):
        block = time[begin : begin + _BLOCK]
        if block.dtype.is_floating_point and not bool(block.isfinite().all()):
            at = int((~block.isfinite()).nonzero()[0])
            raise ValueError(f"time[{begin + at}] is {block[at].item()}: every event needs a finite time")
        joined = block if before is None else torch.cat([before, block])
        falls = (joined[1:] < joined[:-1]).nonzero()
        if len(falls):
            at = int(falls[0])
            place = begin + at + (1 if before is None else 0)
            raise ValueError(
                f"time[{place}] is {joined[at + 1].item()}, before time[{place - 1}] = {joined[at].item()}: events must be in "
                "order of time; sort them by it (time.argsort(stable=True)), or import the file with --time-column, which does"
            )
        before = block[-1:]


def _checked_nodes(src: Tensor, dst: Tensor, num_nodes: int | None) -> int:
    high = -1
    for name, ids in (("src", src), ("dst", dst)):
        low, most = _native.id_range(ids.numpy(), thread_count(None)) if len(ids) else (0, -1)
        if low < 0:
            raise ValueError(f"{name}[{int((ids < 0).nonzero()[0])}] is {low}: node ids begin at 0")
        if num_nodes is not None and most >= num_nodes:
            at = int((ids >= num_nodes).nonzero()[0])
            raise ValueError(f"{name}[{at}] is {int(ids[at])}, but num_nodes is {num_nodes}: ids go from 0 to {num_nodes - 1}")
        high = max(high, int(most))
    return high + 1 if num_nodes is None else num_nodes


def _lists_both_ways(graph: Graph, stream: EventStream) -> bool:
    """Whether a dataset's graph is `EventStream.graph` already, as generated datasets have it."""
    return graph.time is not None and graph.edge_id is not None and graph.num_edges > len(stream) and graph.is_sorted_by_time()
