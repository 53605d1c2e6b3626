"""The job of `headrace bench cluster`: ranks that train by each system in turn, and what they measure."""

from __future__ import annotations

import json
import statistics
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from headrace.bench.measure import Epochs
from headrace.bench.namespaces import Namespaces, sent_bytes
from headrace.bench.nodes.cluster_peer import DistributedTraining, Turn
from headrace.bench.processes import run_ranks
from headrace.graph import Dataset, open_dataset
from headrace.ranks import Exchange, Ranks, guarded, join
from headrace.train import Trainer, Watcher
from headrace.train.fit import Setup, torch_threads
from headrace.train.nodes.node import make_model
from headrace.train.nodes.options import NodeOptions
from headrace.train.nodes.over_ranks.parallel import over_ranks
from headrace.train.watching.watch import StepEvent

OURS: dict[str, dict[str, Any]] = {
    "data": {"parallel": "data"},
    "data, 20 % of the rows copied": {"parallel": "data", "replicate": "20%"},
    "push_pull": {"parallel": "push_pull"},
    "push_pull, stash": {"parallel": "push_pull", "versions": "stash"},
}
PEER = "torch DDP, rows fetched"
_PROBE, _AT_ONCE = 1 << 20, 8  # bytes to each other rank, and how many such exchanges keep a link busy


@dataclass(frozen=True)
class Figures:
    """What ranks measured of one system: means over them."""

    step: float  # seconds
    sent: float  # bytes of a step
    counted: float  # bytes of all epochs, with what is sent after their last step
    on_link: float  # what left the interface meanwhile; 0 over loopback
    loss: float  # of the very first step


@dataclass(frozen=True)
class Measured:
    """What came of a job."""

    rate: float  # bytes per second that a rank sends in one large all_to_all, whose slowest pair all wait for
    link_rate: float  # the same of several at a time: as much as the link takes
    systems: dict[str, Figures]


@dataclass(frozen=True)
class ClusterJob:
    """Ranks, in a folder with the dataset `data`: each of `systems` (of `OURS`, or `PEER`) trains some epochs, in turns."""

    folder: Path
    ranks: int
    hidden: int
    batch_size: int
    systems: tuple[str, ...]
    threads: int = 1
    repeats: int = 3  # epochs that count, after one that does not
    device: str = "cpu"

    def options(self, system: str = "data") -> NodeOptions:
        """Of a system of ours."""
        return NodeOptions(
            fanout=(15, 10),
            hidden=self.hidden,
            dropout=0.0,
            batch_size=self.batch_size,
            accumulate=self.ranks,
            share="ranks",
            threads=self.threads,
            epochs=10**6,
            validate="none",
            device=self.device,
            **OURS[system],
        )

    def run(self, network: Namespaces | None = None) -> Measured:
        """Start the ranks and wait for their figures."""
        plain = {name: value for name, value in asdict(self).items() if name != "folder"}
        (self.folder / "job.json").write_text(json.dumps(plain))
        run_ranks(__name__, str(self.folder), size=self.ranks, threads=self.threads, network=network)
        measured = json.loads((self.folder / "measured.json").read_text())
        return Measured(**measured | {"systems": {name: Figures(**figures) for name, figures in measured["systems"].items()}})


def rank(path: str) -> None:
    """One rank of a job; rank 0 writes what all measured."""
    job = ClusterJob(Path(path), **json.loads((Path(path) / "job.json").read_text()))
    data = open_dataset(job.folder / "data")
    with torch_threads(job.threads), join() as ranks, guarded(ranks), ExitStack() as opened:
        systems = {name: _system(name, job, data, ranks, opened) for name in job.systems}
        turns: dict[str, list[Turn]] = {name: [] for name in systems}
        on_link = dict.fromkeys(systems, 0)
        for number in range(1 + job.repeats):
            for name in job.systems[number % len(systems) :] + job.systems[: number % len(systems)]:
                ranks.barrier()
                before = sent_bytes()
                turns[name].append(systems[name].epoch())
                ranks.barrier()
                on_link[name] += sent_bytes() - before
        steps = -(-len(data.splits["train"]) // (job.batch_size * job.ranks))
        mine = {name: asdict(_figures(turns[name], on_link[name], steps)) for name in systems}
        everyone, rate, link_rate = ranks.all_gather(mine), _probe(ranks, 1, job.device), _probe(ranks, _AT_ONCE, job.device)
    if ranks.rank == 0:
        means = {
            name: {key: statistics.fmean(theirs[name][key] for theirs in everyone) for key in figures}
            for name, figures in mine.items()
        }
        measured = {"rate": rate, "link_rate": link_rate, "systems": means}
        (job.folder / "measured.json").write_text(json.dumps(measured))


def _figures(turns: list[Turn], on_link: int, steps: int) -> Figures:
    return Figures(
        step=statistics.median(turn.seconds for turn in turns[1:]) / steps,
        sent=statistics.fmean(turn.sent for turn in turns) / steps,
        counted=sum(turn.sent + turn.sent_after for turn in turns),
        on_link=on_link,
        loss=turns[0].loss,
    )


def _probe(ranks: Ranks, at_once: int, device: str) -> float:
    """Bytes per second that a rank sends while all send to all, so many times at once: from the device, and back to it."""
    size = _PROBE * _AT_ONCE // at_once
    exchange, each, seconds = Exchange(ranks, device=device), [size] * ranks.size, list[float]()
    sent = torch.zeros(size * ranks.size, dtype=torch.uint8, device=device)
    for _ in range(4):
        ranks.barrier()
        begin = perf_counter()
        transfers = [exchange.all_to_all("probe", sent.to(exchange.wire), sending=each, receiving=each) for _ in range(at_once)]
        for transfer in transfers:
            transfer.wait().to(device)
        seconds.append(max(ranks.all_gather(perf_counter() - begin)))
    exchange.close()
    return at_once * size * (ranks.size - 1) / statistics.median(seconds[1:])


def _system(name: str, job: ClusterJob, data: Dataset, ranks: Ranks, opened: ExitStack) -> _Ours | DistributedTraining:
    options = job.options() if name == PEER else job.options(name)
    torch.manual_seed(options.seed)
    model = make_model(data, options)
    if name == PEER:
        return DistributedTraining(data, model.state_dict(), options, ranks)
    exchange = Exchange(ranks, device=job.device)
    opened.callback(exchange.close)
    setup = Setup(options, None, None, ranks, job.ranks, Watcher(), opened, exchange)
    seen = _Losses()
    trainer = Trainer(over_ranks(data, model, setup), options, None, seen, ranks=ranks, exchange=exchange, accumulate=job.ranks)
    return _Ours(trainer, seen)


class _Losses(Epochs):
    """Also keeps the loss of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def step(self, event: StepEvent, clock: dict[str, float]) -> None:
        self.losses.append(event.loss)


@dataclass(frozen=True)
class _Ours:
    """Our trainer, an epoch at a time."""

    trainer: Trainer
    seen: _Losses

    def epoch(self) -> Turn:
        self.trainer.epoch()
        facts = self.seen.facts[-1]
        sent = {phase: moved["sent"] for phase, moved in facts["ranks"]["phases"].items()}
        after = sent.pop("assemble", 0)
        loss = statistics.fmean(self.seen.losses[: self.trainer.ranks.size])
        return Turn(facts["train_seconds"], sum(sent.values()), after, loss)
