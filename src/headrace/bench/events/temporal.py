"""Event streams: events per second of training TGN, sampling and negatives included, beside PyG's TGN, and how well both predict.

Epochs of ours and of the peer take turns on one stream. The limit is the products of a step, forward and backward, measured
alone. Events see those of earlier batches, an event has one random destination as its negative. On a GPU there are rows of
several trainers as lanes, the same steps launched one by one beside them; and, if asked for, of a long stream that is mapped from
disk.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace._capture import Recorded
from headrace.bench.events.long_stream import long_stream
from headrace.bench.events.products import Products
from headrace.bench.events.pyg_tgn import PygTgn
from headrace.bench.measure import Epochs, Row, needs_gpu, seconds_of
from headrace.bench.peers import has_pyg
from headrace.bench.setting import Setting, threads_of
from headrace.graph import EventSplits, EventStream, load, open_dataset
from headrace.nn import TGN
from headrace.temporal import EventBatch, Events
from headrace.train import TemporalOptions
from headrace.train.events.event import recipe_of
from headrace.train.events.forward import Forward
from headrace.train.events.joint import JointRecipe
from headrace.train.events.recipe import TemporalRecipe
from headrace.train.loop import Trainer
from headrace.train.options import option

_AHEAD = 16  # batches on a GPU, which as many threads as there are make


@dataclass(frozen=True)
class TemporalSetting(Setting):
    """Options of `headrace bench temporal`."""

    data: str | None = option(None, "a dataset directory, or a known one by name (default: jodie_wikipedia)")
    events: int = option(0, "take the first so many events; 0 for all")
    batch_sizes: tuple[int, ...] = option((200, 600), "events of a batch, a run each")
    epochs: int = option(3, "epochs that each system trains before it is tested: the median counts")
    hidden: int = option(100, "width of memory, time code and embeddings")
    parallel: tuple[str, ...] = option(("1x1x8",), "on a GPU, trainers (i x j x k) to measure beside 1x1x1")
    generated: int = option(0, "on a GPU, also an epoch of a generated stream of so many events, mapped from disk (100000000)")
    generated_nodes: int = option(1_000_000, "its nodes")
    generated_batch: int = option(2000, "its events of a batch")
    folder: str | None = option(None, "where the generated stream is kept (default: a folder that is removed afterwards)")


@dataclass(frozen=True)
class _Made:
    """A model in training, and what it is timed by."""

    recipe: TemporalRecipe
    trainer: Trainer
    seen: Epochs

    def seconds(self, events: int) -> float:
        """Of an event, over one more epoch (or as many as a sweep makes)."""
        self.trainer.epoch()
        schedule = self.recipe.schedule
        return float(self.seen.facts[-1]["epoch_seconds"]) / (events * schedule.j * schedule.k)


def run(setting: TemporalSetting) -> list[Row]:
    """Of each batch size a rate and what the trained models are worth."""
    made = [_options(setting, size) for size in setting.batch_sizes]  # refused before anything is read
    stream, name = _stream(setting)
    rows = []
    with threads_of(setting.threads):
        for options in made:
            rows += _rows(setting, stream, options, name)
    return rows


def on_cuda(setting: TemporalSetting) -> list[Row]:
    """The same for lanes as well, with steps that are recorded; and an epoch of a long stream if it is asked for."""
    needs_gpu()
    stream, name = _stream(setting)
    rows: list[Row] = []
    with threads_of(setting.threads):
        for size in setting.batch_sizes:
            for parallel in ("1x1x1", *setting.parallel):
                rows += _rows(setting, stream, _options(setting, size, parallel), name)
        if setting.generated:
            rows.append(_long_row(setting))
    return rows


def _stream(setting: TemporalSetting) -> tuple[EventStream, str]:
    name = setting.data or "jodie_wikipedia"
    stream = EventStream.of(open_dataset(Path(name)) if Path(name).exists() else load(name))
    if setting.events:
        part = stream.part(0, min(setting.events, len(stream)))  # its own splits, by shares
        stream = EventStream(part.src, part.dst, part.time, part.edge_x, num_nodes=part.num_nodes)
    return stream, Path(name).name


def _options(setting: TemporalSetting, size: int, parallel: str = "1x1x1") -> TemporalOptions:
    # An epoch more than are trained: the last one of a run is validated, which would count.
    ahead = {"staleness": _AHEAD} if setting.device == "cuda" else {}
    return TemporalOptions(
        batch_size=size,
        epochs=setting.epochs + 1,
        hidden=setting.hidden,
        candidates=1,
        validate_every=0,
        threads=setting.threads if setting.device == "cpu" else 1,  # of a batch: many are made at once
        device=setting.device,
        parallel=parallel,
        **ahead,  # type: ignore[arg-type]
    ).resolved(1)


def _made(stream: EventStream, splits: EventSplits, options: TemporalOptions, *, evaluates: bool = True) -> _Made:
    torch.manual_seed(0)
    width = options.hidden
    tgn = TGN(memory=width, time=width, out=width, edge=stream.edge_width, heads=options.heads, dropout=options.dropout)
    recipe = recipe_of(stream, splits, Forward(tgn, None), options, evaluates=evaluates)
    seen = Epochs()
    return _Made(recipe, Trainer(recipe, options, None, seen, accumulate=options.batches_per_step), seen)


def _rows(setting: TemporalSetting, stream: EventStream, options: TemporalOptions, name: str) -> list[Row]:
    splits, device = stream.splits(), torch.device(setting.device)
    ours = _made(stream, splits, options)
    with closing(ours.recipe):
        check_embeddings(ours.recipe)
        alone = options.parallel == "1x1x1"
        peers = _peers(setting, stream, splits, options, device) if alone else {}
        plain = _made(stream, splits, replace(options, capture="never"), evaluates=False) if setting.device == "cuda" else None
        products, limit = _products(ours.recipe)
        seconds: dict[str, list[float]] = {"ours": [], "limit": [], **{peer: [] for peer in peers}}
        for turn in range(setting.epochs):
            setting.progress(f"{options.parallel}, batches of {options.batch_size}: epoch {turn + 1} of {setting.epochs}")
            seconds["ours"].append(ours.seconds(splits.train))
            if plain is not None:
                seconds.setdefault("ours, launched one by one", []).append(plain.seconds(splits.train))
            for peer, system in peers.items():
                seconds[peer].append(system.epoch() / splits.train)
            seconds["limit"].append(seconds_of(limit, device, repeats=20) / products)
        if plain is not None:
            plain.recipe.close()
        setting.progress("testing")
        tested = ours.recipe.test(lambda done, total: None)["test"]
        assert tested is not None
        scores = {peer: system.test_ap(splits.val) for peer, system in peers.items()}
    rates = {system: 1 / statistics.median(times) for system, times in seconds.items()}
    lanes = "" if alone else f"{options.parallel} lanes, "
    where = setting.threads_named if setting.device == "cpu" else torch.cuda.get_device_name(device)
    case = f"{name}, {splits.train} training events, {lanes}batches of {options.batch_size}, d={options.hidden}, {where}"
    bound = rates.pop("limit")
    metric = f"test AP after {setting.epochs} {'epochs' if alone else 'sweeps'}"
    return [
        Row(case, "training with sampling and negatives", "events/s", rates.pop("ours"), rates, bound),
        Row(case, metric, "share", float(tested["ap"]), scores),
    ]


def _long_row(setting: TemporalSetting) -> Row:
    """An epoch of a stream that lies on disk."""
    sizes = {"events": setting.generated, "nodes": setting.generated_nodes}
    options = replace(_options(setting, setting.generated_batch), epochs=2)
    with long_stream(**sizes, folder=setting.folder, progress=setting.progress) as stream:
        splits = stream.splits()
        made = _made(stream, splits, options, evaluates=False)
        with closing(made.recipe):
            setting.progress(f"an epoch of {splits.train:,} events")
            rate = 1 / made.seconds(splits.train)
    about = f"generated, {splits.train} training events of {setting.generated_nodes} nodes, mapped from disk"
    case = f"{about}, batches of {options.batch_size}, d={options.hidden}"
    return Row(case, f"training an epoch, which takes {splits.train / rate:.0f} s", "events/s", rate)


def _peers(
    setting: TemporalSetting, stream: EventStream, splits: EventSplits, options: TemporalOptions, device: torch.device
) -> dict[str, PygTgn]:
    if not (setting.wants("pyg") and has_pyg()):
        return {}
    sizes = {"batch_size": options.batch_size, "hidden": options.hidden, "neighbors": options.neighbors}
    return {"PyG TGN": PygTgn(stream, splits.train, rate=options.lr, device=device, **sizes)}


def _products(recipe: TemporalRecipe) -> tuple[int, Callable[[], None]]:
    """The events of a step in the middle of training, and what does its products alone; on a GPU as one launch."""
    model = recipe.model.train()
    events: Events
    if isinstance(recipe, JointRecipe):
        batch = recipe.iteration(0, recipe.schedule.iterations // 2)
        events, count = batch.joined(), batch.events
        rows = recipe.copies.read(events)
    else:
        events, rows = _middle(recipe)
        count = events.size
    with Products() as products:
        recipe.losses(rows, events, None).mean().backward()  # type: ignore[no-untyped-call]
    model.zero_grad(set_to_none=True)
    work = products.alone()
    return count, work if recipe.device.type == "cpu" else Recorded(work, recipe.device).replay


def _middle(recipe: TemporalRecipe) -> tuple[EventBatch, Tensor]:
    """A batch in the middle of training, and rows of memory and mail for its nodes."""
    batch, tgn = recipe.make.make(recipe.make.num_batches // 2, 0), recipe.model.tgn
    rows = torch.randn(len(batch.nodes), tgn.memory_width + tgn.mail_width, generator=torch.Generator().manual_seed(0)) / 5
    return batch.to(recipe.device), rows.to(recipe.device)


@torch.no_grad()
def check_embeddings(recipe: TemporalRecipe) -> None:
    """What is timed gives the rows that the formulas of TGN give, written out event by event, or nothing is timed."""
    (batch, rows), model = _middle(recipe), recipe.model.eval()
    tgn, edge_x = model.tgn, recipe.edge_x
    memory, mail = rows.split([tgn.memory_width, tgn.mail_width], dim=1)
    assert tgn.updater is not None
    parts = [mail, *([] if edge_x is None else [edge_x[batch.mail_event]]), tgn.time(batch.mail_dt)]
    updated = torch.where(batch.has_mail[:, None], tgn.updater.cell(torch.cat(parts, dim=1), memory), memory)
    block: Any = batch.blocks[0]
    layer: Any = tgn.layers[0]
    state, phases, width = updated[batch.row_of], tgn.time(torch.zeros(1, device=recipe.device)), layer.out_channels // layer.heads
    plain = []
    for root in range(block.num_dst):
        edges = torch.arange(int(block.indptr[root]), int(block.indptr[root + 1]), device=recipe.device)
        own, far = state[root], state[block.indices[edges].long()]  # of a root without events, nothing is summed
        beside = [far, *([] if edge_x is None else [edge_x[batch.edge_id[edges]]]), tgn.time(batch.dt[edges])]
        keys, values = (m(torch.cat(beside, dim=1)).view(len(edges), layer.heads, width) for m in (layer.w_k, layer.w_v))
        query = layer.w_q(torch.cat([own, phases[0]])).view(layer.heads, -1)
        share = torch.nn.functional.leaky_relu((keys * query).sum(-1), 0.2).softmax(0)
        summed = (share[:, :, None] * values).sum(0).flatten()
        plain.append(layer.layer_norm(layer.w_out(torch.cat([summed, own])).relu()))
    ours = model.embed(model.update(rows, batch, edge_x), batch, edge_x)
    worst = float((ours - torch.stack(plain)).abs().max())
    if not worst <= 1e-4:
        raise RuntimeError(f"an embedding differs by {worst:g} from what its formula gives: nothing is timed")
