"""Benchmarks: every row is ours, the peers that are installed, and the machine's limit, from one run.

A benchmark is one file in one of the inner rooms: `on_cpu` and `on_cuda`, or `run` for both, each from a setting to rows. Options
that only one benchmark has are in its file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, make_dataclass, replace
from typing import Any, Literal

from headrace.bench.events import temporal
from headrace.bench.links import link, out_of_core, tiers
from headrace.bench.measure import Row
from headrace.bench.nodes import advise, cluster, elastic, loader, pyg_layers, ranks, train, whole_graph
from headrace.bench.ops import aggregate, attend, cache, gather, sampling
from headrace.bench.setting import Setting
from headrace.bench.snapshots import on_gpu, strategies
from headrace.train.options import option

Measure = Callable[[Any], list[Row]]


@dataclass(frozen=True)
class Bench:
    """A benchmark by its name on the command line: what it measures, its options, and how it is run on each device."""

    name: str
    help: str
    on_cpu: Measure
    on_cuda: Measure | None
    setting: type[Setting] = Setting

    def run(self, setting: Setting) -> list[Row]:
        """All rows, under the benchmark's name."""
        measure = self.on_cpu if setting.device == "cpu" else self.on_cuda
        if measure is None:
            raise ValueError(f"bench {self.name} runs on a CPU alone, not on {setting.device}")
        return [replace(row, bench=self.name) for row in measure(setting)]

    def renamed(self, name: str) -> Bench:
        """The same benchmark under another name, with the GPU as its device unless the options say otherwise."""
        cuda = [("device", Literal["cpu", "cuda"], option("cuda", "what is measured"))]
        setting = make_dataclass(f"Gpu{self.setting.__name__}", cuda, bases=(self.setting,), frozen=True)
        return replace(self, name=name, help=f"{self.name} --device cuda", setting=setting)


_ALL = (
    Bench("sampling", "sampled edges per second", sampling.on_cpu, sampling.on_cuda),
    Bench("gather", "bytes of sampled rows per second", gather.on_cpu, gather.on_cuda),
    Bench("cache", "hits and speed of cached rows", cache.run, None),
    Bench("aggregate", "sums over neighbors", aggregate.on_cpu, aggregate.on_cuda, aggregate.AggregateSetting),
    Bench("attend", "attention over a whole graph: time and memory", attend.on_cpu, attend.on_cuda),
    Bench("loader", "batches with their features; on a GPU, from three tiers", loader.on_cpu, loader.on_cuda),
    Bench("train", "training steps of GraphSAGE; on a GPU, epochs", train.on_cpu, train.on_cuda),
    Bench("ranks", "a data-parallel step of two ranks beside one rank with two threads", ranks.on_cpu, None),
    Bench("cluster", "a step of ranks on slow links, by how they train", cluster.run, None, cluster.ClusterSetting),
    Bench("gpu-push-pull", "cluster on one GPU that ranks share", cluster.run, cluster.run, cluster.GpuClusterSetting),
    Bench("elastic", "a full-graph step by tasks beside one process", elastic.on_cpu, None, elastic.ElasticSetting),
    Bench("whole-graph", "training steps of GCN and GIN on a whole graph", whole_graph.on_cpu, whole_graph.on_cuda),
    Bench("pyg", "PyG's layers and sampled steps, accelerated and not", pyg_layers.run, pyg_layers.run, pyg_layers.PygSetting),
    Bench("advise", "the advisor's choices beside all others", advise.run, advise.run),
    Bench("link", "an epoch of link prediction beside other systems", link.run, None, link.LinkPeersSetting),
    Bench("link-tiers", "link prediction with rows on device, host and disk", tiers.run, tiers.run, tiers.LinkTiersSetting),
    Bench("snapshots", "steps on snapshot groups by strategy", strategies.run, None, strategies.SnapshotSetting),
    Bench("gpu-snapshots", "a step on two streams beside one", on_gpu.run, on_gpu.run, on_gpu.GpuSnapshotSetting),
    Bench(
        "temporal",
        "TGN on an event stream, sampling and negatives included",
        temporal.run,
        temporal.on_cuda,
        temporal.TemporalSetting,
    ),
    Bench("out-of-core", "link prediction from disk, by order of partitions", out_of_core.run, None),
)
_ON_GPU = {
    "gpu-sampling": "sampling",
    "gpu-gather": "gather",
    "gpu-aggregate": "aggregate",
    "gpu-attend": "attend",
    "gpu-tiers": "loader",
    "gpu-epoch": "train",
    "gpu-whole-graph": "whole-graph",
    "gpu-advise": "advise",
    "gpu-link": "link-tiers",
    "gpu-temporal": "temporal",
}
BENCHES = {bench.name: bench for bench in _ALL}
BENCHES |= {name: BENCHES[bench].renamed(name) for name, bench in _ON_GPU.items()}

__all__ = ["BENCHES", "Bench", "Row", "Setting"]
