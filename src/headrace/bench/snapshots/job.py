"""The job of `headrace bench snapshots`: ranks that train by each strategy in turn, and what they measure."""

from __future__ import annotations

import json
import os
import statistics
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from headrace.bench.measure import Epochs
from headrace.bench.processes import run_ranks
from headrace.bench.snapshots.peer import PeerTraining
from headrace.graph.known.named import named_snapshots
from headrace.ranks import Exchange, GroupRanks, Ranks, guarded, join
from headrace.snapshots import balance, equal
from headrace.store import kept_memory
from headrace.train import SnapshotOptions, Trainer
from headrace.train.fit import Setup, torch_threads
from headrace.train.snapshots.recipe import SnapshotRecipe
from headrace.train.snapshots.windows import Windows
from headrace.train.watching.watch import StepEvent

PLAIN = {"hoist": False}
SYSTEMS: dict[str, dict[str, Any]] = {
    "everything on": {"strategy": "balanced", "overlap": True},
    "balanced": {"strategy": "balanced"},
    "equal": {"strategy": "equal"},
    "vertex": {"strategy": "vertex"},
    "snapshot": {"strategy": "snapshot"},
    "sequential, the other rank idle": {"strategy": "sequential"},
    "nothing on (equal, plain)": {"strategy": "equal", **PLAIN},
    "balance alone": {"strategy": "balanced", **PLAIN},
    "overlap alone": {"strategy": "equal", "overlap": True, **PLAIN},
}
PEER = "PyG's layers as PyG Temporal runs them, one process"


@dataclass(frozen=True)
class SnapshotJob:
    """Ranks in a folder: each of `systems` trains some epochs on the snapshots that `spec` names, in turns."""

    folder: Path
    spec: str
    model: str
    ranks: int
    threads: int
    repeats: int
    peer: bool
    options: dict[str, Any] = field(default_factory=dict)
    systems: tuple[str, ...] = tuple(SYSTEMS)

    def of(self, system: str) -> SnapshotOptions:
        """Options of a system."""
        common = {"model": self.model, "epochs": 10**6, "validate_every": 0, "val": 0.0, "skip": False, "threads": self.threads}
        return SnapshotOptions(**{**common, "hidden": 64, **self.options, **SYSTEMS[system]})

    def run(self) -> dict[str, Any]:
        """Start the ranks and wait for their figures."""
        plain = {name: value for name, value in asdict(self).items() if name != "folder"}
        (self.folder / "job.json").write_text(json.dumps(plain))
        run_ranks(__name__, str(self.folder), size=self.ranks, threads=self.threads)
        measured: dict[str, Any] = json.loads((self.folder / "measured.json").read_text())
        return measured


