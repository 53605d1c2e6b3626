"""Link prediction by where rows live: seconds of an epoch with rows on the device, on the host and on disk.

The graph has the shape of Freebase86m, as Marius published it, unless the options say otherwise. Nothing is ranked among all nodes,
nothing is logged and no checkpoint is written: an epoch is what the published figure times.
"""

from __future__ import annotations

import gc
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import torch

from headrace._memory import process_memory
from headrace.bench.links.limits import Rates, floor, measured_rates
from headrace.bench.measure import Epochs, Row, needs_gpu
from headrace.bench.setting import Setting
from headrace.graph import generate
from headrace.pipeline import StageTimes
from headrace.store import TrainedArray
from headrace.train import LinkOptions
from headrace.train.fit import torch_threads
from headrace.train.inference.ranking import rank
from headrace.train.interrupt import Interrupt
from headrace.train.links.data import LinkData
from headrace.train.links.flow.row_optimizer import RowOptimizer
from headrace.train.links.link import make_trainer
from headrace.train.links.memory import slot_bytes
from headrace.train.links.recipe import LinkRecipe
from headrace.train.loop import Trainer
from headrace.train.options import option
from headrace.train.watching.watch import StepEvent

_TIERS: dict[str, dict[str, str]] = {
    "device": {"storage": "device"},
    "host": {"storage": "host"},
    "disk": {"storage": "disk", "buffer_on": "device"},
    "disk-host": {"storage": "disk", "buffer_on": "host"},
}
_PUBLISHED = {"Marius (V100, published)": 727.0}  # OSDI 2021: seconds of an epoch of Freebase86m at dimension 100
_SLACK = 1 << 30


@dataclass(frozen=True)
class LinkTiersSetting(Setting):
    """Options of `headrace bench link-tiers`."""

    device: Literal["cpu", "cuda"] = option("cuda", "where edges are scored; cpu to try it out")
    nodes: int = option(86_054_151, "nodes of the generated knowledge graph")
    edges: int = option(338_586_276, "its edges, of which nine in ten are trained on")
    relations: int = option(14_824, "its relations")
    decoder: Literal["dot", "distmult", "complex", "transe", "rotate"] = option("complex", "how an edge is scored")
    dim: int = option(100, "floats per node")
    optimizer: Literal["row_adagrad", "adagrad"] = option("row_adagrad", "one float of state a row, or dim of them")
    batch_size: int = option(50_000, "edges per step")
    negatives: int = option(1000, "negatives of a chunk")
    chunks: int = option(10, "chunks of a batch")
    precision: Literal["fp32", "tf32"] = option("fp32", "type that products are computed in")
    staleness: int = option(LinkOptions().staleness + 7, "batches in flight, as `headrace train link` counts them")
    tiers: tuple[str, ...] = option(
        ("device", "host", "disk"), "where rows live: device, host, disk (buffer on the device) or disk-host (buffer on the host)"
    )
    row_type: Literal["auto", "fp32", "bf16"] = option("auto", "type of rows (auto: fp32, on disk bf16 if only that fits twice)")
    partitions: int = option(16, "partitions, for tiers on disk")
    buffer: int = option(8, "partitions that are resident, for tiers on disk")
    order: Literal["beta", "comet", "best"] = option("best", "order of partitions, for tiers on disk")
    epochs: int = option(1, "epochs, of which the last is reported")
    seconds_limit: float = option(0.0, "cut an epoch after so many seconds and tell its time by the share of edges done (0: never)")
    ranked: int = option(2000, "test edges ranked among 1000 sampled nodes after training, where rows are not on disk")
    folder: str = option("", "where tiers on disk write (default: the system's folder for temporary files)")

    def __post_init__(self) -> None:
        super().__post_init__()
        for tier in self.tiers:
            if tier not in _TIERS:
                raise ValueError(f"tiers must be some of {', '.join(_TIERS)}, not {tier!r}")


@dataclass(frozen=True)
class _Trained:
    """The measurements of a tier: over an epoch, or as much of it as there was time for."""

    seconds: float
    edges: int  # done
    total: int
    bytes: int  # of rows and state that batches read
    loss: float
    stages: list[StageTimes]
    disk: dict[str, Any]
    swaps: int
    prepared: float  # seconds before the first epoch

    @property
    def epoch_seconds(self) -> float:
        return self.seconds * self.total / max(self.edges, 1)


