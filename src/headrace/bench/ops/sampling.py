"""Sampled edges per second, de-duplicated and relabeled: on CPU threads, or on a GPU from its memory and over the bus."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from headrace import _native
from headrace.bench import peers
from headrace.bench.measure import Row, needs_gpu, rate_row, time_in_turn
from headrace.bench.setting import FANOUTS, Setting
from headrace.graph import Dataset, Graph
from headrace.sample import NeighborSampler, Sample

Sampler = Callable[[Tensor, int], int]  # seeds, index of the batch -> edges
_CASES = (((15, 10, 5), 1024), ((15, 10, 5), 4096), ((25, 10), 1024), ((25, 10), 4096))  # on a GPU: fanouts, size of a batch
_ROUNDS = 4  # through the batches in what is timed of ours: one takes a few milliseconds
_PLAIN = "plain torch on the GPU, with replacement"
_METHODS = {"with replacement": {"replace": True}, "LABOR": {"labor": True}, "by weight": {"weighted": True}}


def on_cpu(setting: Setting) -> list[Row]:
    """Batches across threads (as the loader runs), and threads within a batch."""
    data = setting.dataset()
    fanouts = list(FANOUTS)
    batches = setting.seed_batches(data)
    sampler = NeighborSampler(data.graph, fanouts, threads=setting.threads)
    check(data.graph, sampler.sample(batches[0]), fanouts)

    others: dict[str, Callable[[Tensor], peers.Sampled]] = {}
    if setting.wants("pyg") and (backend := peers.pyg_backend()):
        setting.progress(f"preparing PyG with {backend}")
        others[f"PyG {backend}"] = peers.pyg_sampler(data, fanouts)
    if setting.wants("dgl") and peers.has_dgl():
        setting.progress("preparing DGL")
        others["DGL"] = peers.dgl_sampler(data, fanouts)

    rows = []
    for threads in sorted({1, setting.threads}):
        setting.progress(f"sampling with {threads} thread(s)")
        rows += _rows(data.graph, sampler, others, batches, threads, setting.repeats)
    return rows


def _rows(
    graph: Graph,
    sampler: NeighborSampler,
    others: dict[str, Callable[[Tensor], peers.Sampled]],
    batches: list[Tensor],
    threads: int,
    repeats: int,
) -> list[Row]:
    work: dict[str, float] = {}  # million edges
    bare = [BareSampler(graph, sampler.fanouts, len(batches[0])) for _ in range(threads)]

    def ours(seeds: Tensor, index: int) -> int:
        return sampler.sample(seeds, 0, index, threads=1).num_edges

    def within() -> None:
        edges = sum(sampler.sample(seeds, 0, j, threads=threads).num_edges for j, seeds in enumerate(batches))
        work["within"] = edges / 1e6

    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: spread("ours", [ours] * threads, batches, work),
        "limit": lambda: spread("limit", list(bare), batches, work),
    }
    runs |= {name: partial(in_line, name, sample, batches, work) for name, sample in others.items()}
    if threads > 1:
        runs["within"] = within
    torch.set_num_threads(threads)
    seconds = time_in_turn(runs, repeats=repeats)
    for name, count in work.items():
        if name != "DGL" and not 0.98 < count / work["ours"] < 1.02:  # DGL expands every node of the frontier again
            raise RuntimeError(f"{name} sampled {count:.3f} M edges where ours sampled {work['ours']:.3f} M: not comparable")

    def row(case: str, which: str) -> Row:
        taken = {name: s for name, s in seconds.items() if name not in ("ours", "within")} | {"ours": seconds[which]}
        return rate_row(case, "sampled edges", "M/s", work, taken)

    rows = [row(f"{threads} thread{'s' * (threads > 1)}, batches across threads", "ours")]
    return rows if threads == 1 else [*rows, row(f"{threads} threads within a batch", "within")]


def spread(name: str, samplers: list[Sampler], batches: list[Tensor], work: dict[str, float]) -> None:
    """Batches over as many Python threads as there are samplers."""
    edges = [0] * len(samplers)

    def one(i: int) -> None:
        for j in range(i, len(batches), len(samplers)):
            edges[i] += samplers[i](batches[j], j)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(samplers))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    work[name] = sum(edges) / 1e6


def in_line(name: str, sample: Callable[[Tensor], peers.Sampled], batches: list[Tensor], work: dict[str, float]) -> None:
    """Batches one after the other: a peer uses its own threads."""
    work[name] = sum(sample(seeds)[0] for seeds in batches) / 1e6


class BareSampler:
    """The limit: a loop that does only the memory accesses no sampler can avoid. One per thread."""

    def __init__(self, graph: Graph, fanouts: list[int], batch: int) -> None:
        most = np.cumprod([batch, *fanouts])
        edges = int(most[1:].sum())
        self.graph, self.fanouts = graph, np.array(fanouts, np.int32)
        self.stamp = np.full(graph.num_nodes, -1, np.int32)
        self.sources, self.targets = np.zeros(edges, np.int32), np.zeros(edges, np.int32)
        self.nodes = np.zeros(edges + batch, np.int64)
        self.indices = graph.indices.to(torch.int32)

    def sample(self, seeds: Tensor, index: int) -> tuple[int, int]:
        """Nodes and edges of one batch; the node ids are left in `nodes`."""
        return _native.bare_sample(
            self.graph.indptr,
            self.indices,
            self.stamp,
            seeds,
            self.fanouts,
            self.sources,
            self.targets,
            self.nodes,
            index + 1,
        )

    def __call__(self, seeds: Tensor, index: int) -> int:
        return self.sample(seeds, index)[1]


def check(graph: Graph, sample: Sample, fanouts: list[int]) -> None:
    """Every row of the sample: as many distinct entries as the fanout and the degree allow, all of them neighbors."""
    hop, left = 0, sample.num_sampled_nodes[0]
    nodes = sample.nodes.tolist()
    for row in range(len(sample.indptr) - 1):
        while left == 0:
            hop += 1
            left = sample.num_sampled_nodes[hop]
        left -= 1
        if row % 97:  # a share of the rows is enough
            continue
        drawn = sample.indices[int(sample.indptr[row]) : int(sample.indptr[row + 1])].tolist()
        known = graph.neighbors(nodes[row]).tolist()
        expected = len(known) if fanouts[hop] < 0 else min(len(known), fanouts[hop])
        if len(drawn) != expected or not {nodes[i] for i in drawn} <= set(known):
            raise RuntimeError(f"the sample of node {nodes[row]} is wrong: nothing is timed")


def on_cuda(setting: Setting) -> list[Row]:
    """Uniform draws in both places, beside our CPU sampler with all threads; then the other ways to draw, in GPU memory.

    The limit is one random read of four bytes per edge: of the neighbor's id, wherever it lies.
    """
    device = needs_gpu()
    from headrace.bench.ops.random_reads import random_read_rate

    data = setting.dataset()
    limits = {
        "gpu": random_read_rate(data.graph.indices.to(device), repeats=setting.repeats),
        "uva": random_read_rate(data.graph.pin().indices, repeats=setting.repeats),
    }
    rows = []
    for fanouts, size in _CASES:
        batches = setting.seed_batches(data, size=size)
        cpu = NeighborSampler(data.graph, fanouts, threads=setting.threads, device="cpu")
        for mode in ("gpu", "uva"):
            case = f"{mode}, fanout {','.join(map(str, fanouts))}, batch {size}"
            setting.progress(case)
            ours = NeighborSampler(data.graph, fanouts, device=device, mode=mode)  # type: ignore[arg-type]
            check_equal(ours.sample(batches[0]), cpu.sample(batches[0]), case)
            many = batches * _ROUNDS
            runs: dict[str, Callable[[], int]] = {
                "ours": partial(through, ours, many),
                "two under way": partial(through, ours, many, together=1),
                "one at a time": partial(one_by_one, ours, many),
            }
            if mode == "gpu":  # nothing else samples on this GPU
                runs[_PLAIN] = partial(PlainTorch(data.graph.to(device), fanouts).through, batches)
            rates = _rates(runs, setting.repeats)
            # By itself: what runs on a GPU suffers from threads that have just been at work on all processors.
            rates |= _rates({f"ours, CPU, {setting.threads} threads": partial(one_by_one, cpu, batches)}, setting.repeats)
            ours_rate, others = rates.pop("ours"), {how: rates.pop(how) for how in ("two under way", "one at a time")}
            rows.append(Row(case, "sampled edges", "M/s", ours_rate, rates, limits[mode] / 1e6))
            for how, rate in others.items():
                rows.append(Row(f"{case}, {how}", "sampled edges", "M/s", rate, {}, limits[mode] / 1e6))
    return rows + _other_draws(setting, data, device, limits["gpu"])


def _rates(runs: dict[str, Callable[[], int]], repeats: int) -> dict[str, float]:
    """Million edges a second of runs that return their edges."""
    edges = {name: run() for name, run in runs.items()}
    return {name: edges[name] / seconds / 1e6 for name, seconds in time_in_turn(dict(runs), repeats=repeats).items()}


def _other_draws(setting: Setting, data: Dataset, device: torch.device, limit: float) -> list[Row]:
    fanouts, size = _CASES[0]
    batches = setting.seed_batches(data, size=size)
    weighted = data.graph.with_weight(torch.rand(data.graph.num_edges))
    rows = []
    for name, options in _METHODS.items():
        setting.progress(name)
        graph = weighted if "weighted" in options else data.graph
        ours = NeighborSampler(graph, fanouts, device=device, mode="gpu", **options)  # type: ignore[arg-type]
        cpu = NeighborSampler(graph, fanouts, threads=setting.threads, device="cpu", **options)  # type: ignore[arg-type]
        check_equal(ours.sample(batches[0]), cpu.sample(batches[0]), name)
        rate = _rates({"ours": partial(through, ours, batches)}, 1)["ours"]
        peers = _rates({f"ours, CPU, {setting.threads} threads": partial(one_by_one, cpu, batches[:5])}, 1)
        case = f"gpu, {name}, fanout {','.join(map(str, fanouts))}, batch {size}"
        rows.append(Row(case, "sampled edges", "M/s", rate, peers, limit / 1e6))
    return rows


class PlainTorch:
    """What a user writes in an hour: neighbors drawn with replacement by torch's operations, new nodes by `torch.unique`."""

    def __init__(self, graph: Graph, fanouts: tuple[int, ...]) -> None:
        self.graph, self.fanouts = graph, fanouts

    def through(self, batches: list[Tensor]) -> int:
        edges = sum(self.sample(seeds) for seeds in batches)
        torch.cuda.synchronize()
        return edges

    def sample(self, seeds: Tensor) -> int:
        """The edges of one batch."""
        graph = self.graph
        nodes = frontier = seeds.to(graph.device)
        edges = 0
        for fanout in self.fanouts:
            begin = graph.indptr[frontier]
            degree = graph.indptr[frontier + 1] - begin
            drawn = (torch.rand(len(frontier), fanout, device=graph.device) * degree.unsqueeze(1)).long()
            neighbors = graph.indices[(begin.unsqueeze(1) + drawn)[degree > 0].clamp_max(graph.num_edges - 1)].flatten().long()
            both, _ = torch.unique(torch.cat([nodes, neighbors]), return_inverse=True)
            frontier = both[~torch.isin(both, nodes)]
            nodes = torch.cat([nodes, frontier])
            edges += len(neighbors)
        return edges


def through(sampler: NeighborSampler, batches: list[Tensor], *, together: int = 8) -> int:
    """Edges of all batches, `together` of them launched at a time."""
    edges = sum(sample.num_edges for sample in sampler.samples(batches, together=together))
    torch.cuda.synchronize()
    return edges


def one_by_one(sampler: NeighborSampler, batches: list[Tensor]) -> int:
    """Edges of all batches, each awaited before the next is launched."""
    edges = sum(sampler.sample(seeds, 0, index).num_edges for index, seeds in enumerate(batches))
    torch.cuda.synchronize()
    return edges


def check_equal(ours: Sample, cpu: Sample, case: str) -> None:
    """The same bits, or nothing is timed."""
    for name in ("nodes", "indptr", "indices"):
        if not torch.equal(getattr(ours, name).cpu(), getattr(cpu, name)):
            raise RuntimeError(f"{case}: {name} of the GPU's sample differ from the CPU's: nothing is timed")
