"""`TemporalRecipe`: link prediction on a stream of events, as the training loop sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from headrace.graph import EventSplits, EventStream
from headrace.pipeline import Pipeline, Stage, StageTimes, Trace
from headrace.ranks import Alone, Exchange, Ranks, on_first
from headrace.sample import EventNegatives
from headrace.temporal import (
    Asked,
    Copies,
    EventBatch,
    EventBatches,
    Events,
    PreparedBatches,
    Schedule,
    Turn,
    cut_events,
    parse_parallel,
)
from headrace.train.events.evaluate import Evaluator
from headrace.train.events.forward import Forward
from headrace.train.events.heads import make_head
from headrace.train.events.options import TemporalOptions
from headrace.train.recipe import Progress, Recipe, Step
from headrace.train.run import Run
from headrace.train.watching.clock import Clock

T = TypeVar("T")


@dataclass(eq=False)
class TurnBatch:
    """What a trainer does in an iteration: its turn (None where it idles), and where it begins a batch all j sets of it."""

    turn: Turn | None
    sweep: int = 0
    sets: list[EventBatch] | None = None  # on the device that trains
    read: Future[list[Tensor]] | None = None
    target: Tensor | None = None  # ids of the nodes that it writes, where memory is


class TemporalRecipe(Recipe):
    """Link prediction on a stream of events, as the training loop sees it.

    An epoch of the loop is a sweep of the schedule, a step is one of its iterations, and a batch is one trainer's turn in it: so
    trainers are lanes of one process or spread over ranks, and their gradients are summed in one order. Memory is read when a batch
    is ready, ahead of the trainer, and written when the new memory is known, before attention.

    saves: whether checkpoints are written, for which rank 0 collects what the others hold.
    """

    model: Forward

    def __init__(
        self,
        stream: EventStream,
        splits: EventSplits,
        model: Forward,
        options: TemporalOptions,
        trace: Trace | None = None,
        *,
        evaluates: bool = True,
        ranks: Ranks | None = None,
        exchange: Exchange | None = None,
        saves: bool = True,
    ) -> None:
        self.ranks, self.saves = ranks or Alone(), saves
        self.stream, self.splits, self.options, self.trace = stream, splits, options, trace
        self.head = make_head(stream, options, splits.train)
        self.measures = self.head.measures
        self.device = torch.device(options.device)
        self.model = model.to(self.device)
        cuts = cut_events(stream, 0, splits.train, options.batch_size, options.cut)
        i, j, k = parse_parallel(options.parallel)
        self.schedule = Schedule(i, j, k, len(cuts) - 1)
        negatives = EventNegatives(stream, amount=options.negatives, seed=options.seed)
        self.make = EventBatches(
            stream, cuts, negatives, neighbors=self._hops(), in_batch=options.in_batch, group=i, threads=options.threads
        )
        self.has_memory = model.tgn.memory_width > 0
        self.copies = self._copies(exchange)
        self.memories: Mapping[int, Any] = self.copies.memories
        self.prepared = None if options.prepared is None else self._prepared(Path(options.prepared))
        self.edge_x = None if stream.edge_x is None else stream.edge_x.float().to(self.device)
        first = self.ranks.rank == 0
        self.evaluates = evaluates
        self.evaluator = None
        if evaluates and first:
            self.evaluator = Evaluator(stream, splits, options, self._hops(), self.head, group=i)
        self._held: dict[int, tuple[list[EventBatch], list[Tensor] | None]] = {}
        self._rows_held: dict[int, list[Tensor]] = {}
        self._collected: tuple[list[Tensor], dict[tuple[int, int], Tensor]] | None = None
        self._after: Tensor | None = None  # the memory after training, of the weights that are in place
        self._pipeline: Pipeline | None = None

    def _copies(self, exchange: Exchange | None) -> Any:
        tgn = self.model.tgn
        return Copies(
            self.schedule,
            self.stream.num_nodes,
            memory=tgn.memory_width,
            mail=tgn.mail_width,
            device=self.device if self.ranks.size == 1 else "cpu",  # of ranks, those of a machine share its memory
            ranks=self.ranks,
            exchange=exchange,
        )

    def _hops(self) -> list[int]:
        return [self.options.neighbors] * max(self.model.tgn.hops, 1)

    def _prepared(self, folder: Path) -> PreparedBatches:
        # All that the bits of a batch depend on beside the data.
        options, names = self.options, ("seed", "batch_size", "cut", "in_batch", "negatives", "parallel")
        facts = {name: getattr(options, name) for name in names}
        facts |= {"neighbors": self._hops(), "train_events": self.splits.train}
        facts |= {"has_memory": self.has_memory, "draws": self.head.draws}
        return PreparedBatches(self.make, folder / f"seed-{options.seed}", facts)

    def _prepare(self, sweep: int) -> None:
        """Write the batches of a sweep that are not written yet: rank 0 does, and a rank to which that directory is another."""
        if self.prepared is None:
            return
        self.prepared.forget()
        on_first(self.ranks, lambda alive: self._write_batches(sweep, alive))
        self._write_batches(sweep, lambda: None)

    def _write_batches(self, sweep: int, alive: Callable[[], None]) -> None:
        assert self.prepared is not None
        turns = [
            turn for n in range(self.schedule.iterations) for turn in self.schedule.turns(n) if turn is not None and turn.reads
        ]
        for copy in range(self.schedule.k):
            asked = [(turn.batch, self._since(sweep, turn)) for turn in turns if turn.copy == copy]
            for n in range(self.schedule.j):
                alive()
                epoch = (sweep * self.schedule.k + copy) * self.schedule.j + n
                self.prepared.prepare(epoch, asked, memory=self.has_memory, negatives=self.head.draws)

    def num_batches(self, epoch: int) -> int:
        return self.schedule.trainers * self.schedule.iterations

    def owners(self, epoch: int, first: int, count: int) -> Sequence[int] | None:
        return [self.copies.owners[cell % self.schedule.trainers] for cell in range(first, first + count)]

    def _first_sweep(self, sweep: int, turn: Turn) -> bool:
        """Whether a copy has not yet come to the stream's beginning."""
        return sweep == 0 and self.schedule.start(turn.copy) + turn.position < self.schedule.groups

    def _since(self, sweep: int, turn: Turn) -> int:
        """The first event that a copy's memory has seen."""
        if not self._first_sweep(sweep, turn):
            return 0
        return int(self.make.starts[self.schedule.start(turn.copy)])

    def _asked(self, sweep: int, turn: Turn) -> list[Asked]:
        """A turn's batch with each of its sets of negatives."""
        j, k = self.schedule.j, self.schedule.k
        epoch = (sweep * k + turn.copy) * j
        since = self._since(sweep, turn)
        return [Asked(turn.batch, epoch + n, since) for n in range(j)]

    def _made(self, asked: Sequence[Asked]) -> list[EventBatch]:
        make = self.make if self.prepared is None else self.prepared
        return make.make_all(asked, memory=self.has_memory, negatives=self.head.draws)

    def _sets(self, sweep: int, turn: Turn) -> list[EventBatch]:
        return self._made(self._asked(sweep, turn))

    def batches(self, epoch: int, first: int) -> Iterator[TurnBatch]:
        trainers = self.schedule.trainers
        iteration, self._collected = first // trainers, None
        self._prepare(epoch)
        self.copies.begin(lambda copy: self._base(epoch) + self.schedule.first_ticket(copy, iteration))
        cells = [(n, trainer) for n in range(iteration, self.schedule.iterations) for trainer in self.copies.trainers]
        sets_of = self._sets_ahead(epoch, [self.schedule.turn(*cell) for cell in cells])

        def prepare(cell: tuple[int, int]) -> TurnBatch:
            turn = self.schedule.turn(*cell)
            if turn is None or not turn.reads:
                return TurnBatch(turn, epoch)
            made = next(sets_of)
            sets = [batch.to(self.device) for batch in made]
            if not self.has_memory:
                return TurnBatch(turn, epoch, sets)
            memory = self.memories[turn.copy]
            near = made if memory.rows.device.type == "cpu" else sets  # ranks of a machine share memory of the host
            ticket, reset = self._base(epoch) + turn.ticket, turn.resets and turn.batch == 0
            read = memory.read(ticket, turn.batch, [batch.nodes for batch in near], reset=reset)
            return TurnBatch(turn, epoch, sets, read, near[0].nodes[near[0].written])

        self._take_up(epoch, iteration)
        self._pipeline = Pipeline(cells, [Stage("prepare", prepare)], staleness=self.options.staleness, trace=self.trace)
        return iter(self._pipeline)

    def _sets_ahead(self, sweep: int, turns: Sequence[Turn | None]) -> Iterator[list[EventBatch]]:
        """The sets of each turn that reads, as many turns made in one pass as may be ahead."""
        reading = [turn for turn in turns if turn is not None and turn.reads]
        j, many = self.schedule.j, max(self.options.staleness, 1)
        for begin in range(0, len(reading), many):
            made = self._made([asked for turn in reading[begin : begin + many] for asked in self._asked(sweep, turn)])
            for first in range(0, len(made), j):
                yield made[first : first + j]

    def _take_up(self, sweep: int, iteration: int) -> None:
        """Make the batches again that trainers stay on, with the rows that they were read with."""
        self._held.clear()
        for trainer in self.copies.trainers:
            turn = self.schedule.turn(iteration, trainer)
            if turn is not None and not turn.reads:
                rows = self._rows_held.get(turn.trainer)
                self._held[turn.trainer] = [batch.to(self.device) for batch in self._sets(sweep, turn)], rows

    def _base(self, sweep: int) -> int:
        return sweep * 2 * self.schedule.batches

    def loss(self, batch: TurnBatch, clock: Clock) -> Step:
        turn = batch.turn
        if turn is None:
            return Step(0.0, 0, nodes=(0, 0), edges=(0,), ready=True)
        if batch.sets is not None:
            with clock("memory"):
                rows = None if batch.read is None else batch.read.result()
            self._held[turn.trainer] = batch.sets, rows
        sets, rows = self._held[turn.trainer]
        if turn.stay + 1 == self.schedule.j:
            self._held.pop(turn.trainer)
        events = sets[turn.stay]
        with clock("forward"):
            held = None if rows is None else rows[turn.stay].to(self.device, non_blocking=self.device.type != "cpu")

            def write(letters: Tensor) -> None:
                assert batch.target is not None
                ticket = self._base(batch.sweep) + turn.ticket + turn.group
                self.memories[turn.copy].write(ticket, turn.batch, batch.target, letters)

            loss = self.losses(held, events, write if turn.writes else None).mean()
        return Step(loss, events.size, nodes=(len(events.age), len(events.nodes)), edges=(len(events.dt),))

    def losses(self, rows: Tensor | None, events: Events, write: Callable[[Tensor], None] | None) -> Tensor:
        """The loss of each event, from rows of memory and mail; `write` is given what they become as soon as that is known."""
        model = self.model
        memory = model.update(rows, events, self.edge_x)
        late = model.tgn.parts.mail_embeds
        if memory is not None and write is not None and not late:
            write(model.letters(memory, events, None))
        z = model.embed(memory, events, self.edge_x)
        if memory is not None and write is not None and late:
            write(model.letters(memory, events, z))
        return self.head.losses(model, z, events)

    def step(self, batch: TurnBatch, clock: Clock) -> Step:
        self.model.train()
        return super().step(batch, clock)

    def gradients(self, batch: TurnBatch, clock: Clock) -> Step:
        self.model.train()
        return super().gradients(batch, clock)

    def stages(self) -> list[StageTimes]:
        return [] if self._pipeline is None else self._pipeline.times

    def assemble(self) -> None:
        if self.saves and self.ranks.size > 1:
            self._collected = self.copies.collected(self._held_rows())

    def _held_rows(self) -> dict[tuple[int, int], Tensor]:
        """By trainer and stay, what trainers of this rank have read for batches that they stay on."""
        held = {trainer: rows or [] for trainer, (_, rows) in self._held.items()}
        return {(trainer, stay): rows for trainer, of_stays in held.items() for stay, rows in enumerate(of_stays)}

    def state_dict(self) -> dict[str, Any]:
        collected = self.copies.collected(self._held_rows()) if self.ranks.size == 1 else self._collected
        assert collected is not None  # the loop calls assemble before it saves
        rows, held = collected
        trainers = sorted({trainer for trainer, _ in held})
        by_trainer = {trainer: [held[trainer, stay].cpu() for stay in range(self.schedule.j)] for trainer in trainers}
        return {"memory": [part.cpu() for part in rows], "held": by_trainer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.copies.load(state["memory"])
        self._rows_held = state["held"]
        held = {(trainer, stay): rows for trainer, of in self._rows_held.items() for stay, rows in enumerate(of)}
        self._collected = state["memory"], held

    def validate(self, progress: Progress) -> dict[str, Any] | None:
        return self._evaluated(lambda evaluator, tell: evaluator.split(self.model, "val", tell, self._ended()), progress)

    def test(self, progress: Progress) -> dict[str, dict[str, Any] | None]:
        def work(evaluator: Evaluator, tell: Progress) -> dict[str, dict[str, Any] | None]:
            memory = self._ended() if self._after is None else self._after
            return {"train": None, **evaluator.splits(self.model, ("val", "test"), tell, memory)}

        return self._evaluated(work, progress) or {}

    def _evaluated(self, work: Callable[[Evaluator, Progress], T], progress: Progress) -> T | None:
        """What comes of an evaluation by rank 0, on all ranks. It may read copy 0 of the memory, which is on rank 0's machine."""
        if not self.evaluates:
            return None
        self.copies.settle()

        def alone(alive: Callable[[], None]) -> T:
            def tell(done: int, total: int) -> None:
                alive()
                progress(done, total)

            assert self.evaluator is not None
            return work(self.evaluator, tell)

        return on_first(self.ranks, alone)

    def _ended(self) -> Tensor | None:
        """The memory of the copy that ends a sweep where training does."""
        if self.has_memory:
            self._after = self.copies.rows[0].clone()
        return self._after

    def best_state(self) -> dict[str, Any]:
        return {**super().best_state(), "node_memory": self._after}

    def swap_best(self, state: dict[str, Any]) -> None:
        memory = state.pop("node_memory")
        super().swap_best(state)
        state["node_memory"], self._after = self._after, memory

    def finish(self, run: Run | None) -> dict[str, Any]:
        if run is not None:
            after = None if self._after is None else self._after.cpu()
            run.save_checkpoint({"model": self.model.state_dict(), "node_memory": after}, "best")
        return {}

    def facts(self) -> dict[str, Any]:
        rows = sum(rows.nbytes for rows in self.copies.rows.values())  # of this machine
        return {"memory": {"data": self.stream.graph().nbytes, "node_memory": rows}, "cache": None}

    def close(self) -> None:
        self.copies.close()
