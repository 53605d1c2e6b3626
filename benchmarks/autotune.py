"""Whether the autotuner finds a good number of workers: value of an epoch, 1 / (seconds x dollars), beside that of fixed numbers.

    python benchmarks/autotune.py [--fast 0.002] [--slow 0.5] [--turns 15] [--slow-turns 3] [--search 8] [--json]

A server trains by tasks, with workers that are threads and sleep so many seconds for each task, then compute it: a machine with
two processors then has 32 workers that do not hinder each other. They are priced as calls of Lambda with a processor each, by the
prices that ship with Headrace, and a call is paid until the server has taken its result. The tuned run begins with 32 workers and
searches for a few epochs. Then the fixed numbers and the tuned run take turns of one epoch each, so that what else the machine does
hits them alike, and medians are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from contextlib import ExitStack
from math import ceil
from threading import Lock
from typing import Any

import torch

import headrace as hr
from headrace.cluster import ParameterStore, Task, ThreadExecutor, cut
from headrace.cluster.elastic import CallRecord, Controller, Labels, Neighborhood, Server, Step, run_task
from headrace.nn import GNN
from headrace.train import Watcher
from headrace.train.nodes.spending import Spending
from headrace.train.nodes.tuned import Tuned

INTERVALS, FIXED = 32, (1, 2, 4, 8, 16, 32)
GB = 1769 / 1024


class Training:
    """One server; every task takes `extra` seconds longer."""

    def __init__(self, data: hr.Dataset, extra: float, *, tuned: bool) -> None:
        self.opened, self.dollars, self.epoch = ExitStack(), 0.0, 0
        self.prices = hr.plan.read_prices()
        self._begun, self._lock = dict[Task, float](), Lock()
        part = cut(data, 0, parts=1)
        model = GNN(part.num_features, 16, data.num_classes, layers=2, conv="gcn")
        at = Neighborhood(part, intervals=INTERVALS, exchange=None)
        weights = {name: weight.detach() for name, weight in model.named_parameters()}
        self.store = ParameterStore(weights, lambda weights, total: weights, intervals=at.own_intervals)
        self.executor = self.opened.enter_context(ThreadExecutor(INTERVALS))

        def slowed(payload: bytes) -> bytes:
            time.sleep(extra)
            return run_task(payload)

        controller: Controller[Task] = Controller(self.executor, function=slowed, log=self.ended, observe=self.seen)
        self.opened.enter_context(controller)
        assert part.x is not None
        assert data.y is not None
        train = data.splits["train"].long()
        labels = Labels(part.owners.locate(train)[1], data.y[train].long(), None)
        self.server = Server(model, at, part.x, labels, self.store, controller, draws=lambda epoch: epoch)
        self.tuned: Tuned | None = None
        if tuned:
            how: dict[str, Any] = {"intervals": INTERVALS, "epoch": self.server.tasks_of_epoch}
            self.tuned = self.server.on_result = Tuned(self.executor, controller, Watcher(), Spending(0.0, 1), **how)

    def ended(self, record: CallRecord) -> None:
        """A call came back. It began so long ago, and the server may not take its result yet."""
        with self._lock:
            self._begun.update((key, record.begin) for key in record.keys if isinstance(key, Task))

    def seen(self, step: Step, task: Task) -> None:
        """Pay as Lambda asks for it, when the server has used a result."""
        if step == Step.RETIRED:
            with self._lock:
                seconds = ceil((time.time() - self._begun.pop(task)) * 1e3) / 1e3
            self.dollars += seconds * GB * self.prices.gb_second + self.prices.request

    def value(self, epochs: int) -> float:
        """Of an epoch, over so many."""
        begin, before = time.monotonic(), self.dollars
        for _ in range(epochs):
            self.server.train(range(self.epoch, self.epoch + 1), flow="pipe")
            total = self.store.take()
            assert total is not None
            self.store.step(total)
            self.epoch += 1
        seconds = time.monotonic() - begin
        dollars = self.dollars - before + seconds / 3600 * self.prices.server("c5.2xlarge").hour
        return 1 / (seconds / epochs * dollars / epochs)

    def close(self) -> None:
        """End the workers."""
        self.server.close()
        self.opened.close()


def measured(data: hr.Dataset, extra: float, turns: int, search: int) -> dict[str, Any]:
    """A row of the output."""
    fixed, tuned = Training(data, extra, tuned=False), Training(data, extra, tuned=True)
    assert tuned.tuned is not None
    fixed.value(1)
    searched = tuned.value(search)
    values: dict[int, list[float]] = {workers: [] for workers in FIXED}
    ours: list[float] = []
    for turn in range(turns):
        for workers in FIXED:
            fixed.executor.resize(workers)
            values[workers].append(fixed.value(1))
        ours.append(tuned.value(1))
        shown = ", ".join(f"{workers}: {of[-1]:.4g}" for workers, of in values.items())
        print(f"{extra:g} s, turn {turn}: {shown}; tuned to {tuned.executor.workers}: {ours[-1]:.4g}", file=sys.stderr, flush=True)
    for change in tuned.tuned.changes:
        print(f"{change.seconds:.1f} s: {change.workers} workers, {change.reason}", file=sys.stderr)
    fixed.close()
    tuned.close()
    medians = {workers: statistics.median(of) for workers, of in values.items()}
    best = max(medians, key=medians.__getitem__)
    return {
        "bench": "autotune",
        "case": f"{extra:g} s a task",
        "metric": "value of an epoch, 1 / (seconds x dollars)",
        "unit": "",
        "ours": statistics.median(ours),
        "peers": {f"{workers} workers": value for workers, value in medians.items()},
        "limit": medians[best],
        "best": best,
        "fewest": min(workers for workers, value in medians.items() if value > 0.9 * medians[best]),
        "searching": searched,
        "workers": [change.workers for change in tuned.tuned.changes],
    }


def main() -> None:
    """Print a row for fast and for slow workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", type=float, default=0.002, help="seconds of a task")
    parser.add_argument("--slow", type=float, default=0.5)
    parser.add_argument("--turns", type=int, default=15, help="of fast workers")
    parser.add_argument("--slow-turns", type=int, default=3)
    parser.add_argument("--search", type=int, default=8, help="epochs of the tuned run before the turns")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    data = hr.generate.community(nodes=10_000, edges=200_000, classes=8, features=16, seed=0)
    cases = (chosen.fast, chosen.turns), (chosen.slow, chosen.slow_turns)
    rows = [measured(data, extra, turns, chosen.search) for extra, turns in cases if turns]
    if chosen.json:
        print(json.dumps(rows))
        return
    for row in rows:
        values = ", ".join(f"{workers} {value:.4g}" for workers, value in row["peers"].items())
        ratio, searching = (row[which] / row["limit"] for which in ("ours", "searching"))
        print(
            f"{row['case']}: {ratio:.2f} of the best fixed number's value, {searching:.2f} while it searched; numbers of workers "
            f"{row['workers']}; best is {row['best']}, {row['fewest']} have 0.9 of it; {values}"
        )


if __name__ == "__main__":
    main()
