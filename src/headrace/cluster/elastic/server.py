"""`Server`: a graph server. It gathers over its own rows, has workers apply layers to them, and tells others of boundary rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from headrace.cluster.elastic.controller import Controller
from headrace.cluster.elastic.draws import LayerDraws, layer_draws
from headrace.cluster.elastic.ghosts import Ghosts, News
from headrace.cluster.elastic.neighborhood import Neighborhood, Reading
from headrace.cluster.elastic.parameter_store import ParameterStore
from headrace.cluster.elastic.payload import pack_task
from headrace.cluster.elastic.schedule import Flow, Schedule
from headrace.cluster.elastic.sums import LayerSum
from headrace.cluster.elastic.task import Direction, Task, stages
from headrace.cluster.elastic.vertex import GRADIENT, weight_arrays
from headrace.kernels import dropout
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
    ) -> None:
        self.model, self.at, self.store, self.controller, self.labels = model, neighborhood, store, controller, labels
        self.layers = cast("list[Layer]", list(model.layers))
        self.dtype = next(model.parameters()).dtype
        self.sums = [LayerSum(layer, neighborhood, self.dtype) for layer in self.layers]
        self.reads_own = [layer.split().reads_own for layer in self.layers]
        self.totals: dict[int, dict[int, Tensor]] = {}  # by epoch and interval: loss, weight and right predictions
        self.predicted: Tensor | None = None  # [own, classes], of the last validation
        self._config = json.dumps(model.config)
        self._draws, self._drawn = draws, dict[int, list[LayerDraws]]()
        self.most_lead = self.most_age = 0  # epochs, of flow async
        self._exchange_sums = exchange_sums
        self._ghosts: Ghosts | None = None
        if neighborhood.exchange is not None:
            numbers = sum(weight.numel() for weight in store.weights().values()) if exchange_sums else 0
            self._ghosts = Ghosts(neighborhood.exchange, numbers=numbers, dtype=self.dtype)
        self._reads, self._reads_back = (neighborhood.reads(reading) for reading in (neighborhood.forward, neighborhood.backward))
        self._places: dict[tuple[bool, int], Tensor] = {}
        self._make_tables(x)

    def _make_tables(self, x: Tensor) -> None:
        """Rows of the inputs of every layer but the first, their sums, and the gradients of these; and features of ghosts, once."""
        at, widths = self.at, [total.width for total in self.sums]
        features = torch.cat([x, *at.exchanged(x, at.forward, "features")])
        self.x, self._dropped = features, dict[int, Tensor]()
        self.first = self.sums[0].gather(features, 0, at.num_own)
        if self.layers[0].before:
            self._all_ids = torch.cat([at.ids, *at.exchanged(at.ids, at.forward)])
        else:
            self.x = x  # those of ghosts are summed for good

        def table(rows: int, width: int) -> Tensor:
            return torch.zeros(rows, width, dtype=self.dtype)

        deeper = dict(enumerate(widths[1:], start=1))
        self.rows = {layer: table(at.forward.num_src, width) for layer, width in deeper.items()}
        self.summed = {layer: table(at.num_own, width) for layer, width in deeper.items()}
        self.scaled = {layer: table(at.backward.num_src, width) for layer, width in deeper.items()}
        self.kept = {layer: table(at.num_own, width) for layer, width in deeper.items()}
        if self.layers[0].before:
            self.summed[0] = table(at.num_own, widths[0])

    def train(self, epochs: range, *, flow: Flow, lead: int = 0) -> None:
        """Own intervals through these epochs, gradients to the store. Collective."""
        how: dict[str, Any] = {"intervals": self.at.num_intervals, "epochs": epochs, "flow": flow, "lead": lead}
        schedule = Schedule(stages(len(self.layers)), self._reads, self._reads_back, **how)
        self._run(schedule)
        self.most_lead, self.most_age = max(self.most_lead, schedule.most_lead), max(self.most_age, schedule.most_age)
        self._drawn.clear()
        self._dropped.clear()

    def validate(self, epoch: int) -> Tensor:
        """Predictions for the own nodes, without dropout. Collective.  # -> [own, classes]"""
        self.predicted = torch.zeros(self.at.num_own, self.layers[-1].out_channels, dtype=self.dtype)
        how: dict[str, Any] = {"intervals": self.at.num_intervals, "epochs": range(epoch, epoch + 1)}
        self._run(Schedule(stages(len(self.layers), validate=True), self._reads, self._reads_back, **how))
        return self.predicted

    def _run(self, schedule: Schedule) -> None:
        steps = _Steps(self.store) if schedule.flow == "async" else None
        news: list[News] = []
        if self._ghosts is None:
            while not schedule.finished:
                self._launch_ready(schedule)
                self._take(schedule, news, None)
                if steps is not None:
                    steps.make(rest=schedule.finished)
            return
        round = self._ghosts.begin([], [], finished=False)
        while True:
            self._launch_ready(schedule)
            if steps is not None:
                steps.make(rest=schedule.finished)
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
            self._take(schedule, news, _POLL)

    def _launch_ready(self, schedule: Schedule) -> None:
        for task in schedule.ready():
            schedule.start(task)
            self.controller.launch(task, self._payload(task))

    def _take(self, schedule: Schedule, news: list[News], seconds: float | None) -> None:
        """Wait for a result; store it and what there is to tell of it."""
        if seconds is None and not self.controller.under_way:
            raise RuntimeError("no task is ready and none under way: the schedule cannot go on")
        try:
            task, arrays = self.controller.next_result(seconds)
        except TimeoutError:
            return
        if task.has_gradients:
            prefix = f"layers.{task.layer}."
            found = {n.removeprefix(GRADIENT): array for n, array in arrays.items() if n.startswith(GRADIENT)}
            self.store.add(task, {prefix + name: gradient for name, gradient in found.items()})
        if schedule.done(task):
            news.append(self._keep(task, arrays))
        if task.direction == Direction.VALIDATE and task.layer == len(self.layers) - 1:
            self.store.release(task)
        self.controller.retire(task)

    def _payload(self, task: Task) -> bytes:
        layer, (begin, end) = task.layer, self.at.range_of(task.interval)
        training = task.direction != Direction.VALIDATE
        weights = self.store.weights(self.store.pin(task))
        seed = self._seeds(task.epoch)[layer].after if training else 0
        options = {
            "task": str(task),
            "model": self._config,
            "layer": layer,
            "seed": seed,
            "training": training,
            "inputs": layer > 0,
        }
        arrays = weight_arrays(self.layers[layer], weights, f"layers.{layer}.")
        arrays["summed"], own = self._inputs(task, begin, end)
        if self.reads_own[layer]:
            arrays["own"] = own
        if training and self.layers[layer].after:
            arrays["ids"] = self.at.ids[begin:end]
        if task.direction == Direction.TURN:
            arrays |= self.labels.of(begin, end)
        if task.direction == Direction.BACKWARD:
            back = self.sums[layer + 1].gather_back(self.scaled[layer + 1], begin, end)
            arrays["gradient"] = back.add_(self.kept[layer + 1][begin:end])
        return pack_task(_OPERATIONS[task.direction], options, arrays)

    def _inputs(self, task: Task, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Sums over neighbors, and own rows, that a task reads. What a backward task reads was kept by its forward task."""
        layer, training = task.layer, task.direction != Direction.VALIDATE
        if layer == 0 and not (training and self.layers[0].before):
            return self.first[begin:end], self.x[begin:end]
        rows = self.rows[layer] if layer else self._dropped_features(task.epoch)
        if task.direction == Direction.BACKWARD:
            return self.summed[layer][begin:end], rows[begin:end]
        summed = self.sums[layer].gather(rows, begin, end)
        if training:
            self.summed[layer][begin:end] = summed
        return summed, rows[begin:end]

    def _dropped_features(self, epoch: int) -> Tensor:  # -> [own + ghosts, features]
        if epoch not in self._dropped:
            self._dropped = {known: rows for known, rows in self._dropped.items() if known >= epoch - 2}
            draws = self._seeds(epoch)[0]
            self._dropped[epoch] = dropout(self.x, self.layers[0].before, seed=draws.before, rows=self._all_ids)
        return self._dropped[epoch]

    def _seeds(self, epoch: int) -> list[LayerDraws]:
        if epoch not in self._drawn:
            self._drawn[epoch] = layer_draws(self.layers, self._draws(epoch))
        return self._drawn[epoch]

    def _keep(self, task: Task, arrays: dict[str, Tensor]) -> News:
        """Store the result of an own task. Returns what other servers must know."""
        layer, (begin, end) = task.layer, self.at.range_of(task.interval)
        if task.direction == Direction.TURN:
            numbers = torch.cat([arrays[name] for name in ("loss", "weight", "right")])
            self.totals.setdefault(task.epoch, {})[task.interval] = numbers
        if not task.has_gradients:
            if layer + 1 < len(self.layers):
                self.rows[layer + 1][begin:end] = arrays["rows"]
                return self._news(task, self.rows[layer + 1], self.at.forward)
            assert self.predicted is not None
            self.predicted[begin:end] = arrays["rows"]
        elif layer:
            gradient, total = arrays["summed"], self.sums[layer]
            self.scaled[layer][begin:end] = total.scaled(gradient, begin, end)
            parts = [part for part in (total.kept(gradient, begin, end), arrays.get("own")) if part is not None]
            self.kept[layer][begin:end] = sum(parts) if parts else 0.0
            return self._news(task, self.scaled[layer], self.at.backward)
        return News(task, [self.first[:0]] * self.at.servers)

    def _news(self, task: Task, table: Tensor, reading: Reading) -> News:
        return News(task, [table[self.at.told(reading, task.interval, server)] for server in range(self.at.servers)])

    def _hear(self, task: Task, rows: Tensor) -> None:
        """Store rows of ghosts."""
        if not len(rows):
            return
        back = task.has_gradients
        reading = self.at.backward if back else self.at.forward
        table = self.scaled[task.layer] if back else self.rows[task.layer + 1]
        if (back, task.interval) not in self._places:
            self._places[back, task.interval] = self.at.places(reading, task.interval)
        table[self._places[back, task.interval]] = rows.clone().view(self.dtype).view(-1, table.shape[1])

    def close(self) -> None:
        """End the thread of the exchange; every server, after its last epoch."""
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
