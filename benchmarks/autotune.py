"""Whether the autotuner finds a good number of workers: value of a run, 1 / (seconds x dollars), beside that of fixed numbers.

    python benchmarks/autotune.py [--fast 0.002] [--slow 0.15] [--epochs 40] [--json]

A server trains by tasks, with workers that are threads and take so many seconds longer for each task, during which they compute
nothing: a machine with two processors then has 32 workers that do not hinder each other. They are priced as calls of Lambda with a
processor each, by the prices that ship with Headrace. Fixed numbers run for a few epochs. The tuned run begins with 32, and its
search counts. Value is of an epoch: of runs of other lengths, it can be compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack
from math import ceil
from typing import Any

import torch

import headrace as hr
from headrace.cluster import ParameterStore, Task, ThreadExecutor, cut
from headrace.cluster.elastic import CallRecord, Controller, Labels, Neighborhood, Server, run_task
from headrace.nn import GNN
from headrace.train import NodeOptions, Watcher
from headrace.train.nodes.elastic import _Tuned
from headrace.train.nodes.spending import Spending

INTERVALS, FIXED = 32, (1, 2, 4, 8, 16, 32)
GB = 1769 / 1024
WITHIN = 0.8


class Training:
    """One server; every task takes `extra` seconds longer."""

    def __init__(self, data: hr.Dataset, extra: float, workers: int | None) -> None:
        self.opened, self.dollars, self.epoch = ExitStack(), 0.0, 0
        self.prices = hr.plan.read_prices()
        part = cut(data, 0, parts=1)
        model = GNN(part.num_features, 16, data.num_classes, layers=2, conv="gcn")
        at = Neighborhood(part, intervals=INTERVALS, exchange=None)
        weights = {name: weight.detach() for name, weight in model.named_parameters()}
        self.store = ParameterStore(weights, lambda weights, total: weights, intervals=at.own_intervals)
        executor = self.opened.enter_context(ThreadExecutor(workers or INTERVALS))

        def slowed(payload: bytes) -> bytes:
            time.sleep(extra)
            return run_task(payload)

        spending = Spending(0.0, 1)
        controller: Controller[Task] = Controller(executor, function=slowed, log=self.pay)
        self.opened.enter_context(controller)
        assert part.x is not None
        assert data.y is not None
        train = data.splits["train"].long()
        labels = Labels(part.owners.locate(train)[1], data.y[train].long(), None)
        self.server = Server(model, at, part.x, labels, self.store, controller, draws=lambda epoch: epoch)
        self.executor = executor
        if workers is None:
            options = NodeOptions(full_batch=True, flow="pipe", intervals=INTERVALS, executor="lambda")
            self.server.on_result = _Tuned(executor, controller, Watcher(), options, spending)

    def pay(self, record: CallRecord) -> None:
        """As Lambda asks for it."""
        self.dollars += ceil(record.milliseconds) / 1e3 * GB * self.prices.gb_second + self.prices.request

    def value(self, epochs: int) -> tuple[float, list[int]]:
        """Of an epoch, over so many; and the workers after each."""
        workers = []
        begin, before = time.monotonic(), self.dollars
        for _ in range(epochs):
            self.server.train(range(self.epoch, self.epoch + 1), flow="pipe")
            total = self.store.take()
            assert total is not None
            self.store.step(total)
            self.epoch += 1
            workers.append(self.executor.workers)
        seconds = time.monotonic() - begin
        dollars = self.dollars - before + seconds / 3600 * self.prices.server("c5.2xlarge").hour
        return 1 / (seconds / epochs * dollars / epochs), workers

    def close(self) -> None:
        """End the workers."""
        self.server.close()
        self.opened.close()


def measured(data: hr.Dataset, extra: float, epochs: int) -> dict[str, Any]:
    """A row of the output."""
    values = {}
    for workers in FIXED:
        training = Training(data, extra, workers)
        training.value(1)
        values[workers], _ = training.value(2 if workers < 8 else 6)
        training.close()
        print(f"{extra:g} s, {workers} workers: {values[workers]:.4g}", file=sys.stderr, flush=True)
    training = Training(data, extra, None)
    tuned, workers_then = training.value(epochs)
    training.close()
    best = max(values, key=values.__getitem__)
    return {
        "bench": "autotune",
        "case": f"{extra:g} s a task",
        "metric": "value of an epoch, 1 / (seconds x dollars)",
        "unit": "",
        "ours": tuned,
        "peers": {f"{workers} workers": value for workers, value in values.items()},
        "limit": values[best],
        "best": best,
        "fewest": min(workers for workers, value in values.items() if value > 0.9 * values[best]),
        "workers": workers_then,
    }


def main() -> None:
    """Print a row for fast and for slow workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", type=float, default=0.002, help="seconds of a task")
    parser.add_argument("--slow", type=float, default=0.15)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    data = hr.generate.community(nodes=20_000, edges=400_000, classes=8, features=32, seed=0)
    rows = [measured(data, extra, chosen.epochs) for extra in (chosen.fast, chosen.slow)]
    if chosen.json:
        print(json.dumps(rows))
        return
    for row in rows:
        ratio = row["ours"] / row["limit"]
        print(
            f"{row['case']}: {ratio:.2f} of the best fixed number's value ({row['best']}; {row['fewest']} have 0.9 of it); "
            f"tuned to {row['workers'][-1]}, from {row['workers'][0]}"
        )


if __name__ == "__main__":
    main()
