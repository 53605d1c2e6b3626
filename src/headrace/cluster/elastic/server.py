"""`Server`: a graph server. It gathers over its own rows, has workers apply layers to them, and tells others of boundary rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from headrace.cluster.elastic.controller import Controller
from headrace.cluster.elastic.draws import LayerDraws, layer_draws
from headrace.cluster.elastic.ghosts import Ghosts, News
from headrace.cluster.elastic.layers import AttentionLayers, Layers, SumLayers
from headrace.cluster.elastic.neighborhood import Neighborhood
from headrace.cluster.elastic.parameter_store import ParameterStore
from headrace.cluster.elastic.schedule import Flow, Schedule
from headrace.cluster.elastic.task import Direction, Stages, Task, unfused
from headrace.cluster.elastic.vertex import WEIGHT, turned
from headrace.cluster.elastic.workers.objects import MemoryObjects
from headrace.cluster.elastic.workers.payload import Reference, pack_task
from headrace.cluster.elastic.workers.shelf import Shelf
from headrace.cluster.elastic.workers.torch_threads import one_torch_thread
from headrace.nn import GNN, Layer

_POLL = 0.001  # seconds between two looks at what other servers sent
_OPERATIONS = {
    Direction.FORWARD: "forward",
    Direction.TURN: "turn",
    Direction.BACKWARD: "backward",
    Direction.VALIDATE: "forward",
}


class Labels:
    """The training nodes among a server's own rows."""

    def __init__(self, rows: Tensor, labels: Tensor, classes: Tensor | None) -> None:
        order = rows.argsort()
        self._rows, self._labels, self._classes = rows[order], labels[order], classes

    def of(self, begin: int, end: int) -> dict[str, Tensor]:
        """The arrays of a task that computes the loss of own rows `begin` to `end`."""
        first, last = torch.searchsorted(self._rows, torch.tensor([begin, end])).tolist()
        arrays = {"seeds": self._rows[first:last] - begin, "labels": self._labels[first:last]}
        return arrays if self._classes is None else arrays | {"classes": self._classes}


