"""Servers, workers and a network in simulated time, around the real `Schedule` and `ParameterStore`.

Durations are random. Workers lose tasks, answer late and answer twice; a task that takes long is launched again. A task's result is
a number that depends on every row and weight that it read, so a wrong one changes the final weights. The simulator keeps its own
record of rows and epochs, and checks the bounds against that.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, Literal

import torch
from torch import Tensor

from headrace.cluster.elastic import Direction, Flow, ParameterStore, Schedule, Stages, Task, stages

RATE = 0.1


@dataclass(frozen=True)
class Case:
    """What is run: nothing here depends on time."""

    servers: tuple[tuple[int, ...], ...]  # the intervals of each
    reads: Mapping[int, frozenset[int]]
    layers: int = 2
    attention: bool = False
    epochs: range = range(3)
    flow: Flow = "pipe"
    lead: int = 0
    versions: Literal["flush", "stash", "double_buffer"] = "flush"
    update_every: int | None = None
    settle: int | None = None  # from this epoch on as pipe
    slow: int | None = None  # an interval whose tasks take a hundred times as long

    @cached_property
    def stages(self) -> Stages:
        return stages(self.layers, attention=self.attention)

    @cached_property
    def reads_back(self) -> dict[int, frozenset[int]]:
        return {j: frozenset(i for i, read in self.reads.items() if j in read) for j in self.reads}

    def exact(self, epoch: int) -> bool:
        return self.flow != "async" or (self.settle is not None and epoch >= self.settle)

    @cached_property
    def exchanges(self) -> list[int]:
        """Epochs before which all servers exchange what is left of their gradients; the last is the end."""
        return [epoch for epoch in self.epochs[1:] if self.exact(epoch)] + [self.epochs.stop]

    def new_weights(self) -> dict[str, Tensor]:
        """Weights of layers, and how often each interval's gradients of each epoch have been added."""
        return {"weights": torch.linspace(-0.5, 0.5, self.layers + 1), "counts": torch.zeros(len(self.epochs) * len(self.reads))}

    def gradients(self, task: Task, value: float) -> dict[str, Tensor]:
        gradients = {"weights": torch.tensor([value if layer == task.layer else 0.0 for layer in range(self.layers + 1)])}
        if task.ends_training:
            gradients["counts"] = self.one_hot[(task.epoch - self.epochs.start) * len(self.reads) + task.interval]
        return gradients

    @cached_property
    def one_hot(self) -> tuple[Tensor, ...]:
        return torch.eye(len(self.epochs) * len(self.reads)).unbind()


def random_case(random: Random, flow: Flow, lead: int = 0) -> Case:
    sizes = [random.choice((1, 1, 2, 3)) for _ in range(random.choice((1, 2, 2, 3)))]
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    servers = tuple(tuple(range(end - size, end)) for size, end in zip(sizes, ends, strict=True))
    count, first = ends[-1], random.choice((0, 5))
    epochs = range(first, first + random.choice((2, 3, 4)))
    versions = "flush" if flow != "async" else random.choice(("stash", "double_buffer"))
    update_every = None
    if versions != "flush":
        update_every = random.choice((None, 1, 2, 5) if versions == "stash" else (None, 3, 5))
    return Case(
        servers=servers,
        reads={i: frozenset(j for j in range(count) if random.random() < 0.6) for i in range(count)},
        layers=random.choice((1, 2, 2, 3)),
        attention=random.random() < 0.2,
        epochs=epochs,
        flow=flow,
        lead=lead,
        versions=versions,
        update_every=update_every,
        settle=random.choice((None, None, epochs.stop - 1)) if flow == "async" else None,
        slow=random.choice((None, random.randrange(count))),
    )


