"""Run directories as the trainer writes them, with figures that look like training."""

import json
import math
import random
from pathlib import Path

from headrace.pipeline.trace import Span, Trace
from headrace.train.report import write_report

HOSTILE = '</script><script>document.title="taken"</script><img src=x onerror=alert(1)><!-- {{script}} &amp; "\u2028'
DATASET = {
    "spec": "generate:products?scale=0.05",
    "nodes": 122451,
    "edges": 6185914,
    "features": 100,
    "classes": 47,
    "best_possible": {"accuracy": 0.951},
}
ACCURACY = {"name": "accuracy", "better": "higher", "format": ".2%"}
LOSS = {"name": "loss", "better": "lower", "format": ".4f"}
MRR = {"name": "mrr", "better": "higher", "format": ".4f"}


def write_run(
    path: Path, *, name="sage", epochs=8, end="finished", full_batch=False, trace=True, seed=0, speed=1.0, dataset=None, **options
) -> Path:
    """Write a run of `epochs` epochs, each `speed` times as fast as usual. `end=None` leaves it running."""
    path.mkdir(parents=True)
    options = {"model": "gcn" if full_batch else "sage", "full_batch": full_batch} | options
    write_options(path, name=name, dataset=dataset, **options)
    lines = metrics(epochs, end=end, full_batch=full_batch, seed=seed, speed=speed)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    if trace:
        write_trace(path / "trace.json")
    return path


def write_options(path: Path, *, name="sage", dataset=None, **options) -> None:
    chosen = {"model": "sage", "hidden": 256, "fanout": [15, 10, 5], "lr": 0.01, "dropout": 0.5, "seed": 0, "repeats": 1} | options
    about = {"format": 2, "task": "node", "headrace": "0.1.0", "name": name, "started": "2026-11-15T12:00:00"}
    about |= {"dataset": DATASET | (dataset or {}), "options": chosen, "parameters": 206895, "measures": [ACCURACY, LOSS]}
    (path / "options.json").write_text(json.dumps(about), encoding="utf-8")


def metrics(epochs: int, *, end="finished", full_batch=False, seed=0, speed=1.0) -> list[dict]:
    draw = random.Random(seed)
    batches, length = (1, 0.8 / speed) if full_batch else (192, 80.2 / speed)
    lines, best = [], (0.0, 0)
    for epoch in range(epochs):
        progress = 1 - math.exp(-(epoch + 1) / max(epochs / 4, 1))
        begin = epoch * (length + 3)
        for batch in range(10, batches + 1, 10):
            within = 1 - math.exp(-(epoch + batch / batches) / max(epochs / 4, 1))
            loss = 3.8 - 3.4 * within + draw.gauss(0, 0.06)
            sizes = {"seeds": 1024, "nodes": 425640, "edges": 645660}
            step = {"kind": "step", "epoch": epoch, "batch": batch, "step": epoch * batches + batch}
            lines.append(step | {"seconds": begin + length * batch / batches, "loss": loss, "accuracy": 0.2 + 0.7 * within} | sizes)
        train, val = 0.2 + 0.74 * progress + draw.gauss(0, 0.004), 0.22 + 0.69 * progress + draw.gauss(0, 0.006)
        best = max(best, (val, epoch))
        parts = {"wait": 0.1, "gather": 4.2, "forward": 30.1, "backward": 40.0, "step": 0.6, "validate": 2.9, "other": 2.3}
        stages = [
            {"name": "sample", "threads": 2, "items": 192, "busy": 9.1 / speed, "starved": 0.0, "held": 140.2 / speed},
            {"name": "rows", "threads": 1, "items": 192, "busy": 14.2 / speed, "starved": 2.0 / speed, "held": 60.0 / speed},
            {"name": "consumer", "threads": 1, "items": 192, "busy": 79.0 / speed, "starved": 0.1, "held": 0.0},
        ]
        sampled = {"nodes": [1024, 14800, 104000, 305000], "edges": [15300, 146000, 484000]}
        lines.append(
            {"kind": "epoch", "epoch": epoch, "step": (epoch + 1) * batches, "seconds": begin + length, "epoch_seconds": length}
            | {"train_seconds": length - 2.9, "loss": 3.8 - 3.4 * progress, "lr": 0.01}
            | {"train_accuracy": train, "val_accuracy": val, "val_loss": 3.9 - 3.4 * progress}
            | {"time": {part: seconds * length / 80.2 for part, seconds in parts.items()}, "stages": [] if full_batch else stages}
            | {"throughput": {"seeds": 2451.0 * speed * draw.uniform(0.95, 1.05), "edges": 1.546e6 * speed, "bytes": 2.0e9 * speed}}
            | {"sampled": None if full_batch else sampled}
            | {"memory": {"resident": 3.1e9, "peak": 3.3e9, "data": 1.5e9, "buffers": 2.4e8, "buffers_peak": 3.0e8}}
            | {"cache": {"hits": 380, "misses": 12 if epoch == 0 else 0}}
        )
    if end is not None:
        seconds = epochs * (length + 3) + 5
        scores = {"best_epoch": best[1], "val_accuracy": best[0], "test_accuracy": best[0] - 0.01, "train_accuracy": 0.95}
        scores |= {"val_loss": 0.55, "test_loss": 0.575, "train_loss": 0.5}
        lines.append({"kind": "end", "reason": end, "seconds": seconds} | scores)
    return lines


