"""`LinkRecipe`: link prediction, as the training loop sees it.

A batch is trained inside the pipeline, stage by stage (`LinkFlow`), and others may be in flight behind it. What the loop gets are
batches whose updates have been made; `land` lets those in flight end before anything is saved.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from headrace._memory import process_memory
from headrace.pipeline import Pipeline, StageTimes, Trace
from headrace.sample import KnownEdges
from headrace.store import TrainedArray
from headrace.train.inference.encoded import ENCODED, WrittenRows, encode_all, save_encoded
from headrace.train.inference.pairs import tell_apart
from headrace.train.inference.ranking import ReadRows, rank
from headrace.train.links.batches import EdgeBatches, EpochPlan
from headrace.train.links.data import LinkData
from headrace.train.links.edges import BucketedEdges
from headrace.train.links.flow import FlowBatch, LinkFlow
from headrace.train.links.memory import ranking_memory
from headrace.train.links.options import LinkOptions
from headrace.train.measure import Measure
from headrace.train.options import LoopOptions
from headrace.train.recipe import Progress, Recipe, Step, swap
from headrace.train.run import Run
from headrace.train.steps.optimize import learning_rate
from headrace.train.watching.clock import Clock
from headrace.train.watching.watch import Watcher

_SCORES = {"cpu": 1 << 36, "cuda": 1 << 42}  # that a ranking of edges takes, unless it was said how many edges
_LEAST = 1000  # edges, however many scores that takes


class LinkRecipe(Recipe):
    """Trains rows in memory, relations, and an encoder's weights. With staleness 0 one batch after the other: exact."""

    measures: tuple[Measure, ...] = (Measure("mrr"),)

    def __init__(
        self,
        data: LinkData,
        flow: LinkFlow,
        *,
        watcher: Watcher | None = None,
        trace: Trace | None = None,
        folder: Path | None = None,
        file: BucketedEdges | None = None,
    ) -> None:
        """`file` is what the flow's edges are in, where they are on disk; `folder` is the run's directory."""
        self.data, self.flow, self.watcher, self.trace, self.folder = data, flow, watcher or Watcher(), trace, folder
        self.options: LinkOptions = flow.options
        self.deal = EdgeBatches(flow.triples, data.num_nodes, self.options, file=file)
        parts: dict[str, nn.Module] = {"decoder": flow.decoder}
        if flow.encoder is not None:
            parts["encoder"] = flow.encoder.model
        self.model = nn.ModuleDict(parts)
        if not data.labeled:  # as papers on plain graphs say it
            self.measures = (*self.measures, Measure("auc"), Measure("ap"))
        self.done = 0  # batches of all epochs
        self.peak = 0  # batches that were in flight at a time
        self._plan: tuple[int, EpochPlan] | None = None
        self._flight: tuple[int, Pipeline] | None = None  # of an epoch
        self._first = 0
        self._landing = self._landed = False  # whether batches are to land, and whether some were left for another flight
        self._timed: list[float] = []
        self._known: KnownEdges | None = None
        self._encoded: TrainedArray | WrittenRows | None = None
        self._partly: set[str] = set()  # of which edges it was said that not all are ranked

    def make_update(self, options: LoopOptions) -> None:
        """Rows, relations and an encoder are updated by the stages, each by an optimizer of its own."""
        return

    def num_batches(self, epoch: int) -> int:
        return self.plan(epoch).num_batches

    def plan(self, epoch: int) -> EpochPlan:
        """Which edges an epoch trains in which batch."""
        if self._plan is None or self._plan[0] != epoch:
            self._plan = epoch, self.deal.plan(epoch)
        return self._plan[1]

    def batches(self, epoch: int, first: int) -> Iterator[FlowBatch]:
        """Batches that have been trained. The next ones are in flight, at most `staleness` of them."""
        self._encoded, self._first, self._landing, self._landed = None, first, False, False
        if self._flight is None or self._flight[0] != epoch:
            ahead = self.options.in_flight if self.options.staleness else 0  # 0: no threads, for there is nothing to overlap
            self._flight = epoch, Pipeline(_Source(self, epoch), self.flow.stages(), staleness=ahead, trace=self.trace)
            self._timed = [0.0] * len(self._flight[1].times)
        pipeline = self._flight[1]
        yield from pipeline
        self.peak = max(self.peak, pipeline.peak, 1)

    def source(self, epoch: int) -> Iterator[FlowBatch]:
        """Batches on their way into the pipeline, from where the epoch stands to its end or until they are to land."""
        plan, done = self.plan(epoch), self.done
        for edges in plan.batches(self._first):
            if self._landing:
                self._landed = True
                return
            yield FlowBatch(edges, epoch, learning_rate(self.options, done, plan.num_batches))
            done += 1

    def step(self, batch: FlowBatch, clock: Clock) -> Step:
        assert batch.loss is not None
        assert batch.relation is not None
        self.done += 1
        if not self.options.staleness:  # the stages worked in this thread, while it waited for them
            for number, times in enumerate(self.stages()[:-1]):
                clock.move(times.busy - self._timed[number], of="wait", to=times.name)
                self._timed[number] = times.busy
        nodes = () if batch.ids is None else (len(batch.ids),)
        return Step(batch.loss, len(batch.relation), nodes=nodes, bytes=batch.bytes)

    def land(self) -> bool:
        self._landing = True
        return True

    def validate(self, progress: Progress) -> dict[str, Any] | None:
        if not len(self.data.val):
            return None
        edges = self._to_rank("val", self.data.val, self.options.val_edges)
        return self._ranked(edges, self._ways()[:1], progress)

    def test(self, progress: Progress) -> dict[str, dict[str, Any] | None]:
        if not len(self.data.test):
            return {"test": None}
        return {"test": self._ranked(self._to_rank("test", self.data.test, self.options.test_edges), self._ways(), progress)}

    def scored(self, progress: Progress | None = None) -> ReadRows:
        """What the decoder scores: the rows, or what an encoder makes of them. Nothing may be in flight."""
        flow = self.flow
        if flow.encoder is None:
            return flow.rows
        if self._encoded is None:
            self._encoded = encode_all(
                flow.encoder.model, flow.rows, flow.triples, self.deal, place=self._encoded_file(), progress=progress
            )
        return self._encoded

    def _encoded_file(self) -> Path | None:
        """Where encoded rows are written as they are made; None to keep them in memory."""
        return None

    def _ways(self) -> list[int | None]:
        """Among how many sampled nodes true ends are ranked; None for all nodes."""
        sampled = min(self.options.candidates, self.data.num_nodes)
        ways: dict[str, list[int | None]] = {"full": [None], "sampled": [sampled], "both": [None, sampled]}
        return ways[self.options.ranking]

    def _ranked(self, edges: Tensor, ways: list[int | None], progress: Progress) -> dict[str, Any]:
        """How these edges rank, in each of the ways; where both were asked for, `mrr` is that of the full ranking."""
        options, rows = self.options, self.scored(progress)
        rankings = [
            rank(
                self.flow.decoder,
                rows,
                edges,
                known=self._true_edges(),
                loops=self.data.labeled,
                sampled=sampled,
                seed=options.seed,
                device=self.flow.device,
                memory=ranking_memory(options),
                progress=progress,
            )
            for sampled in ways
        ]
        if lost := rankings[0].not_finite:
            raise FloatingPointError(
                f"{lost:,} of {2 * rankings[0].edges:,} answers have scores that are not finite, so they have no rank: "
                f"lower lr ({options.lr:g}) or init ({options.init:g})"
            )
        scores: dict[str, Any] = {}
        for ranking in rankings:
            scores = {**ranking.plain(), **scores}
        if not self.data.labeled:
            known, device = self._true_edges(), self.flow.device
            scores |= tell_apart(self.flow.decoder, rows, edges, known=known, seed=options.seed, device=device)
        return scores

    def _to_rank(self, split: str, edges: Tensor, asked: int) -> Tensor:  # [e, 3] -> [at most e, 3]
        """As many edges as were asked for; if that was left open, no more than can be ranked in a few minutes, and that is said."""
        if asked >= 0:
            return edges[: asked or None]
        most = max(_SCORES[self.flow.device.type] // (2 * self.data.num_nodes), _LEAST)
        if len(edges) <= most or self.options.ranking == "sampled":
            return edges
        some = edges[:: -(-len(edges) // most)]
        if split not in self._partly:
            self._partly.add(split)
            name = "validation" if split == "val" else split
            self.watcher.note(
                f"{len(some):,} of {len(edges):,} {name} edges are ranked, evenly spaced, among {self.data.num_nodes:,} nodes: "
                f"--{split}-edges 0 ranks all, --ranking sampled among fewer nodes"
            )
        return some

    def _true_edges(self) -> KnownEdges | None:
        """All true edges, collected when they are first needed: on a large graph that takes a while."""
        if self._known is None and not self.options.raw:
            self._known = self.data.known(device=self.flow.device)
        return self._known

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        yield from self.model.named_parameters()
        if isinstance(self.flow.rows, TrainedArray):
            yield "rows", self.flow.rows.rows

    def best_state(self) -> dict[str, Any]:
        assert isinstance(self.flow.rows, TrainedArray)
        return {"rows": self.flow.rows.rows.clone(), "model": copy.deepcopy(self.model.state_dict())}

    def swap_best(self, state: dict[str, Any]) -> None:
        assert isinstance(self.flow.rows, TrainedArray)
        swap({"rows": self.flow.rows.rows}, state)
        swap(self.model.state_dict(), state["model"])
        self._encoded = None

    def state_dict(self) -> dict[str, Any]:
        encoder = self.flow.encoder
        state = {"done": self.done, "peak": self.peak, "relation_state": self.flow.relation_state.cpu()}
        return state | ({} if encoder is None else {"encoder_state": encoder.state}) | self._saved_rows()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done, self.peak = state["done"], state["peak"]
        self.flow.relation_state.copy_(state["relation_state"])
        if self.flow.encoder is not None:
            for mine, saved in zip(self.flow.encoder.state, state["encoder_state"], strict=True):
                mine.copy_(saved)
        self._load_rows(state)

    def _saved_rows(self) -> dict[str, Any]:
        rows = self.flow.rows
        assert isinstance(rows, TrainedArray)
        return {"rows": rows.rows, "row_state": rows.state, "calls": rows.calls}

    def _load_rows(self, state: dict[str, Any]) -> None:
        rows = self.flow.rows
        assert isinstance(rows, TrainedArray)
        rows.rows.copy_(state["rows"])
        rows.state.copy_(state["row_state"])
        rows.calls = state["calls"]

    def finish(self, run: Run | None) -> dict[str, Any]:
        encoded, facts = self.scored(), dict[str, Any]()
        if self.flow.encoder is not None and run is not None:
            if isinstance(encoded, TrainedArray):
                facts["encoded_crc32"] = save_encoded(encoded, run.path / ENCODED)
            elif isinstance(encoded, WrittenRows):
                facts["encoded_crc32"] = encoded.checksum
        return {"memory": process_memory(), **facts}

    def stages(self) -> list[StageTimes]:
        return [] if self._flight is None else self._flight[1].times

    def facts(self) -> dict[str, Any]:
        return {"in_flight": self.peak}


class _Source:
    """The source of an epoch's pipeline, which is iterated once more after each landing."""

    def __init__(self, recipe: LinkRecipe, epoch: int) -> None:
        self.recipe, self.epoch = recipe, epoch

    def __iter__(self) -> Iterator[FlowBatch]:
        return self.recipe.source(self.epoch)
