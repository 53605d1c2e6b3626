"""Sampled edges per second on a GPU, from its memory and over the bus, de-duplicated and relabeled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from headrace.bench.gpu import needs_gpu, random_read_rate
from headrace.bench.measure import Row, time_in_turn
from headrace.bench.setting import Setting
from headrace.graph import Dataset, Graph
from headrace.sample import NeighborSampler, Sample

CASES = (((15, 10, 5), 1024), ((15, 10, 5), 4096), ((25, 10), 1024), ((25, 10), 4096))
_ROUNDS = 4  # through the batches in what is timed of ours: one takes a few milliseconds
_PLAIN = "plain torch on the GPU, with replacement"
_METHODS = {"with replacement": {"replace": True}, "LABOR": {"labor": True}, "by weight": {"weighted": True}}


def run(setting: Setting) -> list[Row]:
    """Uniform draws in both places, beside our CPU sampler with all threads; then the other ways to draw, in GPU memory.

    The limit is one random read of four bytes per edge: of the neighbor's id, wherever it lies.
    """
    device = needs_gpu()
    data = setting.dataset()
    limits = {
        "gpu": random_read_rate(data.graph.indices.to(device), repeats=setting.repeats),
        "uva": random_read_rate(data.graph.pin().indices, repeats=setting.repeats),
    }
    rows = []
    for fanouts, size in CASES:
        batches = seed_batches(data, size, setting.batches)
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
            best, others = rates.pop("ours"), {how: rates.pop(how) for how in ("two under way", "one at a time")}
            rows.append(Row("gpu-sampling", case, "sampled edges", "M/s", best, rates, limits[mode] / 1e6))
            for how, rate in others.items():
                rows.append(Row("gpu-sampling", f"{case}, {how}", "sampled edges", "M/s", rate, {}, limits[mode] / 1e6))
    return rows + _other_draws(setting, data, device, limits["gpu"])


def _rates(runs: dict[str, Callable[[], int]], repeats: int) -> dict[str, float]:
    """Million edges a second of runs that return their edges."""
    edges = {name: run() for name, run in runs.items()}
    return {name: edges[name] / seconds / 1e6 for name, seconds in time_in_turn(dict(runs), repeats=repeats).items()}


def _other_draws(setting: Setting, data: Dataset, device: torch.device, limit: float) -> list[Row]:
    fanouts, size = CASES[0]
    batches = seed_batches(data, size, setting.batches)
    weighted = data.graph.with_weight(torch.rand(data.graph.num_edges))
    rows = []
    for name, options in _METHODS.items():
        setting.progress(name)
        graph = weighted if "weighted" in options else data.graph
        ours = NeighborSampler(graph, fanouts, device=device, mode="gpu", **options)  # type: ignore[arg-type]
        cpu = NeighborSampler(graph, fanouts, threads=setting.threads, device="cpu", **options)  # type: ignore[arg-type]
        check_equal(ours.sample(batches[0]), cpu.sample(batches[0]), name)
        through(ours, batches)
        begin = perf_counter()
        edges = through(ours, batches)
        took = perf_counter() - begin
        begin = perf_counter()
        one_by_one(cpu, batches[:5])
        theirs = (perf_counter() - begin) * len(batches) / len(batches[:5])
        peers = {f"ours, CPU, {setting.threads} threads": edges / theirs / 1e6}
        case = f"gpu, {name}, fanout {','.join(map(str, fanouts))}, batch {size}"
        rows.append(Row("gpu-sampling", case, "sampled edges", "M/s", edges / took / 1e6, peers, limit / 1e6))
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
            found = graph.indices[(begin.unsqueeze(1) + drawn)[degree > 0].clamp_max(graph.num_edges - 1)].flatten().long()
            both, _ = torch.unique(torch.cat([nodes, found]), return_inverse=True)
            frontier = both[~torch.isin(both, nodes)]
            nodes = torch.cat([nodes, frontier])
            edges += len(found)
        return edges


def seed_batches(data: Dataset, size: int, count: int) -> list[Tensor]:
    """Batches of training nodes, the same in every run."""
    train = data.splits.get("train", torch.arange(data.num_nodes))
    order = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(1))]
    size = min(size, len(order))
    return [order[i * size : (i + 1) * size].clone() for i in range(min(count, len(order) // size))]


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
