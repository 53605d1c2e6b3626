"""`NeighborSampler`: neighbors, hop by hop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids_near, as_times_near, first_outside, thread_count
from headrace.graph import Graph
from headrace.kernels import gather
from headrace.sample.gpu.launch import device_sampler, find_place
from headrace.sample.places import Mode
from headrace.sample.sample import Sample
from headrace.sample.sampler import Sampler, check_batch, check_seed, with_times
from headrace.sample.started import StartedSample
from headrace.sample.weights import cumulative, drawable
from headrace.store import BufferPool

if TYPE_CHECKING:
    from headrace.sample.gpu.device import DeviceSampler

# Up to here an array over all nodes finds a node's local id faster than a hash table does (measured; docs/sampling.md).
_STAMP_NODES = 12 << 20


class NeighborSampler(Sampler):
    """Samples up to `fanouts[h]` in-neighbors of every node that hop h - 1 added; -1 takes all.

    Uniformly, without replacement by Floyd's method, unless told otherwise. Every draw is Philox of (seed, epoch, batch, hop, node,
    slot), so a sample depends on these alone: never on threads, on what was sampled before or on the machine. Each hop expands only
    nodes that are new to the sample, as PyG does; a node keeps the place of its first appearance. So neighbors are drawn once a
    node, and every layer that needs the node reuses them: blocks are prefixes of one CSR (DENSE: Waleffe et al., "MariusGNN",
    EuroSys 2023).

    replace: draw with replacement.
    weighted: draw in proportion to `graph.weight` (Efraimidis and Spirakis, 2006, where it is without replacement). Edges of
        weight 0 are never drawn.
    labor: all rows share the random number of a neighbor, so that they agree on whom they take and a batch has fewer distinct
        nodes, while each row's own draw stays uniform, or by weight (LABOR: Balin and Catalyurek, "Layer-Neighbor Sampling",
        NeurIPS 2023, the sequential Poisson form). `layer_dependency` shares the numbers between hops too, and
        `batch_dependency` k lets a neighbor keep its number for k batches, which lifts the hit rate of caches.
    disjoint: every seed grows a tree of its own, and `Sample.tree` says which a node is in.
    temporal: "uniform" or "last". Of the edges into a node of a seed's tree only those before the seed's time count (`inclusive`:
        also those at it); "last" takes the latest of them in place of drawing. Trees are disjoint, `graph.time` must
        not decrease within a row (`Graph.sorted_by_time`), and `sample` is given a time for every seed.
    hop_time: "seed", or "edge": what a node of a later hop sees lies before the edge that led to it, in place of before its tree's
        seed. Each edge leads to a node of its own then, in the order of edges: the neighbor as of that time. Those of one node and
        time in a tree draw alike.
    since: with `temporal`, edges before this time do not count.
    device, mode: where to sample. "cuda" samples by kernels of the GPU, the same samples to the bit, and returns them in its
        memory; so do graphs that are there (`Graph.to`) or pinned (`Graph.pin`). "gpu" copies the graph there, "uva" lets
        the kernels read its edges from the host's memory, "auto" decides by size, and "cpu" keeps all on the CPU (`place` says
        what was chosen, and why).

    >>> import headrace as hr
    >>> graph = hr.generate.community(nodes=1000, edges=20000, classes=4, features=0).graph
    >>> sampler = hr.sample.NeighborSampler(graph, [5, 3], seed=7)
    >>> sample = sampler.sample([3, 14, 15], epoch=0, batch=0)
    >>> sample.nodes[:3].tolist(), len(sample.blocks)
    ([3, 14, 15], 2)
    >>> events = hr.Graph.from_edges([0, 1, 2], [3, 3, 3], time=[10, 20, 30])
    >>> hr.sample.NeighborSampler(events, [2], temporal="last").sample([3, 3], time=[30, 15]).nodes.tolist()
    [3, 3, 0, 1, 0]
    """

    def __init__(
        self,
        graph: Graph,
        fanouts: Sequence[int],
        *,
        replace: bool = False,
        weighted: bool = False,
        labor: bool = False,
        layer_dependency: bool = False,
        batch_dependency: int = 1,
        disjoint: bool = False,
        temporal: Literal["uniform", "last"] | None = None,
        inclusive: bool = False,
        hop_time: Literal["seed", "edge"] = "seed",
        since: float | None = None,
        seed: int = 0,
        threads: int | None = None,
        pool: BufferPool | None = None,
        deduplicate_by: Literal["auto", "stamp", "hash"] = "auto",
        device: str | torch.device | None = None,
        mode: Mode = "auto",
    ) -> None:
        self.graph = graph
        self.fanouts = [int(k) for k in fanouts]
        if not self.fanouts or min(self.fanouts) < -1:
            raise ValueError(f"fanouts must be one number per hop, each at least 0 or -1 for all; got {list(fanouts)}")
        check_seed(seed)
        if deduplicate_by not in ("auto", "stamp", "hash"):
            raise ValueError(f"deduplicate_by must be 'auto', 'stamp' or 'hash', not {deduplicate_by!r}")
        self.replace, self.weighted = replace, weighted
        self.labor, self.layer_dependency, self.batch_dependency = labor, layer_dependency, batch_dependency
        self.disjoint, self.temporal, self.inclusive = disjoint or temporal is not None, temporal, inclusive
        self.hop_time, self.since, self.seed = hop_time, since, seed
        self.threads = thread_count(threads)
        self.pool = pool if pool is not None else BufferPool(limit=256 << 20)
        self._check(deduplicate_by)
        # What is drawn from: the graph, but for edges of weight 0.
        self.drawn = drawn = drawable(graph) if weighted else graph
        self.place, self.device = find_place(drawn, mode, device, pinned=graph.is_pinned, sums=weighted and replace)
        how: dict[str, Any] = {
            "replace": replace,
            "disjoint": self.disjoint,
            "last": temporal == "last",
            "inclusive": inclusive,
            "edge_time": hop_time == "edge",
            "since": self._since(),
            "labor": labor,
            "layer_dependency": layer_dependency,
            "batch_dependency": batch_dependency,
        }
        self._launched: DeviceSampler | None = None
        if self.place.mode != "cpu":
            self._launched = device_sampler(
                drawn,
                self.fanouts,
                mode=self.place.mode,
                device=self.device,
                sums=weighted and replace,
                threads=self.threads,
                weighted=weighted,
                temporal=temporal is not None,
                seed=seed,
                **how,
            )
            return
        self._native = _native.Sampler(
            drawn.indptr,
            drawn.indices,
            self.fanouts,
            hash=deduplicate_by == "hash" or (deduplicate_by == "auto" and graph.num_nodes > _STAMP_NODES),
            weight=drawn.weight if weighted else None,
            cumulative=cumulative(drawn, threads=self.threads) if weighted and replace else None,
            time=None if temporal is None else drawn.time,
            **how,
        )

    def _check(self, deduplicate_by: str) -> None:
        """Refuse options that do not go together."""
        if self.temporal not in (None, "uniform", "last"):
            raise ValueError(f"temporal must be 'uniform', 'last' or None, not {self.temporal!r}")
        if self.temporal == "last" and (self.replace or self.weighted):
            raise ValueError("temporal='last' leaves nothing to chance: use temporal='uniform' with replace or weighted")
        if self.inclusive and self.temporal is None:
            raise ValueError("inclusive says which edges are past: it needs temporal='uniform' or 'last'")
        if self.hop_time not in ("seed", "edge"):
            raise ValueError(f"hop_time must be 'seed' or 'edge', not {self.hop_time!r}")
        if (self.hop_time == "edge" or self.since is not None) and self.temporal is None:
            raise ValueError("hop_time='edge' and since go by times: they need temporal='uniform' or 'last'")
        if self.since is not None and self.replace and self.weighted:
            raise ValueError("since does not go with weighted draws with replacement: leave out replace")
        if self.labor and (self.replace or self.disjoint):
            raise ValueError("labor shares draws between rows: it goes neither with replace nor with disjoint or temporal")
        if not 1 <= self.batch_dependency < 2**32:
            raise ValueError(f"batch_dependency must be from 1 to 2**32 - 1 batches, not {self.batch_dependency}")
        if not self.labor and (self.layer_dependency or self.batch_dependency != 1):
            raise ValueError("layer_dependency and batch_dependency are of LABOR: they need labor=True")
        if self.disjoint and deduplicate_by == "stamp":
            raise ValueError("disjoint trees are told apart by hashing: deduplicate_by must be 'auto' or 'hash', not 'stamp'")
        if self.temporal is None:
            return
        if self.graph.time is None:
            raise ValueError("temporal sampling needs a graph with times: give from_edges(..., time=...)")
        if not self.graph.is_sorted_by_time():
            raise ValueError("times must not decrease within a row of the graph: sample from graph.sorted_by_time()")

    def _since(self) -> Tensor | None:  # -> [1], in the type of the graph's times
        if self.since is None:
            return None
        assert self.drawn.time is not None
        try:
            return self.seed_times([self.since], 1, check=True)
        except ValueError as error:
            raise ValueError(f"since={self.since!r}: {error}") from None

    def sample(
        self,
        seeds: Any,
        epoch: int = 0,
        batch: int = 0,
        *,
        time: Any | None = None,
        edge_ids: bool = False,
        edge_times: bool = False,
        threads: int | None = None,
        check: bool = True,
    ) -> Sample:
        """The sample of `seeds` as batch `batch` of epoch `epoch`. Safe to call from many threads at a time.

        `time` is that of every seed, for temporal sampling. `edge_ids` also returns, per edge, the graph's `edge_id` (or the edge's
        position where the graph keeps none), and `edge_times`, of temporal sampling, its time. To look at seeds and times on a GPU
        the host waits for them; `check=False`, for those that are known to be good, does not: kernels follow what they are given.
        """
        extra = {"edge_ids": edge_ids, "edge_times": edge_times}
        return self.start(seeds, epoch, batch, time=time, threads=threads, check=check, **extra).finish()

    def start(
        self,
        seeds: Any,
        epoch: int = 0,
        batch: int = 0,
        *,
        time: Any | None = None,
        edge_ids: bool = False,
        edge_times: bool = False,
        threads: int | None = None,
        check: bool = True,
    ) -> StartedSample:
        """`sample` in two parts, so that others can work meanwhile: `start(...).finish()` is the sample.

        On a GPU its kernels are launched now, on the current stream, and `finish` waits for them; on the CPU `finish` samples.
        """
        ids, times = self._checked(seeds, epoch, batch, time, check)
        if edge_times and self.temporal is None:
            raise ValueError("edge_times is for temporal sampling: set temporal='uniform' or 'last'")
        if self._launched is not None:
            (pending,) = self._launched.start([(ids, times)], epoch, batch, positions=edge_ids, edge_times=edge_times)
            return pending
        return StartedSample(lambda: self._sample(ids, epoch, batch, times, edge_ids, edge_times, threads))

    def samples(
        self,
        batches: Iterable[Any],
        epoch: int = 0,
        *,
        first: int = 0,
        times: Iterable[Any] | None = None,
        edge_ids: bool = False,
        edge_times: bool = False,
        threads: int | None = None,
        check: bool = True,
        together: int = 8,
    ) -> Iterator[Sample]:
        """The samples of many batches of seeds: `sample(batches[i], epoch, first + i)` for each, in turn.

        On a GPU the next one is launched before one is waited for. Small samples, whose launches would take longer than their
        kernels do, are launched as one, up to `together` (and 8) of them.
        """
        if together < 1:
            raise ValueError(f"together must be at least 1 batch, not {together}")
        numbered = enumerate(with_times(batches, times), first)
        if self._launched is None:
            extra = {"edge_ids": edge_ids, "edge_times": edge_times}
            for batch, (seeds, time) in numbered:
                yield self.sample(seeds, epoch, batch, time=time, threads=threads, check=check, **extra)
            return
        under_way: list[StartedSample] = []
        for batch, (seeds, time) in numbered:
            asked = [self._checked(seeds, epoch, batch, time, check)]
            as_one = min(self._launched.lanes(together, len(asked[0][0])), together)
            others = islice(numbered, as_one - 1)
            asked += [self._checked(seeds, epoch, number, time, check) for number, (seeds, time) in others]
            started = self._launched.start(asked, epoch, batch, positions=edge_ids, edge_times=edge_times)
            for pending in under_way:
                yield pending.finish()
            under_way = started
        for pending in under_way:
            yield pending.finish()

    def _checked(self, seeds: Any, epoch: int, batch: int, time: Any | None, check: bool) -> tuple[Tensor, Tensor | None]:
        ids = as_ids_near(seeds, "seeds", self.device)
        ids = ids if ids.dtype == torch.int64 else ids.long()
        check_batch(epoch, batch, most=2**32 if self.labor else 2**64)
        if ids.device.type == "cpu":
            low, high = _native.id_range(ids.numpy(), 1)
        elif check and len(ids):
            low, high = (int(bound) for bound in torch.aminmax(ids))
        else:
            low, high = 0, -1
        if low < 0 or high >= self.graph.num_nodes:
            at = first_outside(ids, 0, self.graph.num_nodes)
            raise IndexError(f"seeds[{at}] is {int(ids[at])}: the graph has nodes 0 to {self.graph.num_nodes - 1}")
        return ids, self.seed_times(time, len(ids), check=check)

    def _sample(
        self,
        ids: Tensor,
        epoch: int,
        batch: int,
        times: Tensor | None,
        edge_ids: bool,
        edge_times: bool,
        threads: int | None,
    ) -> Sample:
        workers = self.threads if threads is None else thread_count(threads)
        nodes, indptr, indices, positions, tree, node_counts, edge_counts = self._native.sample(
            ids,
            self.pool.native,
            seed=self.seed,
            epoch=epoch,
            batch=batch,
            positions=edge_ids or edge_times,
            threads=workers,
            time=times,
        )

        def beside(own: Tensor | None) -> Tensor:
            at = torch.from_numpy(positions)
            return at if own is None else gather(own, at, out=self.pool.empty(at.shape, own.dtype), threads=workers)

        return Sample(
            torch.from_numpy(nodes),
            torch.from_numpy(indptr),
            torch.from_numpy(indices),
            tuple(node_counts),
            tuple(edge_counts),
            beside(self.drawn.edge_id) if edge_ids else None,
            None if tree is None else torch.from_numpy(tree),
            beside(self.drawn.time) if edge_times else None,
        )

    def seed_times(self, time: Any | None, seeds: int, *, check: bool = False) -> Tensor | None:  # -> [seeds]
        """`time` in the type of the graph's times, after a check that every seed has one exactly if it needs one."""
        if (time is None) != (self.temporal is None):
            missing = "temporal sampling needs the time of every seed: give time="
            raise ValueError(missing if time is None else "time is for temporal sampling: set temporal='uniform' or 'last'")
        if time is None:
            return None
        assert self.drawn.time is not None
        times = as_times_near(time, "time", self.device)
        check = check or times.device.type == "cpu"
        if len(times) != seeds:
            raise ValueError(f"time has {len(times)} entries for {seeds} seeds")
        if times.dtype.is_floating_point and check and bool(times.isnan().any()):
            raise ValueError(f"time[{int(times.isnan().nonzero()[0])}] is not a number")
        if times.dtype.is_floating_point and seeds and not self.drawn.time.dtype.is_floating_point:
            raise ValueError("time holds real numbers, but the graph's times are integers: give integers")
        return times.to(self.drawn.time.dtype)

    @property
    def workspace_bytes(self) -> int:
        """Memory kept between batches, over all samples under way at a time: on the CPU to find repeated nodes, on a GPU for all
        that a sample may need."""
        if self._launched is not None:
            return self._launched.workspace_bytes
        return self._native.workspace_bytes