def write_link_run(
    path: Path, *, name="complex", epochs=6, end="finished", disk=False, sampled=False, plan=None, better=1.0
) -> Path:
    """A run of link prediction as the trainer writes it, validated in every second epoch and at the end."""
    path.mkdir(parents=True)
    options = {"decoder": "complex", "dim": 100, "storage": "disk" if disk else "device", "staleness": 16 if disk else 0, "seed": 0}
    write_link_options(path, name=name, plan=plan, **options)
    kinds = ["full_filtered", "full_raw", *(["sampled_filtered"] if sampled else [])]
    lines: list[dict] = []
    for epoch in range(epochs):
        mrr = better * (0.3 - 0.2 * math.exp(-epoch / 2))
        ranking = {
            "mrr": mrr,
            "hits@1": 0.6 * mrr,
            "hits@3": 1.1 * mrr,
            "hits@10": 1.5 * mrr,
            "mean_rank": 200.0,
            "candidates": 14541,
        }
        test = ranking | {"ranking": "full", "measure": "filtered", "edges": 20466} | dict.fromkeys(kinds, ranking)
        validated = epoch % 2 or epoch == epochs - 1
        parts = ("load", "to device", "compute", "from device", "update", "consumer")
        stages = [{"name": part, "threads": 1, "items": 273, "busy": 0.5, "starved": 1.0, "held": 0.5} for part in parts]
        line = {"kind": "epoch", "epoch": epoch, "step": 273 * (epoch + 1), "seconds": 2.5 * (epoch + 1), "epoch_seconds": 2.5}
        line |= {"train_seconds": 2.0, "time": {"wait": 0.25, "load": 0.5, "compute": 1.25, "validate": 0.5}, "loss": 4 - mrr}
        line |= {"val_mrr": mrr if validated else None} | ({"val": test} if validated else {})
        line |= {"throughput": {"seeds": 136000.0, "edges": 0.0, "bytes": 2e9}, "in_flight": 16 if disk else 1, "stages": stages}
        line |= {"memory": {"resident": 3e8, "peak": 4e8}, "sampled": None, "bytes": 4_000_000}
        moved = {"loads": 54, "bytes_read": 4_000_000, "bytes_written": 3_900_000, "busy": 0.25, "stall_seconds": 0.125}
        lines.append(line | ({"disk": moved} if disk else {}))
    if end is not None:
        scores = {"best_epoch": epochs - 1, "val_mrr": mrr, "test_mrr": mrr, "test": test}
        lines.append({"kind": "end", "reason": end, "seconds": 16.0} | scores)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def write_link_options(path: Path, *, name="complex", plan=None, measures=(MRR,), **options) -> None:
    dataset = {"spec": "fb15k237", "nodes": 14541, "edges": 272115, "relations": 237, "best_possible": {}}
    about = {"format": 2, "task": "link", "headrace": "0.1.0", "name": name, "started": "2026-11-15T12:00:00", "dataset": dataset}
    about |= {"options": options, "parameters": 1501500, "negatives_from": "any nodes", "measures": list(measures)}
    (path / "options.json").write_text(json.dumps(about | ({"plan": plan} if plan else {})), encoding="utf-8")


