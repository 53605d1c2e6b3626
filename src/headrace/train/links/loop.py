"""`LinkTrainer`: epochs of batches in flight, validation, checkpoints. What is in flight lands before anything is saved."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

from torch import Tensor

from headrace._memory import process_memory
from headrace.pipeline import Pipeline, StageTimes, Trace
from headrace.sample import KnownEdges
from headrace.store import Partitioned, TrainedArray, kept_memory
from headrace.train.inference.encoded import ENCODED, EncodedRows, encode_all, save_encoded
from headrace.train.inference.ranking import Ranking, ReadRows, rank
from headrace.train.interrupt import Interrupt, interruptible
from headrace.train.links.batches import EdgeBatches, EpochPlan
from headrace.train.links.data import LinkData
from headrace.train.links.disk import disk_facts, disk_use_added
from headrace.train.links.edges import BucketedEdges
from headrace.train.links.flight import Flight
from headrace.train.links.flow import FlowBatch, LinkFlow
from headrace.train.links.memory import ranking_memory
from headrace.train.links.options import LinkOptions
from headrace.train.links.state import SavedRows
from headrace.train.optimize import learning_rate
from headrace.train.run import Run
from headrace.train.watch import StepEvent, Watcher

_SCORES = {"cpu": 1 << 36, "cuda": 1 << 42}  # that a ranking of edges takes, unless it was said how many edges
_LEAST = 1000  # edges, however many scores that takes
_TELL_SECONDS = 0.25  # from one look at the stages to the next


@dataclass
class LinkState:
    """Where a run stands. With rows, relations and their states it is all that the rest of the run depends on."""

    epoch: int = 0
    batch: int = 0  # batches of the epoch that are done
    step: int = 0
    seconds: float = 0.0
    training: float = 0.0  # seconds of epochs that are done, without validation and checkpoints
    last: float | None = None  # validation MRR
    best: float = -1.0
    best_epoch: int = -1
    stale: int = 0  # validations since the best
    stopped: bool = False
    sums: dict[str, float] = field(default_factory=dict)  # of the epoch so far
    disk: dict[str, float] = field(default_factory=dict)  # what the disk did in the epoch so far
    all_disk: dict[str, float] = field(default_factory=dict)  # and in the epochs before


class LinkTrainer:
    """Trains to the end, from the beginning or from a checkpoint: with one batch in flight the same bits in either case."""

    def __init__(
        self,
        data: LinkData,
        flow: LinkFlow,
        saved: SavedRows,
        run: Run | None,
        watcher: Watcher,
        *,
        file: BucketedEdges | None = None,
    ) -> None:
        """`file` is what the flow's edges are in, where they are on disk."""
        self.data, self.flow, self.saved, self.run, self.watcher = data, flow, saved, run, watcher
        self.options: LinkOptions = flow.options
        self.deal = EdgeBatches(flow.triples, data.num_nodes, self.options, file=file)
        self.state = LinkState()
        self.trace = Trace() if run is not None else None
        self.ended: dict[str, Any] | None = None
        self.peak = 0  # batches that were in flight at a time
        self._known: KnownEdges | None = None
        self._encoded: TrainedArray | EncodedRows | None = None
        self._times: list[StageTimes] = []
        self._partly: set[str] = set()  # of which edges it was said that not all are ranked
        self._begin = self._saved_at = perf_counter()
        self._told = self._before = 0.0

    def fit(self, header: dict[str, Any]) -> dict[str, Any]:
        """Train; returns the last line of the log. Raises KeyboardInterrupt, with a checkpoint written, if asked to stop."""
        if self.ended is not None:
            return self.ended
        state, options = self.state, self.options
        self._begin = self._saved_at = perf_counter()
        self._before = state.seconds
        batches = self.deal.plan(state.epoch).num_batches if state.epoch < options.epochs else 0
        self.watcher.begin(header, epochs=options.epochs, batches=batches, epoch=state.epoch, batch=state.batch)
        with interruptible() as interrupt, kept_memory():
            try:
                while state.epoch < options.epochs and not state.stopped:
                    self.epoch(interrupt)
                    if interrupt.asked:
                        self._stop()
                return self._finish(interrupt)
            finally:
                self._close_run()

    def _stop(self) -> None:
        self.save()
        raise KeyboardInterrupt

    def _close_run(self) -> None:
        if self.run is None:
            return
        try:
            self.run.close()
            if self.trace is not None and self.trace.spans:
                self.run.save_trace(self.trace)
        except OSError as error:
            self.watcher.note(f"the timeline could not be written: {error.strerror or error}")

    def epoch(self, interrupt: Interrupt) -> None:
        """One epoch, or what is left of it; if asked to stop, the batches in flight land and the rest is for another call."""
        state, options, begin = self.state, self.options, perf_counter()
        self._encoded = None
        if not state.sums:
            state.sums = {"loss": 0.0, "edges": 0.0, "bytes": 0.0, "seconds": 0.0}
        plan = self.deal.plan(state.epoch)
        flight = Flight(self, plan, interrupt)
        # With one batch in flight there is nothing to overlap, so no threads either: the pipeline's own zero.
        pipeline = Pipeline(
            flight, self.flow.stages(), staleness=options.staleness if options.staleness > 1 else 0, trace=self.trace
        )
        self._times = pipeline.times
        while state.batch < plan.num_batches and not interrupt.asked:
            flight.due = self._saved_at + options.checkpoint_seconds if self.run is not None else math.inf
            with disk_use_added(self.flow.rows, state.disk):
                self._fly(pipeline, flight)
            state.sums["seconds"] += perf_counter() - begin
            state.seconds = self._before + perf_counter() - self._begin
            if perf_counter() >= flight.due and state.batch < plan.num_batches:
                self.save()
            begin = perf_counter()
        self.peak = max(self.peak, pipeline.peak, 1)
        if state.batch == plan.num_batches:
            self._end_epoch(plan, interrupt)

    @property
    def times(self) -> list[StageTimes]:
        """Where the stages of the last epoch spent their time."""
        return list(self._times)

    def _fly(self, pipeline: Pipeline, flight: Flight) -> None:
        """Batches from where the epoch stands to its end, a wish to stop or the next checkpoint; then none is in flight."""
        with ExitStack() as flight.opened:
            previous: FlowBatch | None = None
            for batch in pipeline:
                if previous is not None:  # on a GPU, the next one is launched before this one's loss is waited for
                    self._count(previous)
                previous = batch
            if previous is not None:
                self._count(previous)

    def _count(self, batch: FlowBatch) -> None:
        assert batch.loss is not None
        assert batch.relation is not None
        state, loss, edges = self.state, float(batch.loss), len(batch.relation)
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss is {loss} at epoch {state.epoch}, batch {state.batch}: "
                f"lower lr ({batch.lr:g}) or init ({self.options.init:g})"
            )
        state.batch, state.step = state.batch + 1, state.step + 1
        sums = state.sums
        sums["loss"] += loss * edges
        sums["edges"] += edges
        sums["bytes"] += batch.bytes
        seconds = self._before + perf_counter() - self._begin
        if self.run is not None and state.step % self.options.log_every == 0:
            self.run.log("step", epoch=state.epoch, batch=state.batch, step=state.step, seconds=seconds, loss=loss, seeds=edges)
        nodes = 0 if batch.ids is None else len(batch.ids)
        event = StepEvent(state.epoch, state.batch, state.step, seconds, loss, None, edges, nodes, 0, batch.bytes)
        self.watcher.step(event, {})
        if perf_counter() - self._told >= _TELL_SECONDS:
            self._told = perf_counter()
            self.watcher.stages([asdict(times) for times in self._times])

    def _end_epoch(self, plan: EpochPlan, interrupt: Interrupt) -> None:
        state, options, sums = self.state, self.options, self.state.sums
        last = state.epoch + 1 == options.epochs
        found, begin = None, perf_counter()
        if len(self.data.valid) and (last or (options.eval_every and (state.epoch + 1) % options.eval_every == 0)):
            found = self._ranked("valid", self._to_rank("eval", self.data.valid, options.eval_edges), interrupt)[0]
            state.last = found.best.mrr
            if found.best.mrr > state.best:
                state.best, state.best_epoch, state.stale = found.best.mrr, state.epoch, 0
                if not last:
                    self.saved.keep()
                else:
                    self.saved.forget()
            else:
                state.stale += 1
                state.stopped = bool(options.patience) and state.stale >= options.patience
        evaluating = perf_counter() - begin
        state.seconds = self._before + perf_counter() - self._begin
        line = {
            "epoch": state.epoch,
            "step": state.step,
            "seconds": state.seconds,
            "epoch_seconds": sums["seconds"],
            "eval_seconds": evaluating,
            "loss": sums["loss"] / max(sums["edges"], 1),
            "val_mrr": None if found is None else found.best.mrr,
            "valid": None if found is None else found.plain(),
            "lr": learning_rate(options, state.step - 1, plan.num_batches),
            "throughput": {name: sums[name] / max(sums["seconds"], 1e-9) for name in ("edges", "bytes")},
            "bytes": int(sums["bytes"]),
            "in_flight": self.peak,
            "stages": [asdict(times) for times in self._times],
            "memory": process_memory(),
            **disk_facts(self.flow.rows, state.disk, seconds=sums["seconds"], edge_bytes=self.flow.triples.nbytes),
        }
        state.all_disk = {name: state.all_disk.get(name, 0) + spent for name, spent in state.disk.items()}
        state.training += sums["seconds"]
        state.epoch, state.batch, state.sums, state.disk = state.epoch + 1, 0, {}, {}
        if self.run is not None:
            self.run.log("epoch", **line)
        self.watcher.epoch(line)
        if perf_counter() - self._saved_at >= options.checkpoint_seconds and not interrupt.asked:
            self.save()

    def _to_rank(self, name: str, edges: Tensor, asked: int) -> Tensor:  # [e, 3] -> [at most e, 3]
        """As many edges as were asked for; if that was left open, no more than can be ranked in a few minutes, and that is said."""
        if asked >= 0:
            return edges[: asked or None]
        most = max(_SCORES[self.flow.device.type] // (2 * self.data.num_nodes), _LEAST)
        if len(edges) <= most or self.options.ranking == "sampled":
            return edges
        some = edges[:: -(-len(edges) // most)]
        if name not in self._partly:
            self._partly.add(name)
            what = "validation" if name == "eval" else "test"
            self.watcher.note(
                f"{len(some):,} of {len(edges):,} {what} edges are ranked, evenly spaced, among {self.data.num_nodes:,} nodes: "
                f"--{name}-edges 0 ranks all, --ranking sampled among fewer nodes"
            )
        return some

    def _ranked(self, name: str, triples: Tensor, interrupt: Interrupt) -> list[Ranking]:
        options = self.options

        def tell(done: int, total: int) -> None:
            if interrupt.asked:
                self._stop()
            self.watcher.validating(done, total)

        ways: dict[str, list[int | None]] = {"full": [None], "sampled": [options.candidates], "both": [None, options.candidates]}
        wanted = ways[options.ranking]
        rows = self.scored(interrupt)
        return [
            rank(
                self.flow.decoder,
                rows,
                triples,
                known=self._filter(),
                sampled=sampled,
                seed=options.seed,
                device=self.flow.device,
                memory=ranking_memory(options),
                progress=tell,
            )
            for sampled in wanted[: None if name == "test" else 1]
        ]

    def scored(self, interrupt: Interrupt | None = None) -> ReadRows:
        """What the decoder scores: the rows, or what an encoder makes of them. Nothing may be in flight."""
        flow = self.flow
        if flow.encoder is None:
            return flow.rows

        def tell(done: int, total: int) -> None:
            if interrupt is not None and interrupt.asked:
                self._stop()

        if self._encoded is None:
            on_disk = isinstance(flow.rows, Partitioned)
            place = self.run.path / ENCODED if on_disk and self.run is not None else None
            self._encoded = encode_all(flow.encoder.model, flow.rows, flow.triples, self.deal, place=place, progress=tell)
        return self._encoded

    def _filter(self) -> KnownEdges | None:
        """All true edges, found when they are first needed: on a large graph that takes a while."""
        if self._known is None and not self.options.raw:
            self._known = self.data.known(device=self.flow.device)
        return self._known

    def _finish(self, interrupt: Interrupt) -> dict[str, Any]:
        state = self.state
        if self.saved.best is not None:
            self.saved.restore_best()
            self._encoded = None
        test: dict[str, Any] = {}
        if len(self.data.test):
            for found in self._ranked("test", self._to_rank("test", self.data.test, self.options.test_edges), interrupt):
                test = {**found.plain(), **test}  # where both were asked for, mrr is that of the full ranking
        encoded = self.scored(interrupt)
        if self.flow.encoder is not None and self.run is not None and isinstance(encoded, TrainedArray):
            save_encoded(encoded, self.run.path / ENCODED)
        end = {
            "reason": "early stop" if state.stopped else "finished",
            "seconds": self._before + perf_counter() - self._begin,
            "best_epoch": state.best_epoch if self.saved.keeps_best and state.best_epoch >= 0 else state.epoch - 1,
            "val_mrr": state.best if self.saved.keeps_best and state.best_epoch >= 0 else state.last,
            "test": test,
            "memory": process_memory(),
            **disk_facts(self.flow.rows, state.all_disk, seconds=state.training, edge_bytes=state.epoch * self.flow.triples.nbytes),
        }
        if self.run is not None:
            self.run.log("end", **end)
            self.save(end)
        self.watcher.end(end)
        self.ended = end
        return end

    def save(self, end: dict[str, Any] | None = None) -> None:
        """Write a checkpoint of everything the rest of the run depends on. Nothing may be in flight."""
        if self.run is None:
            return
        self.saved.save(self.run, {"state": asdict(self.state), "relation_state": self.flow.relation_state.cpu(), "end": end})
        self._saved_at = perf_counter()

    def restore(self) -> None:
        """Go on from the run's last checkpoint, or from the beginning where there is none."""
        if self.run is None:
            raise ValueError("there is no run to resume: it has no directory")
        found = self.saved.load(self.run)
        if found is None:
            self.run.cut_log(0)
            return
        self.state, self.ended = LinkState(**found["state"]), found["end"]
        self.flow.relation_state.copy_(found["relation_state"])
        self.run.cut_log(found["log_position"])