def rank(path: str) -> None:
    """One rank of a job; rank 0 writes what all measured."""
    job = SnapshotJob(Path(path), **json.loads((Path(path) / "job.json").read_text()))
    # Freed memory stays from epoch to epoch, as it does in a run: an epoch here is a step.
    with torch_threads(job.threads), join() as ranks, guarded(ranks), kept_memory(), ExitStack() as opened:
        windows = Windows.of(named_snapshots(job.spec, every=None), job.of("balanced"))
        systems = {name: _Ours(job.of(name), windows, ranks, opened) for name in job.systems}
        turns: list[tuple[str, Any]] = list(systems.items())
        if job.peer:
            recipe = systems["balanced"].recipe
            turns.append((PEER, _Peer(job, windows, recipe, ranks)))
        seconds: dict[str, list[float]] = {name: [] for name, _ in turns}
        losses: dict[str, float] = {}
        for number in range(1 + job.repeats):
            for name, system in turns[number % len(turns) :] + turns[: number % len(turns)]:
                ranks.barrier()
                took, loss = system.epoch()
                losses.setdefault(name, loss)
                seconds[name].append(max(ranks.all_gather(took)))
        sent = {name: max(ranks.all_gather(system.balance["bytes"])) for name, system in systems.items()}
        steps = -(-len(windows.groups["train"]) // job.of("balanced").groups)
    if ranks.rank == 0:
        measured = {
            "step": {name: statistics.median(times[1:]) / steps for name, times in seconds.items()},
            "loss": losses,
            "balance": {name: system.balance for name, system in systems.items()},
            "bytes": sent,
            "predicted": systems["balanced"].predicted(job.ranks) if "balanced" in systems else None,
            "work": _work(windows, job),
        }
        (job.folder / "measured.json").write_text(json.dumps(measured))


def _work(windows: Windows, job: SnapshotJob) -> dict[str, float]:
    """Edges and nodes that the snapshots of a step's groups have."""
    groups, edges, data = windows.groups["train"], windows.snapshots.num_edges, windows.snapshots
    steps = -(-len(groups) // job.of("balanced").groups)
    times = [at for group in groups for at in group.times]
    nodes = [data.num_nodes if data.nodes is None else len(data.nodes[at]) for at in times]
    return {"edges": sum(edges[at] for at in times) / steps, "nodes": sum(nodes) / steps, "features": float(data.num_features)}


class _Losses(Epochs):
    """Also keeps the loss of every piece."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[tuple[float, int]] = []

    def step(self, event: StepEvent, clock: dict[str, float]) -> None:
        self.losses.append((event.loss, event.seeds))


class _Ours:
    """Our trainer, an epoch at a time."""

    def __init__(self, options: SnapshotOptions, windows: Windows, ranks: Ranks, opened: ExitStack) -> None:
        torch.manual_seed(options.seed)
        exchange = Exchange(ranks) if isinstance(ranks, GroupRanks) and ranks.size > 1 else None
        if exchange is not None:
            opened.callback(exchange.close)
        self.seen = _Losses()
        pieces = options.batches_per_step
        self.recipe = SnapshotRecipe(windows, Setup(options, None, None, ranks, pieces, self.seen, opened, exchange))
        self.trainer = Trainer(self.recipe, options, None, self.seen, ranks=ranks, exchange=exchange, accumulate=pieces)

    def epoch(self) -> tuple[float, float]:
        """Seconds of its steps, and the loss of the first one."""
        self.trainer.epoch()
        pieces = self.seen.losses[: self.trainer.accumulate]
        return self.seen.facts[-1]["train_seconds"], sum(loss * n for loss, n in pieces) / sum(n for _, n in pieces)

    @property
    def balance(self) -> dict[str, float]:
        """Seconds and bytes of the last epoch's steps."""
        return self.recipe.dealing.balance

    def predicted(self, ranks: int) -> dict[str, float]:
        """What the schedules of the last step say, by the costs fitted to what was measured."""
        dealing = self.recipe.dealing
        costs = dealing.costs.of([dealing.size(piece) for piece in self.recipe.pieces_of_step])
        dealt = balance(costs, ranks)
        return {"equal over balanced": equal(costs, ranks).makespan / dealt.makespan, "over bound": dealt.makespan / dealt.bound}


class _Peer:
    """PyG's layers on rank 0, with the threads of all ranks, while the others wait."""

    def __init__(self, job: SnapshotJob, windows: Windows, recipe: SnapshotRecipe, ranks: Ranks) -> None:
        self.rank, self.threads, self.recipe, self.epochs = ranks.rank, job.threads * ranks.size, recipe, 0
        self.processors = set().union(*ranks.all_gather(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()))
        if self.rank == 0:
            options = job.of("balanced")
            weights = {name: value.clone() for name, value in recipe.model.state_dict().items()}
            self.training = PeerTraining(job.model, windows, weights, options.hidden, options.lr)

    def epoch(self) -> tuple[float, float]:
        """As of ours."""
        if self.rank:
            return 0.0, 0.0
        before = os.sched_getaffinity(0) if self.processors else set()
        if self.processors:
            os.sched_setaffinity(0, self.processors)
        try:
            with torch_threads(self.threads):
                begin = perf_counter()
                losses = [self.training.step(groups) for groups in self.recipe.steps_of(self.epochs)]
                return perf_counter() - begin, losses[0]
        finally:
            self.epochs += 1
            if self.processors:
                os.sched_setaffinity(0, before)
