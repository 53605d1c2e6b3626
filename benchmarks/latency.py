"""How much of the workers' latency `pipe` hides: calls that take 100 ms and 200 Mbit/s longer, on a Lambda of this machine.

    python benchmarks/latency.py [--nodes 32000] [--edges 40000000] [--intervals 32] [--workers 8] [--latency 0.1] [--bandwidth 200]
        [--tasks-per-call 1] [--no-fusion] [--apart] [--json]
    python benchmarks/latency.py --executor threads [--sum 0.02] [--nodes 8000] [--edges 64000] ...

With --executor lambda, the default, calls go to real processes by AWS' protocol (needs headrace[aws]), and want as many processors
as workers. With --executor threads a worker is a thread of the server that sleeps for the latency and for the bytes of its payload
and result: the same server, controller, schedule and payloads, without a wire and without other processes. --sum is for a machine
that is busy: the server then sleeps so many seconds in every sum over neighbors, on a graph on which the sum itself takes no time.
With threads the share is also told of the seconds in which the server waits for results, which other work on the machine does not
change: latency that is not hidden is what it waits for.

Neighbors are near each other in the order of nodes, as `headrace reorder` makes it of graphs with communities,
so an interval reads rows of few others; with --apart they are anywhere, every interval reads all others, and a sum waits in `pipe`
for the same rows as in `sync`.

Prints seconds of an epoch for `sync` without latency, `sync` and `pipe` with it, and the share that is hidden:
(sync - pipe) / (sync - sync without latency). The bound is that share for the shortest epoch there can be: as long as the epoch
without latency and a last call, for which nothing is left to do, or as its calls shared evenly among workers, whichever is longer.
Runs take turns, and medians are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

import headrace as hr
from headrace.cluster import ParameterStore, ThreadExecutor, cut
from headrace.cluster.elastic import Call, Controller, Labels, Neighborhood, Server
from headrace.cluster.elastic.layers import SumLayers
from headrace.cluster.elastic.workers.executors.pool import Function
from headrace.nn import GNN
from headrace.train import NodeOptions, Run, Watcher

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none", "AWS_DEFAULT_REGION": "us-east-1"}
CLASSES, FEATURES = 8, 64


def near_graph(nodes: int, edges: int, reach: int, seed: int = 0) -> hr.Dataset:
    """Nodes whose neighbors are up to `reach` away in their order. Those of a class follow one another."""
    draw = torch.Generator().manual_seed(seed)
    targets = torch.randint(nodes, (edges,), generator=draw)
    sources = (targets + torch.randint(-reach, reach + 1, (edges,), generator=draw)) % nodes
    y = torch.arange(nodes) * CLASSES // nodes
    x = torch.randn(nodes, FEATURES, generator=draw) + torch.nn.functional.one_hot(y, FEATURES)
    train, val, test = torch.randperm(nodes, generator=draw).split([nodes // 2, nodes // 4, nodes - nodes // 2 - nodes // 4])
    graph = hr.Graph.from_edges(sources, targets, num_nodes=nodes)
    return hr.Dataset(graph, x=x, y=y, splits={"train": train, "val": val, "test": test})


@contextmanager
def aws_here(workers: int, latency: float, bandwidth: float) -> Iterator[None]:
    """A Lambda in another process, as what boto3 calls."""
    limits = ["--concurrency", str(workers), "--latency", str(latency), "--bandwidth", str(bandwidth)]
    command = [sys.executable, "-m", "headrace.cluster.local_lambda", *limits]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        os.environ["AWS_ENDPOINT_URL_LAMBDA"] = process.stdout.readline().strip()
        try:
            yield
        finally:
            process.terminate()


def epoch(data: hr.Dataset, flow: str, chosen: argparse.Namespace, *, slow: bool) -> dict[str, float]:
    """Seconds of an epoch; of its calls by the seconds that they wait by design, all together; and of the longest of them."""
    latency, bandwidth = (chosen.latency, chosen.bandwidth) if slow else (0.0, 0.0)
    with tempfile.TemporaryDirectory() as folder, aws_here(chosen.workers, latency, bandwidth):
        how: dict[str, Any] = {"intervals": chosen.intervals, "workers": chosen.workers, "executor": "lambda", "flow": flow}
        how |= {"model": "gcn", "hidden": chosen.hidden, "layers": chosen.layers, "input_dropout": 0.0, "full_batch": True}
        how |= {"tasks_per_call": chosen.tasks_per_call, "fusion": not chosen.no_fusion}
        how |= {"epochs": chosen.epochs, "validate_every": chosen.epochs, "threads": 1, "objects": f"folder:{folder}/objects"}
        hr.train.node(data, NodeOptions(**how), out=Path(folder) / "run", watcher=Watcher())
        lines = Run(Path(folder) / "run").metrics("epoch")
        text = (Path(folder) / "run" / "calls-0.jsonl").read_text()
    calls = [call for call in map(json.loads, text.splitlines()) if ".v" not in call["task"] and not call["task"].startswith("0.")]
    waits = [latency + (call["sent"] + call["received"]) * 8e-6 / (bandwidth or float("inf")) for call in calls]
    of_epoch = sum(waits) / (chosen.epochs - 1)
    return {"seconds": statistics.median(line["train_seconds"] for line in lines[1:]), "waits": of_epoch, "longest": max(waits)}


class FarThreads(ThreadExecutor):
    """Threads that are so many seconds away, each with a link of its own of so many Mbit/s (0: without a limit)."""

    def __init__(self, workers: int, latency: float, bandwidth: float) -> None:
        self._latency, self._bandwidth, self.waits = latency, bandwidth or float("inf"), list[float]()
        super().__init__(workers)

    def _run(self, worker: bool, call: Call, function: Function, payload: bytes) -> bytes:
        on_the_way = self._latency + len(payload) * 8e-6 / self._bandwidth
        time.sleep(on_the_way)
        result = super()._run(worker, call, function, payload)
        on_the_way_back = len(result) * 8e-6 / self._bandwidth
        time.sleep(on_the_way_back)
        self.waits.append(on_the_way + on_the_way_back)
        return result


def epoch_of_threads(data: hr.Dataset, flow: str, chosen: argparse.Namespace, *, slow: bool) -> dict[str, float]:
    """As `epoch`, with a server of this process and `FarThreads`."""
    latency, bandwidth = (chosen.latency, chosen.bandwidth) if slow else (0.0, 0.0)
    model = GNN(FEATURES, chosen.hidden, CLASSES, layers=chosen.layers, conv="gcn")
    at = Neighborhood(part := cut(data, 0, parts=1), intervals=chosen.intervals, exchange=None)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    store = ParameterStore(weights, lambda weights, total: weights, intervals=at.own_intervals)
    assert part.x is not None
    assert data.y is not None
    train = data.splits["train"].long()
    labels = Labels(part.owners.locate(train)[1], data.y[train].long(), None)
    with ExitStack() as opened:
        executor = opened.enter_context(FarThreads(chosen.workers, latency, bandwidth))
        controller = opened.enter_context(Controller(executor, batch=chosen.tasks_per_call))
        fusion = not chosen.no_fusion
        server = Server(model, at, part.x, labels, store, controller, draws=lambda epoch: epoch, fusion=fusion)
        assert isinstance(server.work, SumLayers)
        for layer in server.work.sums:
            layer.gather, layer.gather_back = (  # type: ignore[method-assign]
                later(gather, chosen.sum) for gather in (layer.gather, layer.gather_back)
            )
        seconds, waited = list[float](), list[float]()
        for number in range(chosen.epochs):
            begin, before = time.monotonic(), controller.counts.waited
            server.train(range(number, number + 1), flow=flow)  # type: ignore[arg-type]
            seconds.append(time.monotonic() - begin)
            waited.append(controller.counts.waited - before)
            total = store.take()
            assert total is not None
            store.step(total)
        server.close()
    return {
        "seconds": statistics.median(seconds[1:]),
        "waited": statistics.median(waited[1:]),
        "waits": sum(executor.waits) / chosen.epochs,
        "longest": max(executor.waits),
    }


def later(gather: Callable[..., torch.Tensor], seconds: float) -> Callable[..., torch.Tensor]:
    """The same function, which sleeps first."""

    def slowed(*arguments: Any) -> torch.Tensor:
        time.sleep(seconds)
        return gather(*arguments)

    return slowed


def medians(runs: dict[str, list[dict[str, float]]], what: str) -> list[float]:
    """Of each kind of run."""
    return [statistics.median(run[what] for run in seen) for seen in runs.values()]


def main() -> None:
    """Print a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = {"nodes": 32_000, "edges": 40_000_000, "hidden": 32, "layers": 3, "epochs": 4, "rounds": 2}
    for name, number in {**usual, "intervals": 32, "workers": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--latency", type=float, default=0.1, help="seconds of a call")
    parser.add_argument("--bandwidth", type=float, default=200.0, help="Mbit/s of a worker")
    parser.add_argument("--executor", choices=["lambda", "threads"], default="lambda")
    parser.add_argument("--sum", type=float, default=0.0, help="with threads: seconds that the server sleeps in every sum")
    parser.add_argument("--tasks-per-call", type=int, default=1)
    parser.add_argument("--no-fusion", action="store_true", help="the last layer and its backward pass are tasks of their own")
    parser.add_argument("--apart", action="store_true", help="neighbors are anywhere")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    os.environ.update(CREDENTIALS)
    measure = epoch if chosen.executor == "lambda" else epoch_of_threads
    data = near_graph(chosen.nodes, chosen.edges, chosen.nodes // 2 if chosen.apart else chosen.nodes // chosen.intervals // 2)
    runs: dict[str, list[dict[str, float]]] = {"sync without latency": [], "sync": [], "pipe": []}
    for _ in range(chosen.rounds):
        for name, seen in runs.items():
            seen.append(measure(data, name.split()[0], chosen, slow=name in ("sync", "pipe")))
            print(name, seen[-1], file=sys.stderr, flush=True)
    without, sync, pipe = medians(runs, "seconds")
    last = runs["pipe"][-1]
    least = max(without + last["longest"], last["waits"] / chosen.workers)
    where = "anywhere" if chosen.apart else "near"
    sums = f", {chosen.sum:g} s more a sum" if chosen.sum else ""
    row: dict[str, Any] = {
        "bench": "latency",
        "case": f"gcn {chosen.layers} x {chosen.hidden}, {chosen.nodes} nodes, {chosen.edges} edges, neighbors {where}, "
        f"{chosen.intervals} intervals, {chosen.workers} workers of {chosen.executor}{sums}",
        "metric": "share of latency hidden",
        "unit": "",
        "ours": (sync - pipe) / (sync - without),
        "peers": {"sync s": sync, "pipe s": pipe, "sync without latency s": without},
        "limit": (sync - least) / (sync - without),
    }
    if chosen.executor == "threads":
        row["server_waited"] = dict(zip(runs, medians(runs, "waited"), strict=True))
        waited_without, waited_sync, waited_pipe = row["server_waited"].values()
        row["of_waits"] = (waited_sync - waited_pipe) / (waited_sync - waited_without)
    print(json.dumps([row]) if chosen.json else f"hidden {row['ours']:.2f}, bound {row['limit']:.2f}: {row['peers']}")
    if "of_waits" in row and not chosen.json:
        print(f"of what the server waits for results, hidden {row['of_waits']:.2f}: {row['server_waited']}")


if __name__ == "__main__":
    main()
