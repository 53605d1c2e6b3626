"""Seconds of a full-graph training step by tasks, beside `full_batch` in one process and the sums and products alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from headrace.bench.measure import Row, time_in_turn
from headrace.bench.nodes.whole_graph import sums_and_products
from headrace.bench.nodes.whole_models import RATE, Case, check_losses, ours, whole
from headrace.bench.setting import Setting, check_trainable, threads_of
from headrace.cluster import ParameterStore, Task, ThreadExecutor, cut
from headrace.cluster.elastic import Controller, Flow, Labels, Neighborhood, Server
from headrace.graph import Dataset
from headrace.train.options import option

CASES = (Case("gcn", 2, 128), Case("gcn", 3, 256))
_FLOWS: tuple[Flow, ...] = ("sync", "pipe")
_ONE = "full_batch in one process"
_STEPS = 3  # of which losses are compared


@dataclass(frozen=True)
class ElasticSetting(Setting):
    """The setting of every benchmark. There are as many workers as the others have threads."""

    intervals: int = option(8, "ranges of rows into which the work is cut")


class ElasticTraining:
    """A model that trains by tasks, a step at a time: one server, workers that are threads, then Adam."""

    def __init__(self, case: Case, data: Dataset, *, flow: Flow, intervals: int, workers: int) -> None:
        part, self.flow, self.epoch = cut(data, 0, parts=1), flow, 0
        assert part.x is not None
        assert data.y is not None
        self.model = case.model(data)
        at = Neighborhood(part, intervals=intervals, exchange=None)
        weights = {name: weight.detach() for name, weight in self.model.named_parameters()}
        self.store = ParameterStore(weights, lambda weights, total: weights, intervals=at.own_intervals)
        self._opened = ExitStack()
        controller: Controller[Task] = self._opened.enter_context(Controller(self._opened.enter_context(ThreadExecutor(workers))))
        train = data.splits.get("train", torch.arange(data.num_nodes)).long()
        labels = Labels(part.owners.locate(train)[1], data.y[train].long(), None)
        self.server = Server(self.model, at, part.x, labels, self.store, controller, draws=lambda epoch: epoch)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=RATE)

    def step(self) -> float:
        """One step; its loss."""
        self.server.train(range(self.epoch, self.epoch + 1), flow=self.flow)
        totals = self.server.totals.pop(self.epoch)
        loss, weight, _ = torch.stack([totals[interval] for interval in sorted(totals)]).sum(0).tolist()
        total = self.store.take()
        assert total is not None
        for name, parameter in self.model.named_parameters():
            parameter.grad = total[name] / weight
        self.store.step(total)  # the optimizer changes its weights in place
        self.optimizer.step()
        self.epoch += 1
        return float(loss / weight)

    def close(self) -> None:
        """End the workers."""
        self.server.close()
        self._opened.close()


def on_cpu(setting: ElasticSetting) -> list[Row]:
    """Ours is `pipe`. The limit is the time of bare sums, every neighbor's row read anew, and of the matrix products."""
    data = setting.dataset()
    check_trainable(data)
    with threads_of(setting.threads):
        return [_row(setting, data, case) for case in CASES]


def _row(setting: ElasticSetting, data: Dataset, case: Case) -> Row:
    with ExitStack() as opened:
        one = ours(case, whole(case, data))
        runs: dict[str, Callable[[], float]] = {_ONE: lambda: float(one.step())}
        for flow in _FLOWS:
            training = ElasticTraining(case, data, flow=flow, intervals=setting.intervals, workers=setting.threads)
            opened.callback(training.close)
            runs[flow] = training.step
        setting.progress(f"{case}: checking")
        losses = {name: [step() for _ in range(_STEPS)] for name, step in runs.items()}
        for flow in _FLOWS:
            check_losses(losses[flow], losses[_ONE], flow)
        setting.progress(f"{case}: training")
        seconds = time_in_turn(dict(runs), repeats=setting.repeats, warmup=0)
    title = f"{case}, {setting.intervals} intervals, {setting.threads_named}, {data.num_nodes} nodes, {data.num_edges} edges"
    metric = f"step by pipe, {case.flop(data) / 1e9:.1f} GFLOP of products"
    return Row(title, metric, "s", seconds.pop("pipe"), seconds, sums_and_products(case, data, torch.float32, setting.threads))
