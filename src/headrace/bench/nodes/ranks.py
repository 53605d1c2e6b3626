"""Data-parallel steps: two ranks with one thread each beside one rank with two threads, on the same batches of the same machine."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from headrace.bench.measure import Epochs, Row
from headrace.bench.processes import run_ranks
from headrace.bench.setting import BATCH, FANOUTS, Setting, check_trainable
from headrace.graph import open_dataset
from headrace.ranks import Exchange, GroupRanks, guarded, join
from headrace.train.fit import torch_threads
from headrace.train.loop import Trainer
from headrace.train.nodes.node import make_model
from headrace.train.nodes.options import NodeOptions
from headrace.train.nodes.recipe import NodeRecipe

_BATCHES_OF_A_STEP = 2


def on_cpu(setting: Setting) -> list[Row]:
    """Seconds of a step, the share that ranks spend in the exchange, and its bytes beside their formula."""
    data = setting.dataset()
    check_trainable(data)
    size = min(BATCH, len(data.splits["train"]) // (2 * _BATCHES_OF_A_STEP))
    seeds = data.splits["train"][: setting.batches // _BATCHES_OF_A_STEP * _BATCHES_OF_A_STEP * size]
    with tempfile.TemporaryDirectory() as folder:
        replace(data, splits={"train": seeds}).save(Path(folder) / "data")
        (Path(folder) / "run.json").write_text(json.dumps({"batch_size": size, "epochs": 1 + setting.repeats}))
        setting.progress("one rank, two threads")
        one = _job(Path(folder), ranks=1, threads=2)
        setting.progress("two ranks, one thread each")
        two = _job(Path(folder), ranks=2, threads=1)
    if abs(one["loss"] - two["loss"]) > 1e-3:
        raise RuntimeError(f"two ranks have loss {two['loss']}, one has {one['loss']}: nothing is reported")
    case = f"{setting.preset} at {setting.scale:g}, SAGE 3 x 256, steps of {_BATCHES_OF_A_STEP} batches of {size}, two ranks"
    share = two["exchange"] / two["step"]
    return [
        Row(case, "a step", "s", two["step"], {"one rank, two threads": one["step"]}, two["step"] - two["exchange"]),
        Row(case, "of a step in the exchange, with waiting for the other rank", "of the step", share),
        Row(case, "sent by a rank in a step", "bytes", two["bytes"], {"formula": two["formula"]}),
    ]


def _job(folder: Path, *, ranks: int, threads: int) -> dict[str, float]:
    """What rank 0 measured in a job of so many ranks."""
    run_ranks(__name__, str(folder), threads, size=ranks, threads=threads)
    measured: dict[str, float] = json.loads((folder / f"{ranks}.json").read_text())
    return measured


def rank(path: str, threads: int) -> None:
    """Train as one rank of a job; rank 0 writes its median epoch by step, after one that warms up."""
    folder = Path(path)
    data, seen = open_dataset(folder / "data"), Epochs()
    options = NodeOptions(
        fanout=FANOUTS,
        hidden=256,
        validate="none",
        threads=threads,
        accumulate=_BATCHES_OF_A_STEP,
        **json.loads((folder / "run.json").read_text()),
    )
    with torch_threads(threads), join() as ranks, guarded(ranks):
        torch.manual_seed(0)
        recipe = NodeRecipe(data, make_model(data, options), options, ranks=ranks, accumulate=options.accumulate)
        exchange = Exchange(ranks, device=torch.device("cpu")) if isinstance(ranks, GroupRanks) and ranks.size > 1 else None
        trainer = Trainer(recipe, options, None, seen, ranks=ranks, exchange=exchange, accumulate=options.accumulate)
        for _ in range(options.epochs):
            trainer.epoch()
        steps = recipe.num_batches(0) // options.accumulate
        sent = 0 if exchange is None else sum(traffic.sent for traffic in exchange.traffic.values())
        facts = sorted(seen.facts[1:], key=lambda line: line["train_seconds"])[len(seen.facts[1:]) // 2]
        assert trainer.accumulator is not None
        result = {
            "step": facts["train_seconds"] / steps,
            "exchange": facts["time"].get("exchange", 0.0) / steps,
            "bytes": sent / (steps * options.epochs),
            "formula": trainer.accumulator.bytes_sent(options.accumulate),
            "loss": seen.facts[-1]["loss"],
        }
        if ranks.rank == 0:
            (folder / f"{ranks.size}.json").write_text(json.dumps(result))
