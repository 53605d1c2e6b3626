"""Memory of samples under way on a device: how large they can get, and what is kept from one batch to the next."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headrace.sample.sample import Sample

HEAD = 6  # of the parameters: key, base, tag, number of seeds, batch, and one to keep the seeds aligned; then seeds and times
TILE = 1024  # edges that one program numbers
_BOUND = 1 << 27  # edges up to which memory is reserved for the largest possible sample
STAMPS = 2**31 - 1
_TAGS = 1 << 22


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
    """Memory for one sample under way. The tensors are its attributes; they move when it grows."""

    device: torch.device
    id_type: torch.dtype
    hops: int
    cells: int  # of the stamps: one for each node of the graph, or 0 where they stand in a hash table
    seeds: int = 0
    nodes_room: int = 0
    edges_room: int = 0
    base: int = 0
    tag: int = 0
    arrays: dict[str, Tensor] = field(default_factory=dict)
    replays: dict[tuple[int, bool, bool], torch.cuda.CUDAGraph] = field(default_factory=dict)
    stream: torch.cuda.Stream | None = None  # that the last sample was copied out on
    done: torch.cuda.Event | None = None  # after the launches of the sample under way

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
        self.arrays[name] = torch.empty(max(size, 1), dtype=dtype, **where)
        return self.arrays[name]

    def reserve(self, bound: Bound) -> int:
        """Room for the largest sample; the number of ranks that its nodes and edges have."""
        self.reserve_seeds(bound.seeds)
        self.grow(bound.num_nodes, bound.num_edges)
        if self.base + 2 * (self.nodes_room + self.edges_room) > STAMPS or self.tag >= _TAGS:
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
        """More room, keeping what is there, but for a hash table that became too small: True if a new one, empty, was made."""
        if nodes > self.nodes_room or "nodes" not in self.arrays:
            self.nodes_room = nodes
            self._grown("nodes", nodes, self.id_type)
            self._grown("row_ends", nodes + 1, torch.int64)
            self._grown("starts", nodes, torch.int64)
            self._grown("degrees", nodes, torch.int64)
            if self.disjoint:
                self._grown("trees", nodes, torch.int32)
        if edges > self.edges_room or "raw" not in self.arrays:
            self.edges_room = edges
            self._grown("raw", edges, self.id_type)
            self._grown("indices", edges, torch.int32)
            self._grown("positions", edges, torch.int64)
            if self.disjoint:
                self._grown("edge_trees", edges, torch.int32)
                self._grown("places", edges, torch.int32)
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

    def _grown(self, name: str, size: int, dtype: torch.dtype) -> None:
        old = self.arrays.get(name)
        new = self._make(name, size, dtype)
        self.replays.clear()
        if old is not None:
            new[: len(old)] = old[: len(new)]

    def write(self, seeds: Tensor, times: Tensor | None, *, key: int, batch: int, ranks: int) -> bool:
        """Parameters, seeds and times: to the device, or, if all come from the host, to its buffer: True, and `send` is due."""
        self.tag += 1
        key, batch = (number - 2**64 if number >= 2**63 else number for number in (key, batch))
        numbers = self.host_params.numpy()
        numbers[:HEAD] = (key, self.base, self.tag, len(seeds), batch, 0)
        self.base += ranks
        given = [(seeds, HEAD)] if times is None else [(seeds, HEAD), (times, HEAD + self.seeds)]
        far = [(values, begin) for values, begin in given if values.device.type != "cpu"]
        for values, begin in given:
            if values.device.type == "cpu":
                numbers[begin : begin + len(values)].view(values.numpy().dtype)[:] = values.numpy()
        if not far:
            return True
        self.send(times=times is not None)
        for values, begin in far:
            self.params[begin : begin + len(values)].view(values.dtype).copy_(values)
        return False

    def send(self, *, times: bool) -> None:
        """The host's buffer to the device, whatever is in it: a copy that a replay can repeat."""
        end = HEAD + self.seeds * (2 if times else 1)
        self.params[:end].copy_(self.host_params[:end], non_blocking=True)

    def seed_times(self, dtype: torch.dtype) -> Tensor:
        return self.params[HEAD + self.seeds :].view(dtype)

    def copied(self, counts: list[int], edge_id: torch.dtype | None) -> Sample:
        """The sample, in memory of its own. `edge_id`: the type of its edges' ids, if it has them."""
        nodes, edges = counts[: self.hops + 1], counts[self.hops + 1 :]
        parts = {"indptr": self.row_ends[: nodes[-2] + 1], "nodes": self.nodes[: nodes[-1]], "indices": self.indices[: edges[-1]]}
        if self.disjoint:
            parts["tree"] = self.trees[: nodes[-1]]
        return Sample(
            num_sampled_nodes=(nodes[0], *(b - a for a, b in itertools.pairwise(nodes))),
            num_sampled_edges=(edges[0], *(b - a for a, b in itertools.pairwise(edges))),
            edge_id=None if edge_id is None else self.positions[: edges[-1]].to(edge_id, copy=True),
            **_cloned(parts),
        )


def _cloned(parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """Clones that share one allocation and one launch. Those of eight bytes must come first, where they are aligned."""
    whole = torch.cat([part.view(torch.int32) for part in parts.values()])
    out, begin = {}, 0
    for name, part in parts.items():
        end = begin + part.numel() * part.element_size() // 4
        out[name] = whole[begin:end].view(part.dtype)
        begin = end
    return out


class Workspaces:
    """Workspaces of one sampler: as many as there were samples under way at a time."""

    def __init__(self, device: torch.device, id_type: torch.dtype, *, hops: int, cells: int) -> None:
        self.device, self._id_type, self._hops, self._cells = device, id_type, hops, cells
        self._idle: list[Workspace] = []
        self._all: list[Workspace] = []
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        return sum(work.nbytes for work in self._all)

    def take(self) -> Workspace:
        with self._lock:
            if self._idle:
                work = self._idle.pop()
            else:
                work = Workspace(self.device, self._id_type, self._hops, self._cells)
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
        """The one that this thread launches on."""
        return torch.cuda.current_stream(self.device)