def run(setting: LinkTiersSetting) -> list[Row]:
    """Each tier on the same graph, one after the other."""
    if setting.device != "cpu":
        needs_gpu()
    setting.progress(f"generating {setting.edges / 1e6:.1f} M edges among {setting.nodes / 1e6:.1f} M nodes")
    begin = perf_counter()
    data = generate.knowledge(setting.nodes, setting.edges, setting.relations, threads=setting.threads)
    rows = [Row(f"{setting.edges / 1e6:.1f} M edges", "generated in", "s", perf_counter() - begin)]
    edges = LinkData.of(data)
    test, edges = edges.test[: setting.ranked], replace(edges, val=edges.val[:0], test=edges.test[:0])
    with torch_threads(setting.threads), tempfile.TemporaryDirectory(prefix="headrace-", dir=setting.folder or None) as folder:
        setting.progress("measuring products and copies")
        rates = measured_rates(_options(setting), Path(folder), on_disk=any("disk" in tier for tier in setting.tiers))
        for tier in setting.tiers:
            tier_rows = _tier(setting, tier, edges, test, Path(folder), rates)
            setting.progress("; ".join(f"{row.metric} {row.ours:.4g} {row.unit}" for row in tier_rows))  # should a later one fail
            rows += tier_rows
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    return rows


def _tier(setting: LinkTiersSetting, tier: str, edges: LinkData, test: torch.Tensor, folder: Path, rates: Rates) -> list[Row]:
    options = _tier_options(setting, tier, folder, edges)
    setting.progress(f"rows on {tier}, {options.row_type}: preparing")
    torch.manual_seed(options.seed)
    if options.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    begin, clock = perf_counter(), _Clock(setting.seconds_limit)
    with ExitStack() as opened:
        trainer = make_trainer(edges, options, opened, folder=folder, watcher=clock)
        prepared = perf_counter() - begin
        setting.progress(f"rows on {tier}: training after {prepared:.0f} s")
        trained = _trained(trainer, clock, options, prepared)
        rows = _rows(setting, tier, options, edges.num_nodes, trained, rates)
        flow = _recipe(trainer).flow
        if isinstance(flow.rows, TrainedArray) and len(test):
            ranked = rank(flow.decoder, flow.rows, test, sampled=1000, device=options.device)
            case = f"{rows[0].case}, {len(test)} edges among 1000 sampled nodes, raw"
            rows.append(Row(case, "MRR (sampled)", "share", ranked.raw.mrr))
    if options.device != "cpu":
        rows.append(Row(rows[0].case, "GPU memory at its peak", "GB", torch.cuda.max_memory_allocated() / 1e9))
    rows.append(Row(rows[0].case, "main memory now", "GB", process_memory()["resident"] / 1e9))
    return rows


def _options(setting: LinkTiersSetting) -> LinkOptions:
    """What all tiers train with."""
    return LinkOptions(
        decoder=setting.decoder,
        dim=setting.dim,
        epochs=setting.epochs,
        batch_size=setting.batch_size,
        negatives=setting.negatives,
        chunks=setting.chunks,
        optimizer=setting.optimizer,
        precision=setting.precision,
        staleness=setting.staleness,
        row_type="bf16" if setting.row_type == "bf16" else "fp32",
        threads=setting.threads,
        device=setting.device,
        raw=True,
    )


def _tier_options(setting: LinkTiersSetting, tier: str, folder: Path, edges: LinkData) -> LinkOptions:
    """What a tier trains with; on disk, with rows in a type that fits."""
    parts = {"partitions": setting.partitions, "buffer": setting.buffer, "order": setting.order} if "disk" in tier else {}
    options = replace(_options(setting), **_TIERS[tier], **parts)  # type: ignore[arg-type]
    if options.storage != "disk":
        return options
    if (folder / "rows").exists():  # an earlier tier made them and saved no checkpoint, so training has not changed them
        return replace(options, row_type=(folder / "type").read_text())  # type: ignore[arg-type]
    free, kinds = shutil.disk_usage(folder).free, ("fp32", "bf16") if setting.row_type == "auto" else (setting.row_type,)
    for kind in kinds:
        options = replace(options, row_type=kind)  # type: ignore[arg-type]
        needed = _disk_bytes(options, edges)
        if needed <= free:
            (folder / "type").write_text(kind)
            return options
    raise ValueError(f"{folder} has {free / 1e9:.1f} GB free and {needed / 1e9:.1f} GB are needed with rows in {kinds[-1]}")


