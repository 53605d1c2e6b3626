"""Sampling by kernels of a GPU, from a graph in its memory or in page-locked host memory: the CPU's samples, bit for bit."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
import triton
from torch import Tensor

from headrace import _native
from headrace._capture import recording
from headrace.kernels._sampling import triton_number as _triton_number
from headrace.kernels._sampling import triton_place as _triton_place
from headrace.kernels._sampling import triton_rank as _triton_rank
from headrace.kernels._sampling import triton_sample as _triton_sample
from headrace.sample.gpu.workspace import HEAD, STAMPS, TILE, Beside, Bound, Lane, Request, Workspace, Workspaces
from headrace.sample.sample import Sample
from headrace.sample.started import StartedSample

_CHUNK = 256  # tiles whose sums are read at a time
_SLOTS = 128  # most neighbors that a tile of rows draws together
_SHORT = 64  # longest row whose ranks a tile of rows compares together
_MOST_LANES = 8  # samples that are launched as one: more would save little of a launch, and hold up the first
_TOGETHER = 1 << 23  # edges up to which that pays: kernels of larger samples take longer than their launches
_MOST_TREES = 2**24 - 1  # tree + 1 stands beside the hop in a Philox counter


class _Together:
    """Samples that were launched as one: their counts, and how many of them still need the workspace."""

    def __init__(self, count: int, read: Callable[[], list[list[int]]]) -> None:
        self._left, self._read = count, read
        self._counts: list[list[int]] | None = None
        self._lock = threading.Lock()

    def counts(self, work: Workspace) -> list[list[int]]:
        """The counts of each sample. Waits until all are done."""
        if self._counts is None:
            if work.done is not None:
                work.done.synchronize()
            self._counts = self._read()
        return self._counts

    def left_by_last(self) -> bool:
        """Note that one sample no longer needs the workspace. True if it was the last one."""
        with self._lock:
            self._left -= 1
            return self._left == 0


class DeviceSampler:
    """`NeighborSampler` on a device. `indptr` must lie there; the other arrays there or in page-locked host memory (UVA).

    A batch of bounded size, or several small ones, are one replay of a captured CUDA graph: memory is reserved for the largest
    possible sample, all sizes stay on the device, and the host reads them once, at the end. Where a fanout is -1 the bound is
    unknown, and each hop's sizes are read before the next is launched. Nothing is checked here: the graph must be valid and the
    seeds nodes of it.

    weight: draw by it; `cumulative` (its sums within rows, float64) takes its place with replacement.
    time: of the edges; only those before a seed's time count in its tree (`inclusive`: also those at it), and the `last` of them
        are taken if asked for. Trees are disjoint then. `edge_time`: in later hops only those before the edge that led to the
            row count. `since`: no earlier ones do (one time).
    edge_id: ids that samples give in place of positions.
    owner: kept as long as the sampler, for memory that stays page-locked only as long as its graph.
    """

    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        fanouts: Sequence[int],
        *,
        seed: int,
        replace: bool = False,
        disjoint: bool = False,
        weight: Tensor | None = None,
        cumulative: Tensor | None = None,
        time: Tensor | None = None,
        last: bool = False,
        inclusive: bool = False,
        edge_time: bool = False,
        since: Tensor | None = None,
        labor: bool = False,
        layer_dependency: bool = False,
        batch_dependency: int = 1,
        edge_id: Tensor | None = None,
        owner: object = None,
    ) -> None:
        self.indptr, self.indices, self.fanouts, self.seed = indptr, indices, list(fanouts), seed
        self.replace, self.disjoint = replace, disjoint or time is not None
        self.weight, self.cumulative, self.edge_id = weight, cumulative, edge_id
        self.time, self.last, self.inclusive, self.edge_time = time, last, inclusive, edge_time
        self.since = None if since is None else since.to(indptr.device)
        self.labor, self.layer_dependency, self.batch_dependency = labor, layer_dependency, batch_dependency
        self.device, self._owner = indptr.device, owner
        self.num_nodes = indptr.numel() - 1
        if self.disjoint and (len(self.fanouts) > 255 or self.num_nodes > 2**40):
            raise ValueError("disjoint trees grow at most 255 hops, in a graph of at most 2^40 nodes")
        self._bounds: dict[int, Bound | None] = {}  # by number of seeds
        self.workspaces = Workspaces(
            self.device, indices.dtype, hops=len(self.fanouts), cells=0 if self.disjoint else max(self.num_nodes, 1)
        )

    @property
    def workspace_bytes(self) -> int:
        return self.workspaces.nbytes

    def start(
        self,
        requests: Sequence[tuple[Tensor, Tensor | None]],
        epoch: int,
        first: int,
        *,
        positions: bool,
        edge_times: bool = False,
    ) -> list[StartedSample]:
        """Launch the samples of batches `first`, `first` + 1, ...: for each its seeds, which must be ids of nodes, int64, on the
        host or the device, and their times."""
        if not requests:
            return []
        beside = Beside(positions, edge_times)
        largest = max(len(seeds) for seeds, _ in requests)
        if self.disjoint and largest > _MOST_TREES:
            raise ValueError("too many seeds for disjoint trees: at most 2^24 - 1 fit one batch")
        asked = [self._request(seeds, time, epoch, first + number) for number, (seeds, time) in enumerate(requests)]
        lanes = self.lanes(len(requests), largest)
        groups = (asked[begin : begin + lanes] for begin in range(0, len(asked), lanes))
        with self._here():
            return [pending for group in groups for pending in self._launch(group, lanes, beside)]

    def _request(self, seeds: Tensor, time: Tensor | None, epoch: int, batch: int) -> Request:
        purpose = _native.Purpose.labor if self.labor else _native.Purpose.sample
        key = _native.stream_key(self.seed, epoch, 0 if self.labor else batch, purpose)
        return Request(seeds, time, key, batch)

    def lanes(self, count: int, seeds: int) -> int:
        """How many of `count` samples of up to so many seeds are launched as one: 1 where they are large or of unknown size."""
        bound, lanes = self._bound(seeds), min(1 << (count - 1).bit_length(), _MOST_LANES)
        while lanes > 1 and (bound is None or lanes * bound.num_edges > _TOGETHER):
            lanes //= 2
        return lanes

    def _launch(self, requests: list[Request], lanes: int, beside: Beside) -> list[StartedSample]:
        largest = max(len(asked.seeds) for asked in requests)
        work = self.workspaces.take(lanes)
        try:
            bound = self._bound(max(work.seeds, largest)) or self._bound(largest)
            if bound is None:
                (asked,) = requests
                counts = self._step(work, asked, beside)
                return self._pending(work, 1, beside, lambda: [counts])
            ranks = work.reserve(bound)
            self._leap(work, bound, ranks, beside, send=work.write(requests, ranks=ranks))
            return self._pending(work, len(requests), beside, work.host_counts.tolist)
        except BaseException:
            self.workspaces.give_back(work)
            raise

    def _bound(self, seeds: int) -> Bound | None:
        if seeds not in self._bounds:
            most_new = self.num_nodes * seeds if self.disjoint else self.num_nodes
            self._bounds[seeds] = Bound.of(seeds, self.fanouts, sys.maxsize if self.edge_time else most_new)
        return self._bounds[seeds]

    def _here(self) -> AbstractContextManager[object]:
        if self.device.type != "cuda" or torch.cuda.current_device() == self.device.index:
            return nullcontext()
        return torch.cuda.device(self.device)

    def _pending(self, work: Workspace, count: int, beside: Beside, counts: Callable[[], list[list[int]]]) -> list[StartedSample]:
        """The samples in the first `count` lanes, which `counts` counts once they are done. The last one to be copied or dropped
        gives the workspace back."""
        if work.done is not None:
            work.done.record(self.workspaces.stream())
        id_type = None if not beside.ids else torch.int64 if self.edge_id is None else self.edge_id.dtype
        time_type = self.time.dtype if beside.times and self.time is not None else None
        together = _Together(count, counts)

        def finish(lane: int) -> Sample:
            with self._here():
                return work.copied(lane, together.counts(work)[lane], id_type, time_type)

        def release() -> None:
            if together.left_by_last():
                together.counts(work)  # what was launched still reads the host's parameters
                self.workspaces.give_back(work)

        return [StartedSample(partial(finish, lane), release) for lane in range(count)]

    def _leap(self, work: Workspace, bound: Bound, ranks: int, beside: Beside, *, send: bool) -> None:
        """Launch all hops of all lanes at once; if `send`, copy the parameters to the device first."""
        which = (bound.seeds, *beside, send)
        replay = work.replays.get(which)
        if replay is not None:
            replay.replay()
            return

        def launches() -> None:
            if send:
                work.send(times=self.time is not None)
            for lane in range(work.lanes):
                self._hops(Lane(work, lane), bound, ranks, beside)
            work.host_counts.copy_(work.counts, non_blocking=True)

        launches()  # also compiles what has not been compiled
        if self.device.type == "cuda":
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with recording(graph, stream):
                launches()
            work.replays[which] = graph

    def _hops(self, lane: Lane, bound: Bound, ranks: int, beside: Beside) -> None:
        """Launch the kernels of one sample whose sizes are bounded."""
        if self._shares:
            lane.table.fill_(-1)
            self._place(lane, "seeds", -1, bound.seeds, ranks, bound.num_nodes)
        self._number(lane, -1, bound.seeds, ranks, bound.num_nodes)
        for hop in range(len(self.fanouts)):
            self._draw(lane, hop, bound.rows[hop], ranks, bound.num_nodes, beside)
            if self._shares:
                self._place(lane, "edges", hop, bound.edges[hop], ranks, bound.num_nodes)
            self._number(lane, hop, bound.edges[hop], ranks, bound.num_nodes)
        self._relabel(lane, bound.num_edges, ranks, beside)

    @property
    def _shares(self) -> bool:
        """Whether edges of a tree to one node lead to the same, which a hash table finds."""
        return self.disjoint and not self.edge_time

    def _step(self, work: Workspace, asked: Request, beside: Beside) -> list[int]:
        """Launch one hop at a time, and return the counts of the sample."""
        pending, ranks, hops, size = 1 << 29, 1 << 30, len(self.fanouts), len(asked.seeds)
        work.reserve_seeds(size)
        work.grow(size, 1)
        work.replays.clear()
        work.forget()
        if work.write([asked], ranks=0):
            work.send(times=asked.time is not None)
        work.base = STAMPS  # stamps of this layout serve no other batch, also after an error
        lane = Lane(work, 0)
        if self._shares:
            work.table.fill_(-1)
            self._place(lane, "seeds", -1, size, ranks, pending)
        self._number(lane, -1, size, ranks, pending)
        nodes = edges = 0
        for hop in range(hops):
            counts = work.counts[0].tolist()
            rows, nodes = counts[hop] - nodes, counts[hop]
            added, edges = counts[hops + 1 + hop] - edges, counts[hops + 1 + hop]
            if nodes + added >= pending or edges >= pending:
                raise ValueError("the sample is too large: use smaller fanouts or fewer seeds")
            moved = work.grow(nodes + added, edges)
            self._draw(lane, hop, rows, ranks, pending, beside)
            if moved and self._shares:
                self._place(lane, "nodes", hop, nodes, ranks, pending)
            if self._shares:
                self._place(lane, "all edges" if moved else "edges", hop, edges if moved else added, ranks, pending)
            self._number(lane, hop, added, ranks, pending)
        self._relabel(lane, edges, ranks, beside)
        return work.counts[0].tolist()

    def _number(self, lane: Lane, hop: int, edges: int, ranks: int, pending: int) -> None:
        hops, last = len(self.fanouts), hop + 1 == len(self.fanouts)
        new_words, take_words = lane.words[hop + 1]
        _triton_number.number_kernel[(max(triton.cdiv(edges, TILE), 1),)](
            **self._arrays(lane, "edge_trees", "places"),
            raw=lane.params[HEAD:] if hop < 0 else lane.raw,
            indptr=self.indptr,
            time=self.indptr if self.time is None else self.time,
            seed_times=lane.params if self.time is None else lane.seed_times(self.time.dtype),
            since=self.indptr if self.since is None else self.since,
            positions=lane.positions,
            new_words=new_words,
            take_words=take_words,
            hop=hop,
            hops=hops,
            fanout=0 if last else self.fanouts[hop + 1],
            ranks=ranks,
            pending=pending,
            seeds=hop < 0,
            last=last,
            replace=self.replace,
            disjoint=self.disjoint,
            temporal=self.time is not None,
            inclusive=self.inclusive,
            each=self.edge_time,
            windowed=self.since is not None,
            latest=self.last,
            size=TILE,
            chunk=_CHUNK,
        )

    def _arrays(self, lane: Lane, *more: str) -> dict[str, Tensor]:
        """Arrays of a lane by the names that kernels have for them: those that all need, and `more`."""
        names = ("counts", "nodes", "starts", "degrees", "row_ends", "stamp", "trees", *more)
        of_trees = () if self.disjoint else ("trees", "edge_trees", "places")
        return {"request": lane.params} | {name: getattr(lane, "raw" if name in of_trees else name) for name in names}

    def _place(self, lane: Lane, of: str, hop: int, count: int, ranks: int, pending: int) -> None:
        """Find cells of the hash table for seeds, nodes or edges."""
        if count == 0:
            return
        ids = {"seeds": lane.params[HEAD:], "nodes": lane.nodes}.get(of, lane.raw)
        trees = lane.trees if of == "nodes" else lane.edge_trees
        arrays = (lane.params, lane.counts, lane.row_ends, ids, trees, lane.table, lane.places, lane.stamp)
        grid = (triton.cdiv(count, TILE),)
        _triton_place.place_kernel[grid](*arrays, hop, lane.table_bits, ranks, pending, of=of, size=TILE)

    def _draw(self, lane: Lane, hop: int, rows: int, ranks: int, pending: int, beside: Beside) -> None:
        fanout = self.fanouts[hop]
        if rows == 0 or fanout == 0:
            return
        replace, positions = self.replace and fanout >= 0, any(beside) or self.edge_time
        ranked = fanout >= 0 and (self.labor or (self.weight is not None and not replace))
        weight = self.weight if ranked else self.cumulative if replace else None
        arrays = self._arrays(lane, "raw", "edge_trees", "positions") | {"neighbors": self.indices}
        arrays["weight" if ranked else "cumulative"] = self.indptr if weight is None else weight
        how = {"hop": hop, "ranks": ranks, "pending": pending, "weighted": weight is not None, "disjoint": self.disjoint}
        if ranked:
            how |= {"word": 0 if self.layer_dependency else hop, "dependency": self.batch_dependency, "keep": positions}
            how |= {"labor": self.labor, "depends": self.batch_dependency > 1, "enable_fp_fusion": False}
            _triton_rank.rank_kernel[(triton.cdiv(rows, 8),)](**arrays, **how, rows=8, width=_SHORT)
            _triton_rank.rank_long_kernel[(triton.cdiv(rows, 4),)](**arrays, **how, rows=4, width=_SHORT, chunk=512)
        elif 0 <= fanout <= _SLOTS:
            slots = max(triton.next_power_of_2(fanout), 2)
            tile = max(512 // slots, 4)
            grid = (triton.cdiv(rows, tile),)
            how |= {"replace": replace, "keep": positions}
            _triton_sample.draw_kernel[grid](**arrays, **how, rows=tile, slots=slots, num_warps=4)
        else:
            _triton_sample.draw_long_kernel[(rows,)](**arrays, **how, replace=replace, chunk=256)

    def _relabel(self, lane: Lane, edges: int, ranks: int, beside: Beside) -> None:
        if edges:
            timed = beside.times and self.time is not None
            _triton_number.relabel_kernel[(triton.cdiv(edges, TILE),)](
                request=lane.params,
                counts=lane.counts,
                row_ends=lane.row_ends,
                places=lane.places if self.disjoint else lane.raw,
                stamp=lane.stamp,
                indices=lane.indices,
                positions=lane.positions,
                edge_id=lane.raw if self.edge_id is None else self.edge_id,
                time=self.time if timed else lane.raw,
                edge_times=lane.edge_times.view(self.time.dtype) if timed and self.time is not None else lane.raw,
                hops=len(self.fanouts),
                ranks=ranks,
                each=self.edge_time,
                identify=beside.ids and self.edge_id is not None,
                timed=timed,
                size=TILE,
            )
