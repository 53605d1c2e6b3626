"""Calls the public Python API with hostile arguments. Each call must give a result or an error of the right kind.

    python tests/faults/fuzz_api.py --seed 0 --calls 2000

Call number i has seed S + i: it takes a call that works and spoils one to three of its arguments. A seed written as
SEED:NAME is of that call, whatever other calls there are. Calls run in batches in a process
of their own with a limit on memory; one that crashes or hangs is named, and the batch goes on behind it. `check=False`, by which a
caller vouches for ids, is not part of this.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attack import command_line, seeds_of, tell

_BATCH = 1000
_HANG = 60.0  # seconds without a new call
_MEMORY = 4 << 30
_FILE = 1 << 28
_VOUCHED = {"check", "self", "others", "options", "transform", "transform_sampler_output", "progress", "watcher"}
_ODD = (AttributeError,)  # of an argument that is of another kind altogether: counted, and no failure


@dataclass
class Counts:
    """What came of the calls. `odd` are errors that a check in front would have named better."""

    seed: int
    calls: int = 0
    results: int = 0
    errors: int = 0
    odd: int = 0
    crashes: int = 0
    hangs: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)


def run(seeds: Sequence[str]) -> Counts:
    """Make the calls of these seeds."""
    counts = Counts(_parsed(seeds[0])[0] if seeds else 0)
    with tempfile.TemporaryDirectory(prefix="headrace-api-", ignore_cleanup_errors=True) as folder:
        while seeds:
            batch, rest = seeds[:_BATCH], seeds[_BATCH:]
            seeds = [*_batch(batch, Path(folder), counts), *rest]
    return counts


def _parsed(seed: str) -> tuple[int, str]:
    """A seed, and the name of its call; empty where the seed decides."""
    number, _, name = seed.partition(":")
    return int(number), name


def _batch(seeds: Sequence[str], folder: Path, counts: Counts) -> Sequence[str]:
    """Run a worker over some seeds; returns those that it did not come to."""
    said = folder / "said.jsonl"
    said.unlink(missing_ok=True)
    words = [sys.executable, __file__, "--worker", str(said), "--seeds", ",".join(seeds)]
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"}
    with open(folder / "errors.txt", "w+b") as errors:
        worker = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors, env=environment, cwd=folder)
        size, since, hung = -1, time.monotonic(), False
        while worker.poll() is None:
            now = said.stat().st_size if said.exists() else -1
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > _HANG:
                hung = True
                worker.kill()
            time.sleep(0.05)
        errors.seek(0)
        last = errors.read().decode(errors="replace")[-1500:]
    lines = [json.loads(line) for line in said.read_text(encoding="utf-8").splitlines()] if said.exists() else []
    begun = [line for line in lines if "began" in line]
    done = [line for line in lines if "kind" in line]
    counts.calls += len(done)
    for line in done:
        kind = line["kind"]
        counts.results += kind == "result"
        counts.errors += kind == "error"
        counts.odd += kind == "odd"
        if kind == "failure":
            counts.failures.append({"seed": line["seed"], "call": line["call"], "said": line["said"]})
    if worker.returncode == 0 and not hung:
        return []
    if not begun:
        raise RuntimeError(f"the worker could not begin: {last}")
    broken = begun[-1]
    left = seeds[broken["place"] + 1 :]
    if len(done) == len(begun):
        if not left:  # after its last call, on its way out
            counts.crashes += 1
            counts.failures.append({"seed": broken["began"], "call": "the interpreter's exit", "said": last})
        return left
    counts.calls += 1
    counts.hangs += hung
    counts.crashes += not hung
    counts.failures.append({"seed": broken["began"], "call": broken["call"], "said": last if not hung else "no answer"})
    return left


def _work(said: Path, seeds: Sequence[str]) -> None:
    """A worker: makes the calls of its seeds, and writes each down before and after."""
    import faulthandler

    faulthandler.enable()
    warnings.simplefilter("ignore")
    import torch

    targets = _targets(Path.cwd())
    by_name = {target[0]: target for target in targets}
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + _MEMORY, held + _MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE, _FILE))  # more is an error at once: writing it would take minutes
    right = (ValueError, TypeError, IndexError, KeyError, OSError, MemoryError, NotImplementedError, RuntimeError, OverflowError)
    right += (FloatingPointError, ImportError)
    with open(said, "a", encoding="utf-8") as log:
        for place, asked in enumerate(seeds):
            number, wanted = _parsed(asked)
            name, call, arguments = by_name[wanted] if wanted else random.Random(f"target {number}").choice(targets)
            seed = f"{number}:{name}"
            spoiled = _spoil(random.Random(number), call, arguments(), torch)
            shown = f"{name}({', '.join(f'{k}={_short(v)}' for k, v in spoiled.items())})"
            log.write(json.dumps({"began": seed, "place": place, "call": shown}) + "\n")
            log.flush()
            try:
                call(**spoiled)
                kind, text = "result", ""
            except right as error:
                text = f"{type(error).__name__}: {error}"
                kind = "error" if str(error).strip() or isinstance(error, MemoryError | KeyError) else "failure"
            except _ODD as error:
                kind, text = "odd", f"{type(error).__name__}: {error}"
            except Exception as error:
                kind, text = "failure", f"{type(error).__name__}: {error}"
            log.write(json.dumps({"seed": seed, "kind": kind, "call": shown, "said": text[:600]}) + "\n")
            log.flush()


def _short(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _spoil(dice: random.Random, call: Callable[..., Any], arguments: dict[str, Any], torch: Any) -> dict[str, Any]:
    accepted = [name for name in inspect.signature(call).parameters if name not in _VOUCHED]
    names = sorted({*accepted, *arguments} - _VOUCHED)
    for name in dice.sample(names, min(dice.choice([1, 1, 2, 3]), len(names))):
        arguments[name] = _hostile(dice, arguments.get(name), torch)
    return arguments


def _hostile(dice: random.Random, good: Any, torch: Any) -> Any:
    """Something that this argument is not expected to be: like the good one but wrong, or of any kind."""
    numbers = [
        0,
        1,
        -1,
        2,
        7,
        2**31 - 1,
        2**31,
        2**40,
        2**62,
        2**63 - 1,
        2**63,
        10**30,
        -(2**63),
        0.5,
        1e308,
        float("nan"),
        float("inf"),
    ]
    anything = [None, True, "", "ünï", "auto", [], (), {}, [1, "a"], b"x", object(), int, *numbers, "no/such/file", "/dev/null"]
    if isinstance(good, torch.Tensor) and dice.random() < 0.8:
        return _spoiled_tensor(dice, good, torch)
    if isinstance(good, bool | int | float) and dice.random() < 0.8:
        return dice.choice(numbers)
    if isinstance(good, list | tuple) and dice.random() < 0.7:
        return type(good)(dice.choice([*numbers, *good]) for _ in range(dice.randint(0, 4)))
    if dice.random() < 0.2:
        return torch.randn(dice.randint(0, 5), dice.randint(0, 5))
    return dice.choice(anything)


def _spoiled_tensor(dice: random.Random, good: Any, torch: Any) -> Any:
    ways: list[Callable[[], Any]] = [
        lambda: good[:0],
        lambda: good[: len(good) // 2],
        lambda: good.flip(0),
        lambda: good.unsqueeze(0),
        lambda: good.reshape(-1),
        lambda: good.to(
            dice.choice([torch.int8, torch.int32, torch.int64, torch.float16, torch.float64, torch.bool, torch.complex64])
        ),
        lambda: torch.cat([good, good]),
        lambda: torch.full_like(good, -1),
        lambda: good * 0 + 10**9 if not good.is_floating_point() else good * float("nan"),
        lambda: good.tolist(),
        lambda: good.numpy(),
        lambda: torch.as_strided(good, (len(good),), (0,)),
        lambda: good.to("meta"),
        lambda: torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), [], (4,)),
        lambda: torch.tensor(3),
        lambda: torch.empty(0, 3),
    ]
    try:
        return dice.choice(ways)()
    except (RuntimeError, TypeError, IndexError, ValueError):
        return good[:0] if good.dim() else None


def _targets(folder: Path) -> list[tuple[str, Callable[..., Any], Callable[[], dict[str, Any]]]]:
    """Calls by name, each with arguments that work."""
    import torch

    import headrace as hr
    from headrace import kernels, loader, nn, sample, store, train

    data = hr.generate.community(nodes=60, edges=400, classes=3, features=8, threads=1)
    graph, x, ids = data.graph, data.x, torch.tensor([3, 1, 59, 1])
    data.save(folder / "saved")
    torch.save({"x": x}, folder / "x.pt")
    triples = torch.stack([ids, ids % 2, ids.flip(0)], 1)
    knowledge = hr.generate.knowledge(nodes=40, edges=300, relations=2, threads=1)
    rows = (graph.indptr, graph.indices)
    stream = hr.EventStream.of(hr.generate.events(nodes=40, events=300))
    sequence = hr.generate.snapshots(nodes=20, edges=60, steps=48, features=2)
    counter = iter(range(10**9))

    def preset(name: Any, scale: Any, **more: Any) -> Any:
        large = isinstance(scale, int | float) and 0.0001 < scale <= 1  # which takes minutes, and is no fault
        return hr.generate.preset(name, scale=0.0001 if large else scale, **more)

    def sampled(graph: Any, fanouts: Any, seeds: Any, epoch: Any = 0, batch: Any = 0, **more: Any) -> Any:
        return sample.NeighborSampler(graph, fanouts, **more).sample(seeds, epoch, batch)

    def loaded(data: Any, num_neighbors: Any, input_nodes: Any, **more: Any) -> Any:
        for _, batch in zip(range(3), loader.NeighborLoader(data, num_neighbors, input_nodes, **more), strict=False):
            _ = batch.x
        return None

    def links(data: Any, num_neighbors: Any, edge_label_index: Any, **more: Any) -> Any:
        for _, _batch in zip(range(3), loader.LinkNeighborLoader(data, num_neighbors, edge_label_index, **more), strict=False):
            pass

    def negatives(sampling: Any, num_src: Any, num_dst: Any, src: Any, **more: Any) -> Any:
        return sample.NegativeSampler(sampling, num_src=num_src, num_dst=num_dst, **more).sample(src)

    def shared(num_nodes: Any, amount: Any, chunks: Any, head: Any, tail: Any, **more: Any) -> Any:
        return sample.SharedNegatives(num_nodes, amount=amount, chunks=chunks, **more).sample(head, tail)

    def stored(rows: Any, ids: Any, out: Any = None) -> Any:
        return store.ArrayStore(rows).gather(ids, out=out)

    def cached(capacity: Any, policy: Any, ids: Any, **more: Any) -> Any:
        return store.Cached(store.ArrayStore(x), capacity, policy=policy, **more).gather(ids)

    def trained(num_rows: Any, width: Any, ids: Any, delta: Any, state: Any, **more: Any) -> Any:
        rows = store.TrainedArray.create(num_rows, width, **more)
        rows.add_(ids, delta, state)
        return rows.gather(ids)

    def partitioned(num_rows: Any, width: Any, partitions: Any, capacity: Any, **more: Any) -> Any:
        place = folder / f"rows-{next(counter)}"
        store.Partitioned.create(place, num_rows, width, partitions=partitions, **more)
        with store.Partitioned.open(place, capacity=capacity) as rows:
            return list(rows.scan(rows=16))

    def convolved(kind: Any, in_channels: Any, out_channels: Any, x: Any, where: Any, **more: Any) -> Any:
        return getattr(nn, kind)(in_channels, out_channels, **more)(x, where)

    def modeled(in_channels: Any, hidden: Any, out_channels: Any, **more: Any) -> Any:
        return train.infer(nn.GNN(in_channels, hidden, out_channels, **more), data)

    def decoded(kind: Any, dim: Any, relations: Any, rows: Any, relation: Any, candidates: Any) -> Any:
        decoder = nn.DECODERS[kind](dim, relations)
        return decoder.score(decoder.query(rows, relation)[None], candidates[None])

    def node(**options: Any) -> Any:
        return train.node(data, options=train.NodeOptions(epochs=1, **options))

    def link(**options: Any) -> Any:
        return train.link(knowledge, train.LinkOptions(epochs=1, **options))

    def temporal(**options: Any) -> Any:
        return train.temporal(stream, train.TemporalOptions(epochs=1, **options))

    def snapshot(**options: Any) -> Any:
        return train.snapshot(sequence, train.SnapshotOptions(epochs=1, **options))

    def celled(kind: Any, in_channels: Any, out_channels: Any, x: Any, where: Any, **more: Any) -> Any:
        return getattr(nn, kind)(in_channels, out_channels, **more)(x, where)

    def tgn(rows: Any, dt: Any, **more: Any) -> Any:
        return nn.TGN(**more).update(rows[:, :8], rows[:, :16], dt, has_mail=torch.ones(len(rows), dtype=torch.bool))

    def event_negatives(stream: Any, begin: Any, end: Any, **more: Any) -> Any:
        return sample.EventNegatives(stream, **more).sample(begin, end)

    def saved(nodes: Any, y: Any, x: Any) -> Any:
        hr.Dataset(graph, x=x, y=y, splits={"train": nodes}).save(folder / f"saved-{next(counter)}")

    some = {"x": x, "indptr": graph.indptr, "indices": graph.indices}
    heads = {"source": torch.randn(60, 2), "target": torch.randn(60, 2)}
    return [
        ("Graph", hr.Graph, lambda: {"indptr": graph.indptr, "indices": graph.indices}),
        ("Graph.from_edges", hr.Graph.from_edges, lambda: {"src": ids, "dst": ids.flip(0), "num_nodes": 60, "threads": 2}),
        ("Graph.reordered", graph.reordered, lambda: {"order": torch.randperm(60)}),
        ("Dataset", hr.Dataset, lambda: {"graph": graph, "x": x, "y": data.y, "splits": dict(data.splits)}),
        ("Dataset.save", saved, lambda: {"nodes": ids, "y": data.y, "x": x}),
        ("Dataset.reorder", data.reorder, lambda: {"order": "degree"}),
        ("open", hr.open, lambda: {"path": folder / "saved", "verify": True}),
        ("load", hr.load, lambda: {"name": "cora", "root": folder}),
        (
            "generate.community",
            hr.generate.community,
            lambda: {"nodes": 60, "edges": 200, "classes": 3, "features": 4, "threads": 2},
        ),
        ("generate.knowledge", hr.generate.knowledge, lambda: {"nodes": 60, "edges": 200, "relations": 2, "threads": 2}),
        ("generate.preset", preset, lambda: {"name": "products", "scale": 0.0001, "threads": 2}),
        ("NeighborSampler", sampled, lambda: {"graph": graph, "fanouts": [3, 2], "seeds": ids, "seed": 1, "threads": 2}),
        (
            "NeighborSampler by LABOR",
            sampled,
            lambda: {"graph": graph, "fanouts": [3], "seeds": ids, "labor": True, "replace": False},
        ),
        (
            "NeighborLoader",
            loaded,
            lambda: {"data": data, "num_neighbors": [3, 2], "input_nodes": ids, "batch_size": 2, "staleness": 2},
        ),
        (
            "NeighborLoader of a shard",
            loaded,
            lambda: {"data": data, "num_neighbors": [3], "input_nodes": None, "shard": (0, 2), "seed": 3},
        ),
        (
            "LinkNeighborLoader",
            links,
            lambda: {"data": data, "num_neighbors": [3], "edge_label_index": triples[:, ::2].T, "batch_size": 2},
        ),
        ("NegativeSampler", negatives, lambda: {"sampling": "binary", "num_src": 60, "num_dst": 60, "src": ids}),
        ("SharedNegatives", shared, lambda: {"num_nodes": 60, "amount": 5, "chunks": 2, "head": ids, "tail": ids, "seed": 1}),
        ("KnownEdges", sample.KnownEdges, lambda: {"triples": triples, "num_nodes": 60, "num_relations": 2}),
        ("ArrayStore", stored, lambda: {"rows": x, "ids": ids, "out": None}),
        ("Cached", cached, lambda: {"capacity": 10, "policy": "sieve", "ids": ids}),
        (
            "TrainedArray",
            trained,
            lambda: {
                "num_rows": 60,
                "width": 4,
                "ids": ids[:3],
                "delta": torch.ones(3, 4),
                "state": torch.ones(3, 1),
                "threads": 2,
            },
        ),
        ("Partitioned", partitioned, lambda: {"num_rows": 60, "width": 4, "partitions": 4, "capacity": 2}),
        ("FileRows", store.FileRows, lambda: {"path": next((folder / "saved").glob("x.*")), "threads": 2}),
        ("hash_owners", store.hash_owners, lambda: {"num_nodes": 60, "ranks": 2, "seed": 0}),
        ("place", store.place, lambda: {"order": torch.arange(60), "capacity_rows": 5, "devices": [0, 1]}),
        ("hot_order", store.hot_order, lambda: {"graph": graph, "by": "degree", "seeds": ids, "fanouts": [3], "batch_size": 2}),
        ("access_counts", store.access_counts, lambda: {"batches": [ids, ids], "num_nodes": 60}),
        (
            "expected_hit_rate",
            store.expected_hit_rate,
            lambda: {"hotness": torch.rand(60), "order": torch.arange(60), "share": 0.5},
        ),
        ("gather", kernels.gather, lambda: {"x": x, "ids": ids, "threads": 2}),
        ("aggregate", kernels.aggregate, lambda: {**some, "reduce": "mean", "threads": 2}),
        ("aggregate by weights", kernels.aggregate, lambda: {**some, "weight": torch.rand(400), "ids": torch.arange(60)}),
        ("attend", kernels.attend, lambda: {**some, **heads, "threads": 2}),
        (
            "attend_pairs",
            kernels.attend_pairs,
            lambda: {**some, "target": torch.randn(60, 8), "attention": torch.randn(2, 4), "threads": 2},
        ),
        ("dropout", kernels.dropout, lambda: {"x": x, "rate": 0.5, "seed": 1, "threads": 2}),
        ("softmax_rows_", kernels.softmax_rows_, lambda: {"scores": torch.randn(4, 5), "own": torch.randn(4), "share": 1.0}),
        ("round_to_bfloat16", kernels.round_to_bfloat16, lambda: {"values": x[:4], "ids": ids, "seed": 1, "call": 2}),
        ("prepare", kernels.prepare, lambda: {"rows": rows, "width": 8}),
        ("SAGEConv", convolved, lambda: {"kind": "SAGEConv", "in_channels": 8, "out_channels": 4, "x": x, "where": graph}),
        ("GCNConv", convolved, lambda: {"kind": "GCNConv", "in_channels": 8, "out_channels": 4, "x": x, "where": graph}),
        (
            "GATConv",
            convolved,
            lambda: {"kind": "GATConv", "in_channels": 8, "out_channels": 4, "x": x, "where": graph, "heads": 2},
        ),
        ("GNN", modeled, lambda: {"in_channels": 8, "hidden": 8, "out_channels": 3, "layers": 2, "conv": "sage"}),
        (
            "decoders",
            decoded,
            lambda: {"kind": "complex", "dim": 8, "relations": 2, "rows": x[:2], "relation": ids[:2] % 2, "candidates": x},
        ),
        (
            "train.node",
            node,
            lambda: {"hidden": 4, "fanout": (3,), "batch_size": 20, "threads": 1, "lr": 0.1, "seed": 1, "dropout": 0.1},
        ),
        (
            "train.link",
            link,
            lambda: {"dim": 4, "batch_size": 100, "negatives": 5, "chunks": 2, "threads": 1, "lr": 0.1, "seed": 1},
        ),
        (
            "train.temporal",
            temporal,
            lambda: {"hidden": 8, "batch_size": 50, "parallel": "1x2x1", "neighbors": 2, "candidates": 3, "threads": 1, "seed": 1},
        ),
        (
            "train.snapshot",
            snapshot,
            lambda: {"model": "tgcn", "hidden": 4, "window": 3, "horizon": 1, "groups": 8, "stack": 2, "threads": 1, "seed": 1},
        ),
        ("EventStream", hr.EventStream, lambda: {"src": stream.src, "dst": stream.dst, "time": stream.time, "num_nodes": 40}),
        ("EventNegatives", event_negatives, lambda: {"stream": stream, "begin": 10, "end": 20, "amount": 3, "kind": "uniform"}),
        ("generate.events", hr.generate.events, lambda: {"nodes": 40, "events": 200, "repeat": 0.5, "new": 0.1, "gap": 2.0}),
        (
            "generate.snapshots",
            hr.generate.snapshots,
            lambda: {"nodes": 20, "edges": 60, "steps": 6, "features": 2, "seed": 1},
        ),
        ("Snapshots.from_stream", hr.Snapshots.from_stream, lambda: {"stream": stream, "every": 500.0}),
        ("temporal.schedule", hr.temporal.schedule, lambda: {"i": 1, "j": 2, "k": 2, "batches": 9}),
        ("snapshots.balance", hr.snapshots.balance, lambda: {"costs": [1.0, 2.0, 3.0], "ranks": 2, "speeds": None}),
        ("cells", celled, lambda: {"kind": "TGCN", "in_channels": 8, "out_channels": 4, "x": x, "where": graph}),
        (
            "cells with terms",
            celled,
            lambda: {"kind": "GConvGRU", "in_channels": 8, "out_channels": 4, "x": x, "where": graph, "K": 2},
        ),
        (
            "TGN",
            tgn,
            lambda: {"rows": torch.randn(5, 16), "dt": torch.arange(5), "memory": 8, "time": 4, "out": 8, "heads": 2},
        ),
        (
            "attend_time",
            kernels.attend_time,
            lambda: {
                "query": torch.randn(60, 2, 11),
                "indptr": graph.indptr,
                "indices": graph.indices,
                "dt": torch.arange(400),
                "x": x,
                "time_weight": torch.rand(3),
                "time_bias": torch.rand(3),
                "threads": 2,
            },
        ),
        (
            "gru_gates",
            kernels.gru_gates,
            lambda: {"input": torch.randn(5, 12), "hidden": torch.randn(5, 12), "memory": torch.randn(5, 4), "threads": 2},
        ),
    ]


def main() -> None:
    """The command."""
    parser = command_line(__doc__, "--calls", 1000, "calls")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seeds", help="only these, with commas between")
    arguments = parser.parse_args()
    seeds = (
        arguments.seeds.split(",") if arguments.seeds else [str(seed) for seed in seeds_of(None, arguments.seed, arguments.calls)]
    )
    if arguments.worker is not None:
        _work(arguments.worker, seeds)
        return
    tell(asdict(run(seeds)), as_json=arguments.json)


if __name__ == "__main__":
    main()