def update(weights: Mapping[str, Tensor], total: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """In place, as torch's optimizers do: a pinned version must not notice."""
    weights["weights"].sub_(total["weights"], alpha=RATE)
    weights["counts"].add_(total["counts"])
    return weights


def compute(task: Task, gathered: float, own: float, weight: float) -> float:
    return math.sin(gathered + (own + 1) * (weight + 1) + 0.1 * task.interval + task.direction)


def added(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    total: dict[str, Tensor] = {}
    for part in parts:
        for name, tensor in part.items():
            total[name] = total[name] + tensor if name in total else tensor
    return total


def sequential(case: Case) -> dict[str, Tensor]:
    """The truth: one loop, no schedule and no store."""
    weights = case.new_weights()
    for epoch in case.epochs:
        rows: list[dict[int, float]] = [{} for _ in case.stages]
        gradients: dict[int, list[dict[str, Tensor]]] = {i: [] for i in case.reads}
        for place, (layer, direction) in enumerate(case.stages):
            read = case.reads_back if direction == Direction.BACKWARD else case.reads
            for i in case.reads:
                task, before = Task(epoch, layer, direction, i), rows[place - 1]
                gathered, own = (sum(before[j] for j in sorted(read[i])), before[i]) if place else (0, 0)
                rows[place][i] = compute(task, gathered, own, weights["weights"][layer].item())
                if task.has_gradients:
                    gradients[i].append(case.gradients(task, rows[place][i]))
        update(weights, added(added(part for i in own for part in gradients[i]) for own in case.servers))
    return weights


class Server:
    """One server: it gathers, launches, takes results in, and tells the others."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        case = simulation.case
        self.simulation, self.case, self.own = simulation, case, case.servers[number]
        self.schedule = Schedule(
            case.stages,
            {i: case.reads[i] for i in self.own},
            {i: case.reads_back[i] for i in self.own},
            intervals=len(case.reads),
            epochs=case.epochs,
            flow=case.flow,
            lead=case.lead,
        )
        self.store = ParameterStore(
            case.new_weights(), update, intervals=self.own, versions=case.versions, update_every=case.update_every
        )
        self.room = self.store.versions.live
        self.free_workers = simulation.random.randint(1, 4)
        self.rows: list[dict[int, tuple[int, float]]] = [{} for _ in case.stages]  # by place and interval: epoch and row
        self.pinned: dict[int, list[float]] = {}  # by interval: the weights that its pass began with
        self.sums: list[dict[str, Tensor]] = []  # of other servers, not yet in the weights
        self.exchanges = list(case.exchanges)
        self.stepping = False  # a sum is taken, and its step is still to come
        self.most_age = 0
        self.results = 0

    def launch(self) -> None:
        random = self.simulation.random
        while self.free_workers and (ready := self.schedule.ready()):
            task = ready[0] if random.random() < 0.5 else random.choice(ready)
            self.schedule.start(task)
            self.free_workers -= 1
            self.simulation.work(self, task, self.compute(task))

    def compute(self, task: Task) -> float:
        """The result from the rows that are here now."""
        place = self.case.stages.index((task.layer, task.direction))
        weights = self.store.weights(self.store.pin(task))["weights"].tolist()
        if place == 0:
            self.simulation.check_lead(task)
            if task.epoch + 1 == self.case.settle:
                self.schedule.settle(self.case.settle)
            self.pinned[task.interval] = weights
            return compute(task, 0, 0, weights[task.layer])
        assert self.pinned[task.interval] == weights, f"{task} reads other weights than its pass began with"
        read = (self.case.reads_back if task.direction == Direction.BACKWARD else self.case.reads)[task.interval]
        before = self.rows[place - 1]
        if read:
            self.most_age = max(self.most_age, self.simulation.check_age(task, task.epoch - min(before[j][0] for j in read)))
        return compute(task, sum(before[j][1] for j in sorted(read)), before[task.interval][1], weights[task.layer])

    def result(self, task: Task, value: float) -> None:
        self.results += 1
        added_now = self.store.add(task, self.case.gradients(task, value)) if task.has_gradients else None
        first = self.schedule.done(task)
        assert added_now in (first, None), f"gradients of {task} must count as its result does"
        if first:
            self.free_workers += 1
            self.simulation.ended(task)
            self.simulation.tell(self, Server.heard, task, value)
            self.keep(task, value)
            self.update()
            self.launch()

    def late(self, task: Task) -> None:
        if self.schedule.lost(task):
            self.free_workers += 1
            self.launch()

    def heard(self, task: Task, value: float) -> None:
        self.keep(task, value)
        self.schedule.heard(task)
        self.launch()

    def keep(self, task: Task, value: float) -> None:
        self.rows[self.case.stages.index((task.layer, task.direction))][task.interval] = task.epoch, value

    def heard_sum(self, total: dict[str, Tensor]) -> None:
        self.sums.append(total)

    def update(self) -> None:
        """Before an exchange, hand in what is left. In asynchronous epochs, step some time after a step is due."""
        if self.stepping:
            return
        if self.exchanges and min(self.simulation.epochs[i] for i in self.own) >= self.exchanges[0]:
            epoch = self.exchanges.pop(0)
            total = self.store.take(rest=not self.case.exact(epoch - 1))
            assert total is not None or not self.case.exact(epoch - 1), f"no sum of epoch {epoch - 1}"
            self.stepping = True
            self.simulation.exchange(self, epoch, total or {})
        elif self.case.flow == "async" and (total := self.store.take()) is not None:
            self.stepping = True
            self.simulation.tell(self, Server.heard_sum, total)
            self.simulation.later(self, Server.step, [total])

    def exchanged(self, epoch: int, totals: list[dict[str, Tensor]]) -> None:
        self.step(totals)
        if epoch == self.case.settle:
            self.store.settle()
        self.schedule.updated(epoch - 1)
        self.launch()

    def step(self, totals: list[dict[str, Tensor]]) -> None:
        zeros = {name: torch.zeros_like(weight) for name, weight in self.store.weights().items()}
        self.store.step(zeros | added([*totals, *self.sums]))
        self.sums.clear()
        self.stepping = False
        self.update()


class Simulation:
    """Simulated time: a queue of events, and the truth about all intervals."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.random = case, Random(seed)
        self.epochs = dict.fromkeys(case.reads, case.epochs.start)  # of each interval, the one that it is in
        self.most_lead = 0
        self.time = 0.0
        self.events: list[tuple[float, int, Server, Callable[..., None], tuple[Any, ...]]] = []
        self.scheduled = 0
        self.arrivals: dict[tuple[Server, Server], float] = defaultdict(float)  # messages between two servers keep their order
        self.handed_in: dict[int, dict[Server, dict[str, Tensor]]] = defaultdict(dict)
        self.loss = self.random.choice((0, 0.1, 0.3))
        self.repeat = self.random.choice((0, 0.1, 0.3))
        self.limit = self.random.choice((1.5, 5))  # seconds after which a task is launched again
        self.servers = [Server(self, number) for number in range(len(case.servers))]

    def run(self) -> Simulation:
        for server in self.servers:
            server.launch()
        while self.events:
            self.time, _, server, event, arguments = heapq.heappop(self.events)
            event(server, *arguments)
        self.check_end()
        return self

    def at(self, time: float, server: Server, event: Callable[..., None], *arguments: Any) -> None:
        self.scheduled += 1
        heapq.heappush(self.events, (time, self.scheduled, server, event, arguments))

    def later(self, server: Server, event: Callable[..., None], *arguments: Any) -> None:
        self.at(self.time + self.random.expovariate(2), server, event, *arguments)

    def work(self, server: Server, task: Task, value: float) -> None:
        random = self.random
        slowness = 100 if task.interval == self.case.slow else 1
        end = self.time + slowness * random.expovariate(1)
        if random.random() >= self.loss:
            self.at(end, server, Server.result, task, value)
            if random.random() < self.repeat:
                self.at(end + slowness * random.expovariate(0.3), server, Server.result, task, value)
        self.at(self.time + slowness * self.limit, server, Server.late, task)

    def tell(self, sender: Server, event: Callable[..., None], *arguments: Any) -> None:
        for receiver in self.servers:
            if receiver is not sender:
                arrival = max(self.arrivals[sender, receiver], self.time + self.random.expovariate(2))
                self.arrivals[sender, receiver] = arrival
                self.at(arrival, receiver, event, *arguments)
                if self.random.random() < self.repeat and event is Server.heard:
                    self.at(arrival, receiver, event, *arguments)

    def exchange(self, server: Server, epoch: int, total: dict[str, Tensor]) -> None:
        sums = self.handed_in[epoch]
        sums[server] = total
        if len(sums) == len(self.servers):
            for receiver in self.servers:
                arrival = max([self.time, *(self.arrivals[sender, receiver] for sender in self.servers)])
                self.at(arrival + self.random.random(), receiver, Server.exchanged, epoch, [sums[s] for s in self.servers])

    def ended(self, task: Task) -> None:
        if (task.layer, task.direction) == self.case.stages[-1]:
            assert self.epochs[task.interval] == task.epoch, f"{task} ends an epoch out of turn"
            self.epochs[task.interval] += 1

    def check_lead(self, task: Task) -> None:
        slowest, first = min(self.epochs.values()), self.case.epochs.start
        lead, bound = task.epoch - slowest, 0 if self.case.exact(task.epoch) else self.case.lead
        assert task.epoch == first or slowest > first, f"{task} starts before the first epoch has ended"
        assert lead <= bound, f"{task} starts {lead} epochs ahead of the slowest interval, and the bound is {bound}"
        self.most_lead = max(self.most_lead, lead)

    def check_age(self, task: Task, age: int) -> int:
        exact = self.case.exact(task.epoch) or task.epoch == self.case.epochs.start
        bound = 0 if exact else self.case.lead + 1
        assert age <= bound, f"{task} reads a row that is {age} epochs old, and the bound is {bound}"
        return age

    def check_end(self) -> None:
        tasks = len(self.case.epochs) * len(self.case.stages)
        size = sum(weight.nbytes for weight in self.case.new_weights().values())
        for server in self.servers:
            schedule, store = server.schedule, server.store
            assert schedule.finished, f"deadlock: all intervals are in epoch {self.epochs}"
            assert (store.weights()["counts"] == 1).all(), "a gradient is missing, or came in twice"
            assert store.live == 1
            assert store.most_versions <= server.room
            assert store.most_bytes == store.most_versions * size
            assert schedule.most_lead <= self.case.lead
            assert schedule.most_age == server.most_age
            assert server.results == len(server.own) * tasks + schedule.duplicates

    @property
    def weights(self) -> list[float]:
        """The final weights, which must be the same on all servers where the flow is exact."""
        final = [server.store.weights()["weights"].tolist() for server in self.servers]
        if self.case.exact(self.case.epochs.start):
            assert all(weights == final[0] for weights in final)
        return final[0]