def write_link_repeats(path: Path, *, name="complex") -> Path:
    """Two repeats of link prediction. The directory of both is written before a recipe says what it measures."""
    path.mkdir(parents=True)
    write_link_options(path, name=name, measures=(), decoder="complex", dim=100, repeats=2, seed=0)
    for number, better in enumerate((1.0, 1.1)):
        write_link_run(path / f"repeat-{number}", name=name, better=better)
    return path


def write_own_run(path: Path, *, name="denoise", errors=(4.0, 2.0, 2.5), end="finished") -> Path:
    """A run of a task of one's own: a measure that is better when it is smaller, no graph, no stages, parts of its own."""
    path.mkdir(parents=True)
    about = {"format": 2, "task": "Denoise", "headrace": "0.1.0", "name": name, "started": "2026-11-15T12:00:00"}
    about |= {"dataset": {"spec": None, "name": "Denoise", "nodes": 0, "edges": 0, "best_possible": {"error": 0.5}}}
    about |= {"options": {"epochs": len(errors), "seed": 0}, "parameters": 12}
    about |= {"measures": [{"name": "error", "better": "lower", "format": ",.1f"}, {"name": "kept", "format": ".1%"}]}
    (path / "options.json").write_text(json.dumps(about), encoding="utf-8")
    lines = [
        {"kind": "epoch", "epoch": epoch, "step": epoch + 1, "seconds": epoch + 1.0, "epoch_seconds": 1.0, "train_seconds": 0.75}
        | {"loss": error, "train_error": error - 0.25, "val_error": error, "val_kept": 1 / error, "lr": 0.01, "bytes": 0}
        | {"time": {"denoising": 0.75, "validate": 0.25}, "throughput": {"seeds": 8.0, "edges": 0.0, "bytes": 0.0}}
        | {"sampled": None, "stages": [], "memory": {"resident": 3e8, "peak": 4e8}}
        for epoch, error in enumerate(errors)
    ]
    if end is not None:
        scores = {"best_epoch": errors.index(min(errors)), "val_error": min(errors), "val_kept": 1 / min(errors)}
        scores |= {"test_error": 10 * min(errors), "test_kept": None}
        lines.append({"kind": "end", "reason": end, "seconds": 4.0} | scores)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def write_snapshot_run(path: Path, *, name="tgcn", epochs=3, steps=4) -> Path:
    """A run of `train snapshot`: forecasts with baselines beside them, and how two ranks were balanced."""
    path.mkdir(parents=True)
    about = {"format": 2, "task": "snapshot", "headrace": "0.1.0", "name": name, "started": "2026-11-15T12:00:00"}
    about |= {"dataset": {"spec": "los_loop", "nodes": 207, "edges": 2833, "features": 1, "best_possible": {}}}
    about |= {"options": {"model": "tgcn", "window": 12, "seed": 0}, "parameters": 6500}
    about |= {"measures": [{"name": "mse", "better": "lower"}, {"name": "mae", "better": "lower"}]}
    (path / "options.json").write_text(json.dumps(about), encoding="utf-8")
    balance = {"makespan": 0.5, "bound": 0.4, "idle": 0.25, "bytes": 1000.0}
    balance |= {"steps": {"over_bound": [1.0 + 0.1 * at for at in range(steps)], "idle": [0.05 * at for at in range(steps)]}}
    balance["steps"]["bytes"] = [1000.0 + at for at in range(steps)]
    lines: list[dict] = [
        {"kind": "epoch", "epoch": epoch, "step": steps * (epoch + 1), "seconds": 2.0 * (epoch + 1), "epoch_seconds": 2.0}
        | {"train_seconds": 1.5, "loss": 1 / (1 + epoch), "val_mse": 30.0 - epoch, "val_mae": 3.0, "lr": 0.01, "bytes": 0}
        | {"time": {"forward": 1.0, "backward": 0.5}, "throughput": {"seeds": 8.0, "edges": 0.0, "bytes": 0.0}, "balance": balance}
        | {"sampled": None, "stages": [], "memory": {"resident": 3e8, "peak": 4e8}}
        for epoch in range(epochs)
    ]
    known = {"zero": {"mse": 3451.7, "mae": 57.1}, "linear": {"mse": 28.4, "mae": 3.1}}
    drawn = {"name": "mean of all nodes", "truth": [60.0, 61.0, 59.5], "forecast": [60.5, 60.5, 60.0]}
    forecast = {"split": "test", "snapshots": [1613, 1614, 1615], "lines": [drawn, {"name": "node 3", "truth": [1.0]}]}
    test = {"mse": 26.5, "mae": 3.0, "baselines": known, "forecast": forecast}
    scores = {"best_epoch": epochs - 1, "val_mse": 28.0, "val_mae": 3.0, "test_mse": 26.5, "test_mae": 3.0, "test": test}
    lines.append({"kind": "end", "reason": "finished", "seconds": 7.0} | scores)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def write_trace(path: Path, batches: int = 60) -> None:
    """A trace as the pipeline writes it: two samplers and a gatherer ahead of the trainer."""
    trace = Trace()
    for batch in range(batches):
        begin = batch * 0.05
        for name, thread, at, seconds in [
            ("sample", batch % 2, begin, 0.03),
            ("rows", 2, begin + 0.03, 0.02),
            ("train", 3, begin + 0.05, 0.049),
            ("forward", 3, begin + 0.052, 0.018),
            ("backward", 3, begin + 0.071, 0.026),
        ]:
            trace._threads.setdefault(thread, ["headrace-sample-0", "headrace-sample-1", "headrace-rows-0", "MainThread"][thread])
            trace.spans.append(Span(name, batch, thread, at, at + seconds))
    trace.save(path)


def write_repeats(path: Path, repeats: int = 3, *, name="cora", done=True, epochs=60) -> Path:
    path.mkdir(parents=True)
    write_options(path, name=name, repeats=repeats, model="gcn", full_batch=True, dataset={"spec": "cora", "best_possible": {}})
    for number in range(repeats):
        end = "early stop" if done or number < repeats - 1 else None
        write_run(path / f"repeat-{number}", name=name, epochs=epochs + 7 * number, full_batch=True, seed=number, end=end)
    if done:
        values = [0.81, 0.815, 0.82][:repeats]
        spread = {"mean": 0.815, "std": 0.005, "values": values}
        result = {"test_accuracy": spread, "val_accuracy": spread | {"mean": 0.8}, "seconds": 123.4}
        (path / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return path


def hostile_run(path: Path) -> Path:
    """A run whose every string tries to leave the page's data."""
    return write_run(path, name=HOSTILE, epochs=2, dataset={"spec": HOSTILE}, model=HOSTILE, **{HOSTILE: HOSTILE})


def report(folder: Path, *runs: Path) -> Path:
    write_report(runs, folder / "report.html")
    return folder / "report.html"
