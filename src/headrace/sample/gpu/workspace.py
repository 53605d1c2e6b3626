"""Memory of samples under way on a device: how large they can get, and what is kept from one batch to the next."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace._arrays import signed
from headrace.pipeline.workers import free_in_child
from headrace.sample.sample import Sample

HEAD = 6  # of the parameters: key, base, tag, number of seeds, batch, and one to keep the seeds aligned; then seeds and times
TILE = 1024  # edges that one program numbers
_BOUND = 1 << 27  # edges up to which memory is reserved for the largest possible sample
STAMPS = 2**31 - 1
_TAGS = 1 << 22
_ALIGNED = 16  # entries: a lane's arrays begin where kernels may read many at a time
_OWN = frozenset(
    ("params", "host_params", "counts", "host_counts", "nodes", "row_ends", "trees", "indices", "positions", "edge_times")
)


@dataclass(frozen=True, eq=False)
class Request:
    """A sample to be made: its seeds, their times where it is temporal, and what its draws depend on."""

    seeds: Tensor
    time: Tensor | None
    key: int
    batch: int


class Beside(NamedTuple):
    """Which extra facts of its edges a sample brings along: ids, times."""

    ids: bool
    times: bool


_NONE = Request(torch.empty(0, dtype=torch.int64), None, 0, 0)


@dataclass(frozen=True)
class Bound:
    """The largest sample that `seeds` seeds can have."""

    seeds: int
    rows: tuple[int, ...]  # expanded by each hop
    edges: tuple[int, ...]  # drawn by each hop

    @classmethod
    def of(cls, seeds: int, fanouts: Sequence[int], most_new: int) -> Bound | None:
        """For hops that add at most `most_new` nodes each. None where a fanout is unbounded, or the bound too far away to reserve
        memory for."""
        rows, edges = [seeds], []
        for fanout in fanouts:
            if fanout < 0:
                return None
            edges.append(rows[-1] * fanout)
            rows.append(min(edges[-1], most_new))
        return cls(seeds, tuple(rows[:-1]), tuple(edges)) if sum(edges) <= _BOUND else None

    @property
    def num_edges(self) -> int:
        return sum(self.edges)

    @property
    def num_nodes(self) -> int:
        return sum(self.rows) + self.edges[-1]


@dataclass(eq=False)
class Workspace:
    """Memory for samples that are launched together, a lane each, one after the other. The tensors are its attributes; those that
    are a lane's own have a row for each. They move when it grows."""

    device: torch.device
    id_type: torch.dtype
    hops: int
    cells: int  # of the stamps: one for each node of the graph, or 0 where they stand in a hash table
    lanes: int = 1
    seeds: int = 0
    nodes_room: int = 0
    edges_room: int = 0
    base: int = 0
    tag: int = 0
    arrays: dict[str, Tensor] = field(default_factory=dict)
    replays: dict[tuple[int, bool, bool, bool], torch.cuda.CUDAGraph] = field(default_factory=dict)
    _results: list[list[tuple[torch.dtype, int, Tensor]]] = field(default_factory=list)  # of each lane, in words of four bytes
    stream: torch.cuda.Stream | None = None  # that the last sample was copied out on
    done: torch.cuda.Event | None = None  # after the launches of the samples under way

    def __post_init__(self) -> None:
        if self.device.type == "cuda":
            self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._make("counts", 2 * self.hops + 1, torch.int64).zero_()
        self._make("host_counts", 2 * self.hops + 1, torch.int64, host=True)
        if self.cells:
            self._make("stamp", self.cells, torch.int32).fill_(-1)

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self.__dict__["arrays"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def disjoint(self) -> bool:
        return not self.cells

    @property
    def table_bits(self) -> int:
        return self.table.numel().bit_length() - 1

    def _make(self, name: str, size: int, dtype: torch.dtype, *, host: bool = False) -> Tensor:
        where = {"pin_memory": self.device.type == "cuda"} if host else {"device": self.device}
        shape = (self.lanes, -(-max(size, 1) // _ALIGNED) * _ALIGNED) if name in _OWN else (max(size, 1),)
        self.arrays[name] = torch.empty(shape, dtype=dtype, **where)
        self._results.clear()
        return self.arrays[name]

    def reserve(self, bound: Bound) -> int:
        """Make room for the largest samples. Returns how many ranks the nodes and edges of one sample have."""
        self.reserve_seeds(bound.seeds)
        self.grow(bound.num_nodes, bound.num_edges)
        if self.base + (self.lanes + 1) * (self.nodes_room + self.edges_room) > STAMPS or self.tag >= _TAGS:
            self.forget()
        return bound.num_nodes + bound.num_edges

    def reserve_seeds(self, seeds: int) -> None:
        if self.seeds < seeds or "params" not in self.arrays:
            self.seeds = seeds
            self.replays.clear()
            self._make("params", HEAD + 2 * seeds, torch.int64)
            self._make("host_params", HEAD + 2 * seeds, torch.int64, host=True)

    def forget(self) -> None:
        """Take back all stamps and tags, so that counting can begin again."""
        self.stamp.fill_(-1)
        self.words.zero_()
        self.base = self.tag = 0

    def grow(self, nodes: int, edges: int) -> bool:
        """Make more room and keep the contents. Returns True if a hash table became too small and an empty one replaced it."""
        if nodes > self.nodes_room or "nodes" not in self.arrays:
            self.nodes_room = nodes
            self._grow_all(nodes, {"nodes": self.id_type, "starts": torch.int64, "degrees": torch.int64}, ("trees",))
            self._grow_all(nodes + 1, {"row_ends": torch.int64})
        if edges > self.edges_room or "raw" not in self.arrays:
            self.edges_room = edges
            types = {"raw": self.id_type, "indices": torch.int32, "positions": torch.int64, "edge_times": torch.int64}
            self._grow_all(edges, types, ("edge_trees", "places"))
        tiles = max(-(-max(self.edges_room, self.seeds) // TILE), 1)
        if "words" not in self.arrays or self.words.shape[2] < tiles:
            self.replays.clear()
            self.arrays["words"] = torch.zeros(self.hops + 1, 2, tiles, dtype=torch.int64, device=self.device)
        if not self.disjoint or ("table" in self.arrays and self.table.numel() >= 2 * nodes):
            return False
        cells = 1 << (2 * max(self.nodes_room, 1) - 1).bit_length()
        self._make("table", cells, torch.int64).fill_(-1)
        self._make("stamp", cells, torch.int32).fill_(-1)
        self.replays.clear()
        return True

    def _grow_all(self, size: int, types: dict[str, torch.dtype], of_trees: Sequence[str] = ()) -> None:
        """Make these arrays anew, with what they hold; those `of_trees` only where trees are disjoint."""
        for name, dtype in {**types, **dict.fromkeys(of_trees if self.disjoint else (), torch.int32)}.items():
            old = self.arrays.get(name)
            new = self._make(name, size, dtype)
            if old is not None:
                new[..., : old.shape[-1]] = old[..., : new.shape[-1]]
        self.replays.clear()

    def write(self, requests: Sequence[Request], *, ranks: int) -> bool:
        """Write parameters, seeds and times to the device. If all are on the host, write its buffer: True, and `send` is due."""
        heads, far, params = [], [], self.host_params.numpy()
        for lane in range(self.lanes):
            asked = requests[lane] if lane < len(requests) else _NONE
            self.tag += 1
            heads.append((signed(asked.key), self.base, self.tag, asked.seeds.numel(), signed(asked.batch), 0))
            self.base += ranks
            for values, begin in ((asked.seeds, HEAD), (asked.time, HEAD + self.seeds)):
                if values is None:
                    continue
                end = begin + values.numel()
                if values.is_cpu:
                    numbers = values.numpy()
                    params[lane, begin:end] = numbers if numbers.dtype == params.dtype else numbers.view(params.dtype)
                else:
                    far.append((self.params[lane, begin:end], values))
        params[:, :HEAD] = heads
        if not far:
            return True
        self.send(times=requests[0].time is not None)
        for place, values in far:
            place.view(values.dtype).copy_(values)
        return False

    def send(self, *, times: bool) -> None:
        """Copy the host's buffer to the device. A replay repeats the copy with what the buffer holds then."""
        end = self.params.shape[1] if self.lanes > 1 or times else HEAD + self.seeds  # in one piece
        self.params[:, :end].copy_(self.host_params[:, :end], non_blocking=True)

    def copied(self, lane: int, counts: list[int], edge_id: torch.dtype | None, edge_time: torch.dtype | None) -> Sample:
        """A sample, in memory of its own. `edge_id` and `edge_time`: the types of its edges' ids and times, if it has them."""
        nodes, edges = counts[: self.hops + 1], counts[self.hops + 1 : 2 * self.hops + 1]
        row_ends, ids, indices, *trees = self._cloned(lane, (nodes[-2] + 1, nodes[-1], edges[-1], nodes[-1]))
        return Sample(
            nodes=ids,
            indptr=row_ends,
            indices=indices,
            num_sampled_nodes=(nodes[0], *(b - a for a, b in itertools.pairwise(nodes))),
            num_sampled_edges=(edges[0], *(b - a for a, b in itertools.pairwise(edges))),
            edge_id=None if edge_id is None else self.positions[lane, : edges[-1]].to(edge_id, copy=True),
            tree=trees[0] if trees else None,
            edge_time=None if edge_time is None else self.edge_times[lane, : edges[-1]].view(edge_time).clone(),
        )

    def _cloned(self, lane: int, sizes: Sequence[int]) -> list[Tensor]:
        """Clones of the first of a lane's results, in one allocation and by one launch. Those of eight bytes come first, where they
        are aligned."""
        if not self._results:
            names = ("row_ends", "nodes", "indices", "trees") if self.disjoint else ("row_ends", "nodes", "indices")
            kinds = [(self.arrays[name].dtype, self.arrays[name].view(torch.int32).unbind()) for name in names]
            self._results = [[(kind, kind.itemsize // 4, words[lane]) for kind, words in kinds] for lane in range(self.lanes)]
        results = self._results[lane]
        words = [words.narrow(0, 0, size * width) for (_, width, words), size in zip(results, sizes, strict=False)]
        clones = torch.cat(words).split_with_sizes([part.numel() for part in words])
        return [clone if width == 1 else clone.view(kind) for (kind, width, _), clone in zip(results, clones, strict=True)]


class Lane:
    """A workspace as one of its samples sees it: the rows of its own arrays, and what all share."""

    def __init__(self, work: Workspace, number: int) -> None:
        self._work, self._number = work, number

    def __getattr__(self, name: str) -> Any:
        array = getattr(self._work, name)
        return array[self._number] if name in _OWN else array

    def seed_times(self, dtype: torch.dtype) -> Tensor:
        return self.params[HEAD + self.seeds :].view(dtype)  # type: ignore[no-any-return]


class Workspaces:
    """Workspaces of one sampler: for each number of lanes, as many as were in use at the same time."""

    def __init__(self, device: torch.device, id_type: torch.dtype, *, hops: int, cells: int) -> None:
        self.device, self._id_type, self._hops, self._cells = device, id_type, hops, cells
        self._idle: list[Workspace] = []
        self._all: list[Workspace] = []
        self._lock = free_in_child(threading.Lock())

    @property
    def nbytes(self) -> int:
        return sum(work.nbytes for work in self._all)

    def take(self, lanes: int = 1) -> Workspace:
        with self._lock:
            work = next((idle for idle in reversed(self._idle) if idle.lanes == lanes), None)
            if work is not None:
                self._idle.remove(work)
            else:
                work = Workspace(self.device, self._id_type, self._hops, self._cells, lanes)
                self._all.append(work)
        if work.stream is not None and work.stream != (stream := self.stream()):
            stream.wait_stream(work.stream)
        return work

    def give_back(self, work: Workspace) -> None:
        if self.device.type == "cuda":
            work.stream = self.stream()
        with self._lock:
            self._idle.append(work)

    def stream(self) -> torch.cuda.Stream:
        """The stream that this thread launches on."""
        return torch.cuda.current_stream(self.device)
