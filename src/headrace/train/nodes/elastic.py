"""`ElasticRecipe`: node classification on the whole graph, by servers that hold a part each and workers for the tensor work."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from time import time
from typing import IO, Any

import torch
from torch import Tensor, nn

from headrace import _native
from headrace._arrays import thread_count
from headrace._memory import peak_memory
from headrace._sealed import sealed
from headrace._sizes import format_size
from headrace.cluster import LambdaExecutor, ParameterStore, Part, RayExecutor, Task, ThreadExecutor
from headrace.cluster.elastic import (
    CallRecord,
    Controller,
    Flow,
    Labels,
    MemoryObjects,
    Neighborhood,
    Objects,
    PoolExecutor,
    Server,
    Shelf,
    check_calls,
    open_objects,
    refuse_batch_norms,
    server_memory,
)
from headrace.graph import Dataset
from headrace.nn import GNN
from headrace.nn.node_losses import loss_weight
from headrace.ranks import Exchange
from headrace.train.fit import Setup
from headrace.train.inference.layerwise.infer_split import rows_of_all
from headrace.train.nodes.options import NodeOptions
from headrace.train.nodes.over_ranks.parallel import closing
from headrace.train.nodes.over_ranks.push_pull import summed_over
from headrace.train.nodes.recipe import NodeRecipe
from headrace.train.nodes.spending import Spending
from headrace.train.nodes.tuned import Tuned
from headrace.train.recipe import LossError, Progress, Step
from headrace.train.watching.clock import Clock

_GB = 1769 / 1024  # memory of a Lambda worker with one processor, in GB of 1,024 MB
_EXECUTORS: dict[str, type[PoolExecutor[Any]]] = {"threads": ThreadExecutor, "ray": RayExecutor, "lambda": LambdaExecutor}


class ElasticRecipe(NodeRecipe):
    """Full-graph training by tasks (`headrace.cluster.elastic`).

    A step is an epoch: every rank, a server, sums the gradients of its own rows, and the sums are added in the order of servers.
    """

    def __init__(self, data: Dataset, model: nn.Module, part: Part, setup: Setup) -> None:
        options: NodeOptions = setup.options
        _check(model, options)
        assert isinstance(model, GNN)
        super().__init__(data, model, options, setup.trace, **setup.shared)
        self.part, self.own_gradients = part, list(model.parameters())
        self._between: Exchange | None = None
        if setup.ranks.size > 1:
            self._between = Exchange(setup.ranks)
            setup.opened.push(closing(self._between.close))
        objects = _objects(options)
        executor = setup.opened.enter_context(_executor(options, objects))
        self.spending = Spending(options.budget, setup.ranks.size)
        self._log = _CallLog(setup.folder, part.number, setup.opened, self.spending)
        controller: Controller[Task] = setup.opened.enter_context(Controller(executor, log=self._log, batch=options.tasks_per_call))
        self.controller = controller
        self.neighborhood = Neighborhood(part, intervals=options.intervals, exchange=self._between)
        self.flow: Flow = options.flow  # type: ignore[assignment]
        assert part.x is not None
        self.server = Server(
            model,
            self.neighborhood,
            part.x.to(next(model.parameters()).dtype),
            self._own_labels(),
            self._new_store(),
            controller,
            draws=lambda epoch: _key(options.seed, epoch),
            exchange_sums=self.flow == "async",
            shelf=None if objects is None else Shelf(objects),
            fusion=options.fusion,
        )
        setup.opened.push(closing(self.server.close))
        if isinstance(executor, LambdaExecutor) and objects is None:
            check_calls(self.server, executor.payload_limit)
        self._executor, self._watcher = executor, setup.watcher
        self._memory = 0  # bytes, told before the first epoch
        self._tuned: Tuned | None = None
        if not options.workers and options.executor != "threads":
            self._tuned = self.server.on_result = Tuned(
                executor,
                controller,
                setup.watcher,
                self.spending,
                intervals=options.intervals,
                epoch=self.server.tasks_of_epoch,
                limit=_most_workers(options) if options.executor == "ray" else None,
            )
        self._validations = 0
        self._most_versions, self._most_bytes = self.store.most_versions, self.store.most_bytes
        self._done_until = 0  # the epoch before which flow async has trained, of those that the loop has not asked for yet
        own = part.owners.locate(self.train_nodes.long())[0] == part.number
        self._seeds = int(own.sum())
        classes = None if self.weight is None else loss_weight(self.labels[self.train_nodes], self.weight)
        self._whole_weight = float(len(self.train_nodes) if classes is None else classes)

    def _new_store(self) -> ParameterStore:
        """Of the model's weights. In flow async it steps by itself, with the optimizer; otherwise the loop makes the steps."""
        weights = {name: weight.detach() for name, weight in self.model.named_parameters()}
        intervals = self.neighborhood.own_intervals
        if self.flow != "async":
            return ParameterStore(weights, lambda weights, total: weights, intervals=intervals)
        copied = {name: weight.clone() for name, weight in weights.items()}
        every = self.options.update_every or None
        return ParameterStore(copied, self._stepped, intervals=intervals, versions="stash", update_every=every)

    def _stepped(self, weights: Mapping[str, Tensor], total: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The weights after a step by a sum of gradients. They are the model's at any time; a version is a copy of them."""
        assert self.update is not None
        for name, parameter in self.model.named_parameters():
            parameter.grad = total[name] / self._whole_weight
        self.update()
        self.update.optimizer.zero_grad(set_to_none=True)
        return {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

    def _own_labels(self) -> Labels:
        owner, row = self.part.owners.locate(self.train_nodes.long())
        own = owner == self.part.number
        return Labels(row[own], self.labels[self.train_nodes[own]], self.weight)

    def _take_whole(self) -> None:
        """Nothing here has the whole graph."""

    def num_batches(self, epoch: int) -> int:
        return self.ranks.size

    def batches(self, epoch: int, first: int) -> Iterator[Any]:
        return iter([epoch])

    def gradients(self, batch: Any, clock: Clock) -> Step:
        """The sums of an epoch: `batch` is its number."""
        epoch = int(batch)
        if epoch >= self._done_until:
            with clock("forward"):  # and backward: intervals are in both
                self._train(epoch)
        self._log.open()
        parts = self.server.totals.pop(epoch)
        rows = [parts[interval] for interval in sorted(parts)]
        loss, weight, right = torch.stack([torch.zeros(3, dtype=torch.float64), *rows]).sum(0).tolist()
        return Step(loss / weight if weight else 0.0, self._seeds, {self.measures[0].name: right}, weight=weight, ready=True)

    def _train(self, epoch: int) -> None:
        """An epoch; with flow async, all to the next validation, where intervals are together again."""
        if not self._memory:  # the optimizer and all else is there
            self._memory = server_memory(self.server, workers=self._executor.workers)
            self._watcher.note(f"server {self.part.number} will hold up to {format_size(self._memory)} of memory")
        if self.flow != "async":
            self.server.train(range(epoch, epoch + 1), flow=self.flow)
            return
        every = self.options.validate_every or self.options.epochs
        self._done_until = min((epoch // every + 1) * every, self.options.epochs)
        self._replace_store()
        self.server.train(range(epoch, self._done_until), flow="async", lead=self.options.lead)
        if self.exchange is not None:  # servers stepped by the same sums in other orders
            for parameter in self.model.parameters():
                every_one = self.exchange.all_gather("weights", parameter.detach().reshape(1, -1))
                parameter.data.copy_(every_one[0].view_as(parameter))
            self._replace_store()

    def _replace_store(self) -> None:
        self._count_versions()
        self.server.store = self._new_store()

    def _count_versions(self) -> None:
        self._most_versions = max(self._most_versions, self.store.most_versions)
        self._most_bytes = max(self._most_bytes, self.store.most_bytes)

    @property
    def store(self) -> ParameterStore:
        """The weights by version."""
        return self.server.store

    def validate(self, progress: Progress) -> dict[str, Any] | None:
        values = super().validate(progress)
        options, first = self.options, self.measures[0].name
        if self.flow == "async" and options.target and values and values[first] >= options.target - options.settle:
            self.flow = "pipe"
            self._replace_store()
        return values

    def state_dict(self) -> dict[str, Any]:
        """What flow async is ahead of the loop by, and whether it has settled."""
        ahead = {str(epoch): parts for epoch, parts in self.server.totals.items()}
        return {
            **super().state_dict(),
            "flow": self.flow,
            "done_until": self._done_until,
            "ahead": ahead,
            "spent": self.spending.dollars,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.spending.before = state.get("spent", 0.0)
        if self.flow == "async":
            self.flow, self._done_until = state.get("flow", self.flow), state.get("done_until", 0)
            ahead = state.get("ahead", {})  # of server 0: in those epochs figures are of its nodes alone
            self.server.totals = {int(epoch): {} if self.part.number else parts for epoch, parts in ahead.items()}
        self._replace_store()

    def must_stop(self) -> str | None:
        return self.spending.exceeded

    def close_step(self, weight: float) -> None:
        if self.flow == "async":
            return
        mine = self.store.take()
        assert mine is not None
        total = dict(zip(mine, summed_over("gradients", list(mine.values()), self.exchange), strict=True))
        for name, parameter in self.model.named_parameters():
            parameter.grad = total[name] / weight
        self.store.step(total)  # the optimizer changes its weights in place

    def step(self, batch: Any, clock: Clock) -> Step:
        assert self.update is not None
        done = self.gradients(batch, clock)
        if not torch.isfinite(torch.tensor(done.loss)):
            raise LossError(float(done.loss))
        assert done.weight is not None
        with clock("step"):
            self.close_step(float(done.weight))
            if self.flow != "async":  # which has made its steps
                self.update()
        return done

    def _predict(self, nodes: Tensor, progress: Progress) -> Tensor:
        self._validations += 1
        if self.flow == "async":  # whose store has copies, and the model may have its best weights again
            self._replace_store()
        own = self.server.validate(self._validations)
        if self.exchange is None:
            return own[self.part.owners.locate(nodes.long())[1]]
        return rows_of_all(own, nodes.long(), self.part.owners, self.exchange)

    def facts(self) -> dict[str, Any]:
        self._count_versions()
        counts, between = self.controller.counts, self.neighborhood
        facts = super().facts()
        facts["elastic"] = {
            "intervals": between.num_intervals,
            "ghosts": between.forward.num_src - between.num_own,
            "calls": counts.calls,
            "relaunched": counts.relaunched,
            "duplicates": counts.duplicates,
            "versions": self._most_versions,
            "version_bytes": self._most_bytes,
            "workers": [] if self._tuned is None else [asdict(change) for change in self._tuned.changes],
            "lead": self.server.most_lead,
            "age": self.server.most_age,
            "memory": {"estimate": self._memory, "peak": peak_memory()},
        }
        return facts

    def exchanges(self) -> list[Exchange]:
        return super().exchanges() + [e for e in (self._between,) if e is not None]

    @property
    def placed(self) -> str:
        """Where rows are, in words."""
        of = self.neighborhood
        return f"{self.ranks.size} servers with {of.num_intervals} intervals; tensor work by {self.options.executor}"


class _CallLog:
    """Writes a line for every call to a file of this server (`headrace cost` reads them)."""

    def __init__(self, folder: Path | None, server: int, opened: ExitStack, spending: Spending) -> None:
        self._spending = spending
        self._path = None if folder is None else folder / f"calls-{server}.jsonl"
        self._opened, self._began = opened, time()
        self._lock, self._waiting = Lock(), list[bytes]()
        self._file: IO[bytes] | None = None

    def open(self) -> None:
        """Write from now on, and what has waited. All servers have computed by then, so rank 0 has made the run's directory."""
        with self._lock:
            if self._path is not None and self._file is None:
                self._file = self._opened.enter_context(_whole_lines(self._path))
                self._file.writelines(self._waiting)
                self._waiting.clear()

    def __call__(self, record: CallRecord) -> None:
        self._spending.add(record, _GB)
        if self._path is None:
            return
        line = {
            "task": " ".join(map(str, record.keys)),
            "began": max(record.begin - self._began, 0.0),
            "ms": record.milliseconds,
            "gb": _GB if record.worker == "lambda" else 0.0,
            "kind": record.worker,
            "sent": record.bytes_in,
            "received": record.bytes_out,
            "relaunched": record.relaunched,
            "duplicate": record.duplicates > 0,
            "failed": bool(record.failed),
            "objects": record.puts + record.gets,
        }
        text = json.dumps(sealed(line)).encode() + b"\n"
        with self._lock:
            if self._file is None:
                self._waiting.append(text)
            else:
                self._file.write(text)


def _whole_lines(path: Path) -> IO[bytes]:
    """The file, to write on after its last whole line: a killed process may have left half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.read_bytes() if path.exists() else b""
    file = open(path, "r+b" if written else "wb")  # noqa: SIM115 - its user closes it
    file.truncate(written.rfind(b"\n") + 1)
    file.seek(0, 2)
    return file


def _objects(options: NodeOptions) -> Objects | None:
    """Where tasks find weights: in memory where workers are threads, and where the options say for others."""
    if options.executor == "threads":
        return MemoryObjects()
    return open_objects(options.objects) if options.objects else None


def _executor(options: NodeOptions, objects: Objects | None) -> PoolExecutor[Any]:
    usual = 2 if options.executor == "threads" else min(options.intervals, _most_workers(options))
    more = {"objects": objects} if options.executor == "lambda" else {}
    return _EXECUTORS[options.executor](options.workers or usual, **more)


def _most_workers(options: NodeOptions) -> int:
    """Those of Ray have a processor each; to begin with, Lambda's are at most 100."""
    return thread_count(None) if options.executor == "ray" else 100


def _key(seed: int, epoch: int) -> int:
    return int(_native.stream_key(seed, epoch, 0, _native.Purpose.step))


def _check(model: nn.Module, options: NodeOptions) -> None:
    if not isinstance(model, GNN):
        raise ValueError(f"flow {options.flow} sends layers to workers by name, and knows those of headrace.nn.GNN alone")
    refuse_batch_norms(model)
    if options.flow == "async" and model.config["conv"] in ("gat", "gatv2"):
        raise ValueError(
            f"flow async reads rows of other epochs, and the weights of {model.config['conv']}'s edges would be of neither: "
            "use flow pipe"
        )
    if torch.device(options.device).type != "cpu":
        raise ValueError(f"flow {options.flow} computes with processors: use device cpu, or train without flow")
