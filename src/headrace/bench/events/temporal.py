"""Event streams: events per second of training TGN, sampling and negatives included, beside PyG's TGN, and how well both predict.

Epochs of ours and of the peer take turns on one stream, as 1x1x1. The limit is the products of a step, forward and backward,
measured alone. Events see those of earlier batches, an event has one random destination as its negative.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace.bench.events.products import Products
from headrace.bench.events.pyg_tgn import PygTgn
from headrace.bench.measure import Epochs, Row, seconds_of
from headrace.bench.peers import has_pyg
from headrace.bench.setting import Setting, threads_of
from headrace.graph import EventSplits, EventStream, load, open_dataset
from headrace.nn import TGN, event_losses
from headrace.temporal import EventBatch
from headrace.train import TemporalOptions
from headrace.train.events.recipe import Forward, TemporalRecipe
from headrace.train.loop import Trainer
from headrace.train.options import option


@dataclass(frozen=True)
class TemporalSetting(Setting):
    """Options of `headrace bench temporal`."""

    data: str | None = option(None, "a dataset directory, or a known one by name (default: jodie_wikipedia)")
    events: int = option(0, "take the first so many events; 0 for all")
    batch_sizes: tuple[int, ...] = option((200, 600), "events of a batch, a run each")
    epochs: int = option(3, "epochs that each system trains before it is tested: the median counts")
    hidden: int = option(100, "width of memory, time code and embeddings")


def run(setting: TemporalSetting) -> list[Row]:
    """Of each batch size a rate and what the trained models are worth."""
    name = setting.data or "jodie_wikipedia"
    made = [_options(setting, size) for size in setting.batch_sizes]  # refused before anything is read
    stream = EventStream.of(open_dataset(Path(name)) if Path(name).exists() else load(name))
    if setting.events:
        part = stream.part(0, min(setting.events, len(stream)))  # its own splits, by shares
        stream = EventStream(part.src, part.dst, part.time, part.edge_x, num_nodes=part.num_nodes)
    rows = []
    with threads_of(setting.threads):
        for options in made:
            rows += _rows(setting, stream, options, Path(name).name)
    return rows


def on_cuda(setting: TemporalSetting) -> list[Row]:
    """A sentence, until event streams are trained on a GPU."""
    raise ValueError(f"event streams are trained on a CPU as yet, not on {setting.device}: there is no rate to measure there")


def _options(setting: TemporalSetting, size: int) -> TemporalOptions:
    # An epoch more than are trained: the last one of a run is validated, which would count.
    return TemporalOptions(
        batch_size=size,
        epochs=setting.epochs + 1,
        hidden=setting.hidden,
        candidates=1,
        validate_every=0,
        threads=setting.threads,
        device=setting.device,
    )


def _rows(setting: TemporalSetting, stream: EventStream, options: TemporalOptions, name: str) -> list[Row]:
    splits, device = stream.splits(), torch.device(setting.device)
    torch.manual_seed(0)
    width = options.hidden
    tgn = TGN(memory=width, time=width, out=width, edge=stream.edge_width, heads=options.heads, dropout=options.dropout)
    model = Forward(tgn, None)
    seen = Epochs()
    recipe = TemporalRecipe(stream, splits, model, options)
    with closing(recipe):
        check_embeddings(recipe)
        trainer = Trainer(recipe, options, None, seen)
        peers = _peers(setting, stream, splits, options, device)
        products, alone = _products(recipe)
        seconds: dict[str, list[float]] = {"ours": [], "limit": [], **{peer: [] for peer in peers}}
        for turn in range(setting.epochs):
            setting.progress(f"batches of {options.batch_size}: epoch {turn + 1} of {setting.epochs}")
            trainer.epoch()
            seconds["ours"].append(seen.facts[-1]["epoch_seconds"] / splits.train)
            for peer, system in peers.items():
                seconds[peer].append(system.epoch() / splits.train)
            seconds["limit"].append(seconds_of(alone, device, repeats=20) / products)
        setting.progress("testing")
        tested = recipe.test(lambda done, total: None)["test"]
        assert tested is not None
        scores = {peer: system.test_ap(splits.val) for peer, system in peers.items()}
    rates = {system: 1 / statistics.median(times) for system, times in seconds.items()}
    case = f"{name}, {splits.train} training events, batches of {options.batch_size}, d={width}, {setting.threads_named}"
    limit = rates.pop("limit")
    metric = f"test AP after {setting.epochs} epochs"
    return [
        Row(case, "training with sampling and negatives", "events/s", rates.pop("ours"), rates, limit),
        Row(case, metric, "share", float(tested["ap"]), scores),
    ]


def _peers(
    setting: TemporalSetting, stream: EventStream, splits: EventSplits, options: TemporalOptions, device: torch.device
) -> dict[str, PygTgn]:
    if not (setting.wants("pyg") and has_pyg()):
        return {}
    sizes = {"batch_size": options.batch_size, "hidden": options.hidden, "neighbors": options.neighbors}
    return {"PyG TGN": PygTgn(stream, splits.train, rate=options.lr, device=device, **sizes)}


def _products(recipe: TemporalRecipe) -> tuple[int, Callable[[], None]]:
    """The events of a batch in the middle of training, and what does the products of its step alone."""
    batch, rows = _middle(recipe)
    model = recipe.model.train()
    with Products() as products:
        memory = model.update(rows, batch, recipe.edge_x)
        logits = model.scores(model.embed(memory, batch, recipe.edge_x), batch.size)
        event_losses(logits, recipe.options.loss).mean().backward()  # type: ignore[no-untyped-call]
    model.zero_grad(set_to_none=True)
    return batch.size, products.alone()


def _middle(recipe: TemporalRecipe) -> tuple[EventBatch, Tensor]:
    """A batch in the middle of training, and rows of memory and mail for its nodes."""
    batch, tgn = recipe.make.make(recipe.make.num_batches // 2, 0), recipe.model.tgn
    rows = torch.randn(len(batch.nodes), tgn.memory_width + tgn.mail_width, generator=torch.Generator().manual_seed(0)) / 5
    return batch, rows.to(recipe.device)


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
    state, phases, width = updated[batch.row_of], tgn.time(torch.zeros(1)), layer.out_channels // layer.heads
    plain = []
    for root in range(block.num_dst):
        edges = torch.arange(int(block.indptr[root]), int(block.indptr[root + 1]))
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
