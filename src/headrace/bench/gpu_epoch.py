"""An epoch of training on a GPU, and where its time goes."""

from __future__ import annotations

import statistics
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from headrace.bench.gpu import needs_gpu, seconds_of
from headrace.bench.measure import Row
from headrace.bench.setting import BATCH, FANOUTS, Setting
from headrace.bench.train import DROPOUT, HIDDEN, RATE, Seen, step_flop
from headrace.graph import Dataset
from headrace.nn import GNN
from headrace.train import NodeOptions, infer
from headrace.train.loop import Trainer
from headrace.train.nodes.recipe import NodeRecipe

_PLACES: dict[str, dict[str, Any]] = {
    "all on the GPU": {"mode": "gpu"},
    "all on the GPU, captured": {"mode": "gpu", "capture": True},
    "UVA and 20 % of the features hot": {"mode": "uva", "device_cache": "20%"},
    "UVA and 20 % of the features hot, captured": {"mode": "uva", "device_cache": "20%", "capture": True},
    "UVA, features pinned": {"mode": "uva", "device_cache": "0%"},
    "mixed, features on the GPU": {"mode": "mixed"},
    "CPU threads sample, features on the GPU": {"mode": "cpu"},
}


def run(setting: Setting) -> list[Row]:
    """GraphSAGE of three layers over all training nodes. The limit is the time of the matrix products alone."""
    device = needs_gpu()
    data = setting.dataset()
    rows = []
    for precision in ("fp32", "bf16"):
        for place, options in _PLACES.items():
            if precision == "bf16" and place.startswith(("mixed", "CPU")):
                continue
            setting.progress(f"{place}, {precision}")
            rows += _place_rows(setting, data, place, replace(_options(setting, precision, str(device)), **options), device)
    return rows


def _options(setting: Setting, precision: str, device: str) -> NodeOptions:
    return NodeOptions(
        hidden=HIDDEN,
        dropout=DROPOUT,
        lr=RATE,
        fanout=FANOUTS,
        batch_size=BATCH,
        epochs=10**6,
        validate="none",
        precision=precision,  # type: ignore[arg-type]
        threads=setting.threads,
        staleness=4,
        device=device,
    )


def _place_rows(setting: Setting, data: Dataset, place: str, options: NodeOptions, device: torch.device) -> list[Row]:
    torch.manual_seed(0)
    model = GNN(data.num_features, HIDDEN, data.num_classes, layers=len(FANOUTS), dropout=DROPOUT)
    seen = Seen()
    trainer = Trainer(NodeRecipe(data, model, options), options, None, seen)
    seconds = []
    for _ in range(setting.repeats + 1):
        torch.cuda.synchronize()
        begin = perf_counter()
        trainer.epoch()
        torch.cuda.synchronize()
        seconds.append(perf_counter() - begin)
    steps = trainer.recipe.num_batches(0)
    dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
    flop = step_flop(data, seen.nodes)
    floor = steps * flop / _product_rate(dtype, device)
    case = f"{place}, {options.precision}, SAGE 3 x {HIDDEN}, {steps} batches of {BATCH}"
    rows = [Row("gpu-epoch", case, "epoch", "s", statistics.median(seconds[1:]), {}, floor)]
    for part in seen.times[-1]:
        spent = statistics.median(times.get(part, 0.0) for times in seen.times[1:])
        rows.append(Row("gpu-epoch", f"{case}, part: {part}", "milliseconds of a step", "ms", 1e3 * spent / steps))
    for stage in seen.stages_seen:
        busy = 1e3 * stage["busy"] / max(stage["items"], 1)
        rows.append(Row("gpu-epoch", f"{case}, stage: {stage['name']}", "busy for a batch", "ms", busy))
    nodes = data.splits["test"][:20_000]
    assert data.y is not None
    found = infer(model, data, nodes).argmax(dim=1)
    accuracy = float((found == data.y[nodes]).float().mean())
    rows.append(Row("gpu-epoch", f"{case}, after {setting.repeats + 1} epochs", "test accuracy", "share", accuracy))
    return rows


def _product_rate(dtype: torch.dtype, device: torch.device) -> float:
    """Operations per second of the product of 200,000 x 256 and 256 x 256, with the matrix units torch uses by default."""
    a, b = torch.randn(200_000, 256, device=device).to(dtype), torch.randn(256, 256, device=device).to(dtype)
    return 2 * len(a) * 256 * 256 / seconds_of(lambda: a @ b, repeats=20)
