"""Sampling by kernels of a GPU, from a graph in its memory or in page-locked host memory: the CPU's samples, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import triton
from torch import Tensor

from headrace import _native
from headrace._capture import recording
from headrace.kernels import _triton_number, _triton_place, _triton_rank, _triton_sample
from headrace.sample.pending import Pending
from headrace.sample.sample import Sample
from headrace.sample.workspace import HEAD, STAMPS, TILE, Bound, Workspace, Workspaces

_SAMPLE, _LABOR = 1, 6  # Purpose of native/philox.h
_CHUNK = 256  # tiles whose sums are read at a time
_SLOTS = 128  # most neighbours that a tile of rows draws together
_SHORT = 64  # longest row whose ranks a tile of rows compares together
_MOST_TREES = 2**24 - 1  # tree + 1 stands beside the hop in a Philox counter


class DeviceSampler:
    """`NeighborSampler` on a device. `indptr` must lie there; the other arrays there or in page-locked host memory (UVA).

    A batch of bounded size is one replay of a captured CUDA graph: memory is reserved for the largest possible sample, all sizes
    stay on the device, and the host reads them once, at the end. Where a fanout is -1 the bound is unknown, and each hop's sizes
    are read before the next is launched. Nothing is checked here: the graph must be valid and the seeds nodes of it.

    weight: draw by it; `cumulative` (its sums within rows, float64) takes its place with replacement.
    time: of the edges; only those before a seed's time count in its tree (`inclusive`: also those at it), and the `last` of them
        are taken if asked for. Trees are disjoint then.
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
        labor: bool = False,
        layer_dependency: bool = False,
        batch_dependency: int = 1,
        edge_id: Tensor | None = None,
        owner: object = None,
    ) -> None:
        self.indptr, self.indices, self.fanouts, self.seed = indptr, indices, list(fanouts), seed
        self.replace, self.disjoint = replace, disjoint or time is not None
        self.weight, self.cumulative, self.edge_id = weight, cumulative, edge_id
        self.time, self.last, self.inclusive = time, last, inclusive
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

    def start(self, seeds: Tensor, epoch: int, batch: int, *, positions: bool, time: Tensor | None = None) -> Pending:
        """Launch the sample of `seeds`, which must be ids of nodes, int64, on the host or the device, as their times."""
        if self.disjoint and len(seeds) > _MOST_TREES:
            raise ValueError("too many seeds for disjoint trees: at most 2^24 - 1 fit one batch")
        with self._here():
            work = self.workspaces.take()
            try:
                bound = self._bound(max(work.seeds, len(seeds))) or self._bound(len(seeds))
                if bound is None:
                    return self._step(work, seeds, epoch, batch, positions, time)
                ranks = work.reserve(bound)
                send = self._write(work, seeds, epoch, batch, ranks, time)
                self._leap(work, bound, ranks, positions, send)
                return self._pending(work, positions, counts=lambda: work.host_counts.tolist())
            except BaseException:
                self.workspaces.give_back(work)
                raise

    def _bound(self, seeds: int) -> Bound | None:
        if seeds not in self._bounds:
            self._bounds[seeds] = Bound.of(seeds, self.fanouts, self.num_nodes * seeds if self.disjoint else self.num_nodes)
        return self._bounds[seeds]

    def _here(self) -> AbstractContextManager[object]:
        if self.device.type != "cuda" or torch.cuda.current_device() == self.device.index:
            return nullcontext()
        return torch.cuda.device(self.device)

    def _write(self, work: Workspace, seeds: Tensor, epoch: int, batch: int, ranks: int, time: Tensor | None) -> bool:
        key = _native.stream_key(self.seed, epoch, 0 if self.labor else batch, _LABOR if self.labor else _SAMPLE)
        return work.write(seeds, time, key=key, batch=batch, ranks=ranks)

    def _pending(self, work: Workspace, positions: bool, *, counts: Callable[[], list[int]]) -> Pending:
        done = work.done
        if done is not None:
            done.record(self.workspaces.stream())
        id_type = torch.int64 if self.edge_id is None else self.edge_id.dtype

        def finish() -> Sample:
            if done is not None:
                done.synchronize()
            with self._here():
                return work.copied(counts(), id_type if positions else None)

        def release() -> None:
            if done is not None:  # what was launched still reads the host's parameters
                done.synchronize()
            self.workspaces.give_back(work)

        return Pending(finish, release)

    def _leap(self, work: Workspace, bound: Bound, ranks: int, positions: bool, send: bool) -> None:
        """All hops at once, and before them the parameters, if they are to be sent."""
        which = (bound.seeds, positions, send)
        replay = work.replays.get(which)
        if replay is not None:
            replay.replay()
            return

        def launches() -> None:
            if send:
                work.send(times=self.time is not None)
            if self.disjoint:
                work.table.fill_(-1)
                self._place(work, "seeds", -1, bound.seeds, ranks, bound.num_nodes)
            self._number(work, -1, bound.seeds, ranks, bound.num_nodes)
            for hop in range(len(self.fanouts)):
                self._draw(work, hop, bound.rows[hop], ranks, bound.num_nodes, positions)
                if self.disjoint:
                    self._place(work, "edges", hop, bound.edges[hop], ranks, bound.num_nodes)
                self._number(work, hop, bound.edges[hop], ranks, bound.num_nodes)
            self._relabel(work, bound.num_edges, ranks, positions)
            work.host_counts.copy_(work.counts, non_blocking=True)

        launches()  # also compiles what has not been compiled
        if self.device.type == "cuda":
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with recording(graph, stream):
                launches()
            work.replays[which] = graph

    def _step(self, work: Workspace, seeds: Tensor, epoch: int, batch: int, positions: bool, time: Tensor | None) -> Pending:
        """One hop at a time."""
        pending, ranks, hops = 1 << 29, 1 << 30, len(self.fanouts)
        work.reserve_seeds(len(seeds))
        work.grow(len(seeds), 1)
        work.replays.clear()
        work.forget()
        if self._write(work, seeds, epoch, batch, 0, time):
            work.send(times=time is not None)
        work.base = STAMPS  # stamps of this layout serve no other batch, also after an error
        if self.disjoint:
            work.table.fill_(-1)
            self._place(work, "seeds", -1, len(seeds), ranks, pending)
        self._number(work, -1, len(seeds), ranks, pending)
        nodes = edges = 0
        for hop in range(hops):
            counts = work.counts.tolist()
            rows, nodes = counts[hop] - nodes, counts[hop]
            added, edges = counts[hops + 1 + hop] - edges, counts[hops + 1 + hop]
            if nodes + added >= pending or edges >= pending:
                raise ValueError("the sample is too large: use smaller fanouts or fewer seeds")
            moved = work.grow(nodes + added, edges)
            self._draw(work, hop, rows, ranks, pending, positions)
            if moved:
                self._place(work, "nodes", hop, nodes, ranks, pending)
            if self.disjoint:
                self._place(work, "all edges" if moved else "edges", hop, edges if moved else added, ranks, pending)
            self._number(work, hop, added, ranks, pending)
        self._relabel(work, edges, ranks, positions)
        counts = work.counts.tolist()
        return self._pending(work, positions, counts=lambda: counts)

    def _number(self, work: Workspace, hop: int, edges: int, ranks: int, pending: int) -> None:
        hops, last = len(self.fanouts), hop + 1 == len(self.fanouts)
        words = work.words[hop + 1]
        _triton_number.number_kernel[(max(triton.cdiv(edges, TILE), 1),)](
            work.params,
            work.counts,
            work.params[HEAD:] if hop < 0 else work.raw,
            work.nodes,
            work.starts,
            work.degrees,
            work.row_ends,
            work.trees if self.disjoint else work.raw,
            work.edge_trees if self.disjoint else work.raw,
            work.places if self.disjoint else work.raw,
            self.indptr,
            self.indptr if self.time is None else self.time,
            work.params if self.time is None else work.seed_times(self.time.dtype),
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
            disjoint=self.disjoint,
            temporal=self.time is not None,
            inclusive=self.inclusive,
            latest=self.last,
            size=TILE,
            chunk=_CHUNK,
        )

    def _place(self, work: Workspace, of: str, hop: int, count: int, ranks: int, pending: int) -> None:
        """Cells of the hash table for seeds, nodes or edges."""
        if count == 0:
            return
        ids = {"seeds": work.params[HEAD:], "nodes": work.nodes}.get(of, work.raw)
        trees = work.trees if of == "nodes" else work.edge_trees
        arrays = (work.params, work.counts, work.row_ends, ids, trees, work.table, work.places, work.stamp)
        grid = (triton.cdiv(count, TILE),)
        _triton_place.place_kernel[grid](*arrays, hop, work.table_bits, ranks, pending, of=of, size=TILE)

    def _draw(self, work: Workspace, hop: int, rows: int, ranks: int, pending: int, positions: bool) -> None:
        fanout = self.fanouts[hop]
        if rows == 0 or fanout == 0:
            return
        replace = self.replace and fanout >= 0
        ranked = fanout >= 0 and (self.labor or (self.weight is not None and not replace))
        weight = self.weight if ranked else self.cumulative if replace else None
        common = (
            work.params,
            work.counts,
            work.nodes,
            work.trees if self.disjoint else work.raw,
            work.starts,
            work.degrees,
            work.row_ends,
            self.indices,
            self.indptr if weight is None else weight,
            work.raw,
            work.edge_trees if self.disjoint else work.raw,
            work.positions,
            work.stamp,
            hop,
        )
        how = {"weighted": weight is not None, "disjoint": self.disjoint}
        if ranked:
            word = 0 if self.layer_dependency else hop
            how |= {"labor": self.labor, "depends": self.batch_dependency > 1, "keep": positions, "enable_fp_fusion": False}
            arguments = (*common, word, self.batch_dependency, ranks, pending)
            _triton_rank.rank_kernel[(triton.cdiv(rows, 8),)](*arguments, rows=8, width=_SHORT, **how)
            _triton_rank.rank_long_kernel[(triton.cdiv(rows, 4),)](*arguments, rows=4, width=_SHORT, chunk=512, **how)
        elif 0 <= fanout <= _SLOTS:
            slots = max(triton.next_power_of_2(fanout), 2)
            tile = max(512 // slots, 4)
            grid = (triton.cdiv(rows, tile),)
            _triton_sample.draw_kernel[grid](
                *common, ranks, pending, replace=replace, keep=positions, rows=tile, slots=slots, num_warps=4, **how
            )
        else:
            _triton_sample.draw_long_kernel[(rows,)](*common, ranks, pending, replace=replace, chunk=256, **how)

    def _relabel(self, work: Workspace, edges: int, ranks: int, positions: bool) -> None:
        if edges:
            places = work.places if self.disjoint else work.raw
            edge_id = work.raw if self.edge_id is None else self.edge_id
            arrays = (work.params, work.counts, work.row_ends, places, work.stamp, work.indices, work.positions, edge_id)
            identify = positions and self.edge_id is not None
            grid = (triton.cdiv(edges, TILE),)
            _triton_number.relabel_kernel[grid](*arrays, len(self.fanouts), ranks, identify=identify, size=TILE)