def _disk_bytes(options: LinkOptions, edges: LinkData) -> int:
    """Every partition twice, the edges, and some room."""
    size = slot_bytes(options, nodes=edges.num_nodes, state=RowOptimizer(options.optimizer).state_width(options.dim))
    return 2 * options.partitions * size + edges.train.nbytes + min(_SLACK, edges.train.nbytes)


class _Clock(Epochs):
    """Asks for an end when the time is up."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit, self.interrupt, self.begun = limit, Interrupt(), 0.0

    def step(self, event: StepEvent, clock: dict[str, float]) -> None:
        if self.limit and perf_counter() - self.begun >= self.limit:
            self.interrupt.asked = True


def _recipe(trainer: Trainer) -> LinkRecipe:
    assert isinstance(trainer.recipe, LinkRecipe)
    return trainer.recipe


def _trained(trainer: Trainer, clock: _Clock, options: LinkOptions, prepared: float) -> _Trained:
    recipe, state, swaps = _recipe(trainer), trainer.state, 0
    while state.epoch < options.epochs and not clock.interrupt.asked:
        clock.begun, clock.facts, number = perf_counter(), [], state.epoch
        trainer.epoch(clock.interrupt)
        if options.device != "cpu":
            torch.cuda.synchronize()
        seconds = perf_counter() - clock.begun
    plan = recipe.plan(number)
    total = edges = sum(plan.counts)
    if plan.order is not None:
        swaps = plan.order.swaps + (options.buffer if number == 0 else 0)  # the first epoch fills the buffer
    if clock.facts:
        facts = clock.facts[-1]
        loss, moved = facts["loss"], facts["bytes"]
    else:  # the epoch was cut
        facts, edges, moved = recipe.facts(), state.sums.seeds, state.sums.bytes
        loss = state.sums.means()["loss"]
    return _Trained(seconds, edges, total, moved, loss, recipe.stages(), facts.get("disk", {}), swaps, prepared)


def _rows(setting: LinkTiersSetting, tier: str, options: LinkOptions, nodes: int, trained: _Trained, rates: Rates) -> list[Row]:
    share = trained.edges / max(trained.total, 1)
    cut = "" if share == 1 else f", from {100 * share:.1f} % of an epoch in {trained.seconds:.0f} s"
    how = f"{options.row_type}, {options.optimizer}, {nodes / 1e6:.4g} M x {options.dim}, {options.precision}"
    case = f"rows on {tier} in {how}{cut}"
    published = setting.nodes >= 86_000_000 and setting.edges >= 338_000_000 and setting.dim == 100
    moved = trained.disk.get("bytes_read", 0) + trained.disk.get("bytes_written", 0)
    limit = floor(options, rates, edges=trained.edges, row_bytes=trained.bytes, disk_bytes=moved) / max(share, 1e-12)
    rows = [
        Row(case, "epoch", "s", trained.epoch_seconds, dict(_PUBLISHED) if published else {}, limit),
        Row(case, "edges", "M/s", trained.total / trained.epoch_seconds / 1e6),
        Row(case, "loss", "nats", trained.loss),
        Row(case, "made rows and sorted edges in", "s", trained.prepared),
    ]
    batches = max(next((times.items for times in trained.stages if times.name == "compute"), 1), 1)
    for times in trained.stages:
        rows.append(Row(f"{case}, stage: {times.name}", "busy for a batch", "ms", 1e3 * times.busy / batches))
    if trained.disk:
        use = trained.disk
        size = slot_bytes(options, nodes=nodes, state=RowOptimizer(options.optimizer).state_width(options.dim))
        where = f"{case}, {options.order}, {options.buffer} of {options.partitions} partitions of {size / 2**20:.0f} MiB"
        # Partitions that fill the buffer at first are read and not written in this epoch.
        fill = options.buffer if options.epochs == 1 else 0
        whole = share == 1
        formula = {"2 L S / p": (2 * (trained.swaps - fill) + fill) * size / 1e9} if whole else {}
        rows += [
            Row(where, "loads", "loads", use["loads"], {"order": float(trained.swaps)} if whole else {}),
            Row(where, "read and written", "GB", moved / 1e9, formula),
            Row(where, "disk", "GB/s", moved / max(use["busy_seconds"], 1e-9) / 1e9, {}, rates.disk / 1e9),
            Row(where, "disk busy", "of the epoch", use["busy"]),
            Row(where, "waited for partitions", "s", use["stall_seconds"]),
        ]
    return rows
