"""Sampling by kernels of a GPU, from a graph in its memory or in page-locked host memory: the CPU's samples, bit for bit."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import triton
from torch import Tensor

from headrace import _native
from headrace.kernels import _triton_sample as kernels
from headrace.sample.sample import Sample

_SAMPLE = 1  # Purpose::sample of native/philox.h
_HEAD = 4  # of the parameters: key, base, tag, number of seeds; then the seeds
_TILE = 1024  # edges that one program numbers
_CHUNK = 256  # tiles whose sums are read at a time
_SLOTS = 128  # most neighbours that a tile of rows draws together
_BOUND = 1 << 27  # edges up to which memory is reserved for the largest possible sample
_STAMPS = 2**31 - 1
_TAGS = 1 << 22


@dataclass(frozen=True)
class Bound:
    """The largest sample that `seeds` seeds can have."""

    seeds: int
    rows: tuple[int, ...]  # expanded by each hop
    edges: tuple[int, ...]  # drawn by each hop

    @classmethod
    def of(cls, seeds: int, fanouts: Sequence[int], num_nodes: int) -> Bound | None:
        """None where a fanout is unbounded, or the bound too far away to reserve memory for."""
        rows, edges = [seeds], []
        for fanout in fanouts:
            if fanout < 0:
                return None
            edges.append(rows[-1] * fanout)
            rows.append(min(edges[-1], num_nodes))
        return cls(seeds, tuple(rows[:-1]), tuple(edges)) if sum(edges) <= _BOUND else None

    @property
    def num_edges(self) -> int:
        return sum(self.edges)

    @property
    def num_nodes(self) -> int:
        return sum(self.rows) + self.edges[-1]


@dataclass(eq=False)
class Workspace:
    """Memory for one sample under way, and what is kept from one batch to the next."""

    stamp: Tensor
    seeds: int = 0
    nodes_room: int = 0
    edges_room: int = 0
    base: int = 0
    tag: int = 0
    arrays: dict[str, Tensor] = field(default_factory=dict)
    replays: dict[tuple[int, bool], torch.cuda.CUDAGraph] = field(default_factory=dict)
    free: torch.cuda.Event | None = None  # after the last sample has been copied out

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self.__dict__["arrays"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def nbytes(self) -> int:
        return self.stamp.nbytes + sum(a.nbytes for a in self.arrays.values())


class Pending:
    """A sample whose kernels have been launched; `finish` waits for its sizes and takes it."""

    def __init__(self, finish: Callable[[], Sample]) -> None:
        self._finish = finish

    def finish(self) -> Sample:
        return self._finish()


class DeviceSampler:
    """`NeighborSampler` on a device. `indptr` must lie there; `indices` there or in page-locked host memory (UVA).

    A batch of bounded size is one replay of a captured CUDA graph: memory is reserved for the largest possible sample, all sizes
    stay on the device, and the host reads them once, at the end. Where a fanout is -1 the bound is unknown, and each hop's sizes
    are read before the next is launched.
    """

    def __init__(self, indptr: Tensor, indices: Tensor, fanouts: Sequence[int], *, replace: bool, seed: int) -> None:
        self.indptr, self.indices, self.fanouts, self.replace, self.seed = indptr, indices, list(fanouts), replace, seed
        self.device = indptr.device
        self.num_nodes = indptr.numel() - 1
        self._idle: list[Workspace] = []
        self._all: list[Workspace] = []
        self._lock = threading.Lock()

    @property
    def workspace_bytes(self) -> int:
        return sum(work.nbytes for work in self._all)

    def start(self, seeds: Tensor, epoch: int, batch: int, *, positions: bool) -> Pending:
        """Launch the sample of `seeds`, which must be ids of nodes, int64, on the host or the device."""
        key = _native.stream_key(self.seed, epoch, batch, _SAMPLE)
        work = self._take()
        try:
            bound = Bound.of(len(seeds), self.fanouts, self.num_nodes)
            launch = self._step if bound is None else self._leap
            return launch(work, seeds, key, positions)
        except BaseException:
            self._give_back(work)
            raise

    # ---- all hops at once

    def _leap(self, work: Workspace, seeds: Tensor, key: int, positions: bool) -> Pending:
        room = max(work.seeds, len(seeds))
        bound = Bound.of(room, self.fanouts, self.num_nodes) or Bound.of(len(seeds), self.fanouts, self.num_nodes)
        assert bound is not None
        ranks = self._reserve(work, bound.seeds, bound.num_nodes, bound.num_edges)
        self._write(work, seeds, key, ranks)
        self._launch(work, bound, ranks, positions)
        done = self._mark()

        def finish() -> Sample:
            if done is not None:
                done.synchronize()
            return self._copied(work, work.host_counts.tolist(), positions)

        return Pending(finish)

    def _launch(self, work: Workspace, bound: Bound, ranks: int, positions: bool) -> None:
        which = (bound.seeds, positions)
        replay = work.replays.get(which)
        if replay is not None:
            replay.replay()
            return

        def launches() -> None:
            self._number(work, -1, bound.seeds, ranks, bound.num_nodes)
            for hop in range(len(self.fanouts)):
                self._draw(work, hop, bound.rows[hop], ranks, bound.num_nodes, positions)
                self._number(work, hop, bound.edges[hop], ranks, bound.num_nodes)
            self._relabel(work, bound.num_edges, ranks)
            work.host_counts.copy_(work.counts, non_blocking=True)

        launches()  # also compiles what has not been compiled
        if self.device.type == "cuda":
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.Stream(self.device)
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                launches()
            work.replays[which] = graph

    # ---- one hop at a time

    def _step(self, work: Workspace, seeds: Tensor, key: int, positions: bool) -> Pending:
        pending, ranks = 1 << 29, 1 << 30
        work.replays.clear()
        work.stamp.fill_(-1)
        work.base = work.tag = 0
        self._reserve(work, len(seeds), len(seeds), 1)
        work.arrays["words"].zero_()
        self._write(work, seeds, key, 0)
        self._number(work, -1, len(seeds), ranks, pending)
        nodes = edges = 0
        for hop in range(len(self.fanouts)):
            counts = work.counts.tolist()
            rows, nodes = counts[hop] - nodes, counts[hop]
            added, edges = counts[len(self.fanouts) + 1 + hop] - edges, counts[len(self.fanouts) + 1 + hop]
            if nodes + added >= pending or edges >= pending:
                raise ValueError("the sample is too large: use smaller fanouts or fewer seeds")
            self._grow(work, nodes + added, edges)
            self._draw(work, hop, rows, ranks, pending, positions)
            self._number(work, hop, added, ranks, pending)
        self._relabel(work, edges, ranks)
        work.base = _STAMPS  # stamps of this layout serve no other batch
        counts = work.counts.tolist()
        return Pending(lambda: self._copied(work, counts, positions))

    # ---- launches

    def _number(self, work: Workspace, hop: int, edges: int, ranks: int, pending: int) -> None:
        hops, last = len(self.fanouts), hop + 1 == len(self.fanouts)
        tiles = max(triton.cdiv(edges, _TILE), 1)
        words = work.words[hop + 1]
        kernels.number_kernel[(tiles,)](
            work.params,
            work.counts,
            work.params[_HEAD:] if hop < 0 else work.raw,
            work.nodes,
            work.starts,
            work.degrees,
            work.row_ends,
            self.indptr,
            work.stamp,
            words[0],
            words[1],
            hop,
            hops,
            0 if last else self.fanouts[hop + 1],
            ranks,
            pending,
            seeds=hop < 0,
            last=last,
            replace=self.replace,
            size=_TILE,
            chunk=_CHUNK,
        )

    def _draw(self, work: Workspace, hop: int, rows: int, ranks: int, pending: int, positions: bool) -> None:
        fanout = self.fanouts[hop]
        common = (
            work.params,
            work.counts,
            work.nodes,
            work.starts,
            work.degrees,
            work.row_ends,
            self.indices,
            work.raw,
            work.positions,
            work.stamp,
            hop,
            ranks,
            pending,
        )
        if rows == 0 or fanout == 0:
            return
        if 0 <= fanout <= _SLOTS:
            slots = max(triton.next_power_of_2(fanout), 2)
            tile = max(512 // slots, 4)
            kernels.draw_kernel[(triton.cdiv(rows, tile),)](
                *common, replace=self.replace, keep=positions, rows=tile, slots=slots, num_warps=4
            )
        else:
            kernels.draw_long_kernel[(rows,)](*common, replace=self.replace and fanout >= 0, chunk=256)

    def _relabel(self, work: Workspace, edges: int, ranks: int) -> None:
        if edges:
            grid = (triton.cdiv(edges, _TILE),)
            arrays = (work.params, work.counts, work.row_ends, work.raw, work.stamp, work.indices)
            kernels.relabel_kernel[grid](*arrays, len(self.fanouts), ranks, size=_TILE)

    # ---- memory

    def _take(self) -> Workspace:
        with self._lock:
            if self._idle:
                work = self._idle.pop()
            else:
                work = Workspace(torch.full((max(self.num_nodes, 1),), -1, dtype=torch.int32, device=self.device))
                hops = len(self.fanouts)
                work.arrays["counts"] = torch.zeros(2 * hops + 1, dtype=torch.int64, device=self.device)
                work.arrays["host_counts"] = torch.zeros(2 * hops + 1, dtype=torch.int64, pin_memory=self.device.type == "cuda")
                self._all.append(work)
        if work.free is not None:
            torch.cuda.current_stream(self.device).wait_event(work.free)
        return work

    def _give_back(self, work: Workspace) -> None:
        work.free = self._mark()
        with self._lock:
            self._idle.append(work)

    def _mark(self) -> torch.cuda.Event | None:
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _reserve(self, work: Workspace, seeds: int, nodes: int, edges: int) -> int:
        """Room for a sample; the number of ranks that its nodes and edges have."""
        if work.seeds < seeds:
            work.seeds = seeds
            work.replays.clear()
            work.arrays["params"] = torch.empty(_HEAD + seeds, dtype=torch.int64, device=self.device)
            work.arrays["host_params"] = torch.empty(_HEAD + seeds, dtype=torch.int64, pin_memory=self.device.type == "cuda")
        if work.nodes_room < nodes or work.edges_room < edges or "words" not in work.arrays:
            self._grow(work, nodes, edges)
        ranks = work.nodes_room + work.edges_room
        if work.base + 2 * ranks > _STAMPS or work.tag >= _TAGS:
            work.stamp.fill_(-1)
            work.words.zero_()
            work.base = work.tag = 0
        return nodes + edges

    def _grow(self, work: Workspace, nodes: int, edges: int) -> None:
        """More room, keeping what is there."""
        work.replays.clear()

        def grown(name: str, size: int, dtype: torch.dtype) -> None:
            old, new = work.arrays.get(name), torch.empty(max(size, 1), dtype=dtype, device=self.device)
            if old is not None:
                new[: len(old)] = old[: len(new)]
            work.arrays[name] = new

        if nodes > work.nodes_room or "nodes" not in work.arrays:
            work.nodes_room = nodes
            grown("nodes", nodes, self.indices.dtype)
            grown("row_ends", nodes + 1, torch.int64)
            grown("starts", nodes, torch.int64)
            grown("degrees", nodes, torch.int64)
        if edges > work.edges_room or "raw" not in work.arrays:
            work.edges_room = edges
            grown("raw", edges, self.indices.dtype)
            grown("indices", edges, torch.int32)
            grown("positions", edges, torch.int64)
        tiles = max(triton.cdiv(max(work.edges_room, work.seeds), _TILE), 1)
        if "words" not in work.arrays or work.words.shape[2] < tiles:
            work.arrays["words"] = torch.zeros(len(self.fanouts) + 1, 2, tiles, dtype=torch.int64, device=self.device)

    def _write(self, work: Workspace, seeds: Tensor, key: int, ranks: int) -> None:
        """Parameters and seeds of a batch, to the device in one copy."""
        work.tag += 1
        signed = key - 2**64 if key >= 2**63 else key
        head = work.host_params[:_HEAD].numpy()
        head[:] = (signed, work.base, work.tag, len(seeds))
        work.base += ranks
        end = _HEAD + len(seeds)
        if seeds.device.type == "cpu":
            work.host_params[_HEAD:end].copy_(seeds)
            work.params[:end].copy_(work.host_params[:end], non_blocking=True)
        else:
            work.params[:_HEAD].copy_(work.host_params[:_HEAD], non_blocking=True)
            work.params[_HEAD:end].copy_(seeds)

    def _copied(self, work: Workspace, counts: list[int], positions: bool) -> Sample:
        hops = len(self.fanouts)
        nodes, edges = counts[: hops + 1], counts[hops + 1 :]
        try:
            return Sample(
                work.nodes[: nodes[-1]].clone(),
                work.row_ends[: nodes[-2] + 1].clone(),
                work.indices[: edges[-1]].clone(),
                (nodes[0], *(b - a for a, b in itertools.pairwise(nodes))),
                (edges[0], *(b - a for a, b in itertools.pairwise(edges))),
                work.positions[: edges[-1]].clone() if positions else None,
            )
        finally:
            self._give_back(work)
