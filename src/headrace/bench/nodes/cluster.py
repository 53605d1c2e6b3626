"""Training on several machines: a step and its bytes, by how ranks train, beside torch's DistributedDataParallel.

Ranks are processes in network namespaces with a link each, where those can be made; elsewhere they speak over loopback. On a GPU
they share it, and what they send goes through host memory: NCCL refuses two ranks on one GPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from headrace.bench.measure import Row
from headrace.bench.namespaces import Namespaces, bits_per_second, missing
from headrace.bench.nodes.cluster_job import OURS, PEER, ClusterJob, Measured
from headrace.bench.setting import Setting, check_trainable
from headrace.cluster.traffic import fetched, pulled, summed
from headrace.graph import Dataset, generate
from headrace.train.nodes.node import make_model
from headrace.train.nodes.options import NodeOptions
from headrace.train.nodes.over_ranks.parallel import hit_rate, mean_block
from headrace.train.options import option

CASES = ((768, 64), (100, 256))  # columns of features, and width of the hidden layer
_BATCH = 512
_NODES, _EDGES = 200_000, 3_000_000


@dataclass(frozen=True)
class ClusterSetting(Setting):
    """Options of `headrace bench cluster`."""

    preset: str = option("community", "generated dataset: community, or products, reddit, papers100M")
    scale: float = option(1.0, "its size, 1 being 200,000 nodes and 3 million edges of community, or that of the published one")
    threads: int = option(1, "threads of each rank")
    batches: int = option(10, "steps per timing")
    repeats: int = option(3, "timings of each, of which the median counts")
    ranks: int = option(4, "ranks")
    rate: str = option("1Gbit", "bits per second of each rank's link, in a network namespace of its own (0: over loopback)")


@dataclass(frozen=True)
class GpuClusterSetting(ClusterSetting):
    """Options of `headrace bench gpu-push-pull`."""

    device: Literal["cpu", "cuda"] = option("cuda", "what is measured")
    threads: int = option(4, "threads of each rank")
    ranks: int = option(2, "ranks, all on one GPU")
    rate: str = option("0", "bits per second of each rank's link, in a network namespace of its own (0: over loopback)")


def run(setting: ClusterSetting) -> list[Row]:
    """Seconds and bytes of a step, of each way that ours has to train; the limit is the time of the bytes on the link."""
    rows: list[Row] = []
    systems = (*OURS, PEER) if setting.wants("torch") else tuple(OURS)
    with network_of(setting) as (network, where):
        for data, hidden in _cases(setting):
            setting.progress(f"F={data.num_features}, H={hidden}: {len(systems)} systems in turn, {where}")
            with tempfile.TemporaryDirectory() as folder:
                job, data = prepared(Path(folder), data, hidden, setting, systems)
                measured = job.run(network)
            _check_equal(measured)
            on = "" if setting.device == "cpu" else " of one GPU"
            case = f"F={data.num_features}, H={hidden}, {setting.ranks} ranks{on}, batches of {job.batch_size}, {where}"
            rows += _rows(case, measured, {name: formula(data, job.options(name)) for name in OURS})
    return rows


def _rows(case: str, measured: Measured, formulas: dict[str, float]) -> list[Row]:
    rows = [Row(case, "sent by a rank in one large all_to_all", "bytes/s", measured.rate, {}, measured.link_rate)]
    peer = measured.systems.get(PEER)
    for name, formula_bytes in formulas.items():
        ours = measured.systems[name]
        steps, sent = ({}, {}) if peer is None else ({PEER: peer.step}, {PEER: peer.sent})
        rows.append(Row(f"{case}: {name}", "a step", "s", ours.step, steps, ours.sent / measured.link_rate))
        rows.append(Row(f"{case}: {name}", "sent by a rank in a step", "bytes", ours.sent, sent | {"formula": formula_bytes}))
    return rows


@contextmanager
def network_of(setting: ClusterSetting) -> Iterator[tuple[Namespaces | None, str]]:
    """Namespaces for the ranks, or None for loopback; and words for it."""
    rate = bits_per_second(setting.rate)
    if reason := missing() if rate else "as asked":
        yield None, f"over loopback ({reason})"
        return
    with Namespaces(setting.ranks, rate=rate) as network:
        yield network, f"links of {rate / 1e9:g} Gbit/s between network namespaces"


def _cases(setting: ClusterSetting) -> Iterator[tuple[Dataset, int]]:
    """Data, and the width of the hidden layer."""
    if setting.data is None and setting.preset == "community":
        yield from ((community(features, scale=setting.scale), hidden) for features, hidden in CASES)
    else:
        data = setting.dataset()
        check_trainable(data)
        yield from ((data, hidden) for _, hidden in CASES)


def community(features: int, *, scale: float = 1.0) -> Dataset:
    """The generated dataset, with so many columns of features; half of its nodes train."""
    nodes, edges, half = round(_NODES * scale), round(_EDGES * scale), (0.5, 0.25, 0.25)
    return generate.community(nodes=nodes, edges=edges, classes=16, features=features, seed=1, splits=half)


def prepared(
    folder: Path, data: Dataset, hidden: int, setting: ClusterSetting, systems: tuple[str, ...]
) -> tuple[ClusterJob, Dataset]:
    """A job, and its data: that with as many training nodes as the steps of an epoch take."""
    seeds = data.splits["train"]
    size = min(_BATCH, len(seeds) // (2 * setting.ranks))
    steps = min(setting.batches, len(seeds) // (size * setting.ranks))
    data = replace(data, splits={"train": seeds[: steps * size * setting.ranks]})
    data.save(folder / "data")
    return ClusterJob(folder, setting.ranks, hidden, size, systems, setting.threads, setting.repeats, setting.device), data


def _check_equal(measured: Measured) -> None:
    """The same weights and batches give the same loss, or nothing is reported."""
    losses = {name: figures.loss for name, figures in measured.systems.items()}
    if max(losses.values()) - min(losses.values()) > 1e-4:
        raise RuntimeError(f"losses of the first step differ, and nothing is reported: {losses}")


def formula(data: Dataset, options: NodeOptions) -> float:
    """Bytes that a rank should send in a step, by `headrace.cluster.traffic`: for the first layer, and for gradients."""
    ranks, block = options.accumulate, mean_block(data, options)
    parameters = sum(parameter.numel() for parameter in make_model(data, options).parameters())
    if options.parallel == "push_pull":
        maps = 2 * data.num_features * options.hidden  # whose gradients stay where they are
        return pulled(block.num_dst * options.hidden, team=ranks) + summed(parameters - maps, ranks=ranks)
    rows = fetched(block, ranks=ranks, features=data.num_features, hit_rate=hit_rate(data, options))
    return rows + summed(parameters, ranks=ranks)
