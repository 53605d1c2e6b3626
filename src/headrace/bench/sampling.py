"""Sampled edges per second, de-duplicated and relabeled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from headrace import _native
from headrace.bench import peers
from headrace.bench.measure import Row, rate_row, time_in_turn
from headrace.bench.setting import FANOUTS, Setting
from headrace.graph import Graph
from headrace.sample import NeighborSampler, Sample

Sampler = Callable[[Tensor, int], int]  # seeds, index of the batch -> edges


def run(setting: Setting) -> list[Row]:
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
        return rate_row("sampling", case, "sampled edges", "M/s", work, taken)

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