class Server:
    """One of the servers that train on a whole graph together (Dorylus, Thorpe et al., OSDI'21).

    Rows of every layer are kept for own nodes and ghosts. A task is launched with the rows that are here, and its result stored and
    told to the servers that read it. `draws(epoch)` is the key of the epoch's dropout.

    With flow async the store steps when it can, and with `exchange_sums` servers tell each other what they stepped by: each steps
    by every sum once. In other flows the caller takes the sum of an epoch from the store.

    shelf: where weights are put by version, so that tasks refer to them; without one every task carries its own.
    fusion: whether the last layer and its backward pass are one task.
    """

    def __init__(
        self,
        model: GNN,
        neighborhood: Neighborhood,
        x: Tensor,
        labels: Labels,
        store: ParameterStore,
        controller: Controller[Task],
        *,
        draws: Callable[[int], int],
        exchange_sums: bool = False,
        shelf: Shelf | None = None,
        fusion: bool = True,
    ) -> None:
        self.model, self.at, self.store, self.controller, self.labels = model, neighborhood, store, controller, labels
        self.layers = cast("list[Layer]", list(model.layers))
        self.dtype = next(model.parameters()).dtype
        self.totals: dict[int, dict[int, Tensor]] = {}  # by epoch and interval: loss, weight and right predictions
        self.predicted: Tensor | None = None  # [own, classes], of the last validation
        self._config = json.dumps(model.config)
        self._draws, self._drawn = draws, dict[int, list[LayerDraws]]()
        self.most_lead = self.most_age = 0  # epochs, of flow async
        self.on_result: Callable[[], None] | None = None  # called when a result was taken
        self._exchange_sums = exchange_sums
        self.shelf, self._weights_name = shelf, 0
        self._fusion, self._of_loss = fusion, dict[int, Tensor]()  # by interval, the gradient of its predictions
        self._ghosts: Ghosts | None = None
        if neighborhood.exchange is not None:
            numbers = sum(weight.numel() for weight in store.weights().values()) if exchange_sums else 0
            self._ghosts = Ghosts(neighborhood.exchange, numbers=numbers, dtype=self.dtype)
        self._reads, self._reads_back = (neighborhood.reads(reading) for reading in (neighborhood.forward, neighborhood.backward))
        self._places: dict[tuple[bool, int], Tensor] = {}
        kind = SumLayers if self.layers[0].split().conv.by_node is None else AttentionLayers
        self.work: Layers = kind(self.layers, neighborhood, x, self.dtype)

    def train(self, epochs: range, *, flow: Flow, lead: int = 0) -> None:
        """Own intervals through these epochs, gradients to the store. Collective."""
        how: dict[str, Any] = {"intervals": self.at.num_intervals, "epochs": epochs, "flow": flow, "lead": lead}
        schedule = Schedule(self._stages, self._reads, self._reads_back, **how)
        self._run(schedule)
        self.most_lead, self.most_age = max(self.most_lead, schedule.most_lead), max(self.most_age, schedule.most_age)
        self._drawn.clear()
        self.work.forget()

    @property
    def tasks_of_epoch(self) -> int:
        """Of own intervals, in training."""
        return len(self._stages) * len(self.at.own_intervals)

    @property
    def _stages(self) -> Stages:
        return self.work.stages() if self._fusion else unfused(self.work.stages())

    def validate(self, epoch: int) -> Tensor:
        """Predictions for the own nodes, without dropout. Collective.  # -> [own, classes]"""
        self.predicted = torch.zeros(self.at.num_own, self.layers[-1].out_channels, dtype=self.dtype)
        how: dict[str, Any] = {"intervals": self.at.num_intervals, "epochs": range(epoch, epoch + 1)}
        self._run(Schedule(self.work.stages(validate=True), self._reads, self._reads_back, **how))
        return self.predicted

    def _run(self, schedule: Schedule) -> None:
        self._begin_weights()
        steps = _Steps(self.store) if schedule.flow == "async" else None
        news: list[News] = []
        if self._ghosts is None:
            while not schedule.finished:
                self._launch_ready(schedule, news, steps)
                if not (schedule.ready() or schedule.finished):
                    self._take(schedule, news, steps, None)
            return
        round = self._ghosts.begin([], [], finished=False)
        while True:
            self._launch_ready(schedule, news, steps)
            self._make(steps, schedule)
            if round.done:
                heard = round.wait()
                for task, rows in heard.tasks:
                    self._hear(task, rows)
                    schedule.heard(task)
                if steps is not None and heard.sums is not None:
                    steps.others += heard.sums.unbind()
                if heard.ended:
                    return
                sent, news = news, []
                sums = [] if steps is None else steps.to_tell()
                finished = schedule.finished and (steps is None or not steps.others)
                round = self._ghosts.begin(sent, sums, finished=finished)
            self._take(schedule, news, steps, 0.0 if schedule.ready() else _POLL)

    def _make(self, steps: _Steps | None, schedule: Schedule) -> None:
        """The steps of flow async that are due. Weights that nobody can ask for any more leave the shelf."""
        if steps is not None:
            before = self.store.version
            steps.make(rest=schedule.finished)
            if self.shelf is not None and self.store.version != before:
                self.shelf.remove("weights", but=frozenset((self._weights_name, version) for version in self.store.living))

    def _launch_ready(self, schedule: Schedule, news: list[News], steps: _Steps | None) -> None:
        """Launch what is ready. Results that come meanwhile are taken at once: none waits until a whole stage is launched."""
        for task in schedule.ready():
            schedule.start(task)
            self.controller.launch(task, self._payload(task))
            while self.controller.waiting:
                self._take(schedule, news, steps, None)

    def _take(self, schedule: Schedule, news: list[News], steps: _Steps | None, seconds: float | None) -> None:
        """Wait for a result; store it and what there is to tell of it, and make the steps that are due."""
        if seconds is None and not self.controller.under_way:
            raise RuntimeError("no task is ready and none under way: the schedule cannot go on")
        try:
            task, arrays = self.controller.next_result(seconds)
        except TimeoutError:
            return
        if task.has_gradients:
            self.store.add(task, self.work.gradients(task, arrays))
        if schedule.done(task):
            news.append(self._keep(task, arrays))
        if task.direction == Direction.VALIDATE and task.layer == self.work.last:
            self.store.release(task)
        self.controller.retire(task)
        if self.on_result is not None:
            self.on_result()
        self._make(steps, schedule)

    def _payload(self, task: Task) -> bytes:
        training = task.direction != Direction.VALIDATE
        weights = self.store.weights(self.store.pin(task))
        options, arrays = self.work.payload(task, weights, self._seeds(task))
        options |= {"task": str(task), "model": self._config, "layer": task.layer, "training": training}
        if task.direction == Direction.TURN:
            arrays |= self.labels.of(*self.at.range_of(task.interval))
        elif task.direction == Direction.BACKWARD and task.layer == self.work.last:
            arrays["gradient"] = self._of_loss.pop(task.interval)
        objects = None if self.shelf is None else self.shelf.objects
        return pack_task(_OPERATIONS[task.direction], options, self._referred(task, arrays), objects=objects)

    def _referred(self, task: Task, arrays: Mapping[str, Tensor]) -> dict[str, Tensor | Reference]:
        """The arrays of a task, those that lie on the shelf by reference: weights, and for threads also what never changes."""
        if self.shelf is None:
            return dict(arrays)
        version = self._weights_name, self.store.pin(task)
        weights = {name: array for name, array in arrays.items() if name.startswith(WEIGHT)}
        referred = (
            self.shelf.put(("weights", version, task.layer, task.direction == Direction.VALIDATE), weights) if weights else {}
        )
        if isinstance(self.shelf.objects, MemoryObjects):
            constant = {name: arrays[name] for name in self.work.constant(task) if name in arrays}
            if constant:
                referred |= self.shelf.put(("constant", task.layer, task.interval, *constant), constant)
        return {**arrays, **referred}

    def _begin_weights(self) -> None:
        """Weights may have changed in place since the last run of tasks: they get new names, and the old ones go."""
        self._weights_name += 1
        if self.shelf is not None:
            self.shelf.remove("weights")

    def _seeds(self, task: Task) -> list[LayerDraws] | None:
        """Of dropout; None in a validation."""
        if task.direction == Direction.VALIDATE:
            return None
        if task.epoch not in self._drawn:
            self._drawn[task.epoch] = layer_draws(self.layers, self._draws(task.epoch))
        return self._drawn[task.epoch]

    def _keep(self, task: Task, arrays: dict[str, Tensor]) -> News:
        """Store the result of an own task. Returns what other servers must know."""
        told: Mapping[str, Tensor] = arrays if task.direction == Direction.TURN else {}
        if task.direction == Direction.FORWARD and task.layer == self.work.last:
            with one_torch_thread():
                told, self._of_loss[task.interval] = turned(arrays["rows"], self.labels.of(*self.at.range_of(task.interval)))
        if told:
            numbers = torch.cat([told[name] for name in ("loss", "weight", "right")])
            self.totals.setdefault(task.epoch, {})[task.interval] = numbers
        if task.direction == Direction.VALIDATE and task.layer == self.work.last:
            assert self.predicted is not None
            begin, end = self.at.range_of(task.interval)
            self.predicted[begin:end] = arrays["rows"]
        weights = {} if task.ends_training else self.store.weights(self.store.pin(task))
        self.work.keep(task, arrays, weights, self._seeds(task))
        if (scattered := self.work.scattered(task)) is None:
            return News(task, [torch.empty(0)] * self.at.servers)
        table, reading = scattered
        return News(task, [table[self.at.told(reading, task.interval, server)] for server in range(self.at.servers)])

    def _hear(self, task: Task, rows: Tensor) -> None:
        """Store rows of ghosts."""
        if not len(rows) or (scattered := self.work.scattered(task)) is None:
            return
        table, reading = scattered
        place = task.has_gradients, task.interval
        if place not in self._places:
            self._places[place] = self.at.places(reading, task.interval)
        table[self._places[place]] = rows.clone().view(self.dtype).view(-1, table.shape[1])

    def close(self) -> None:
        """End the thread of the exchange; every server, after its last epoch. Objects of weights are removed."""
        if self.shelf is not None:
            self.shelf.clear()
        if self._ghosts is not None:
            self._ghosts.close()


class _Steps:
    """Updates of flow async: by own sums of gradients as they are due, and by those of other servers as they come."""

    def __init__(self, store: ParameterStore) -> None:
        self._store, self._told = store, list[Tensor]()
        self.others: list[Tensor] = []  # flat, that are still to be stepped by

    def make(self, *, rest: bool) -> None:
        """Make the steps that the store has room for; with `rest`, by what is left of own gradients too."""
        store = self._store
        while (total := store.take(rest=rest)) is not None:
            store.step(total)
            self._told.append(torch.cat([gradient.reshape(-1) for gradient in total.values()]))
        while self.others and store.may_step:
            flat, shapes = self.others.pop(0), {name: weight.shape for name, weight in store.weights().items()}
            parts = flat.split([shape.numel() for shape in shapes.values()])
            store.step({name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)})

    def to_tell(self) -> list[Tensor]:
        """Own sums that other servers do not know yet."""
        told, self._told = self._told, []
        return told
