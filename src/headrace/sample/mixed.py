"""`MixedSampler`: a GPU and CPU threads share one list of batches, by how fast each turns out to be."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from torch import Tensor

from headrace.pipeline.workers import free_in_child
from headrace.sample.neighbor import NeighborSampler
from headrace.sample.sample import Sample
from headrace.sample.sampler import Sampler

_MEMORY = 0.8  # of the seconds a batch takes, how much of the estimate stays when a new one is measured
_TRIALS = 2  # batches that every worker is given: the first may compile kernels, and says little
_PATIENCE = 20  # batches' time that a worker is left idle for being slow, before it is given another: it may have become faster


@dataclass(frozen=True, eq=False)
class Ticket:
    """A batch that a worker has taken on, and when it should be done."""

    due: float


@dataclass
class Worker:
    """A sampler that shares the list: how many batches at a time, how long one took lately, when those under way should be done."""

    name: str
    slots: int
    seconds: float | None = None
    batches: int = 0
    last: float = 0.0  # when the last one was done
    under_way: list[Ticket] = field(default_factory=list)  # the first `slots` of them now, the others in turn

    def due(self, now: float) -> float:
        """When a batch that is given to this worker now should be done."""
        ends = sorted(ticket.due for ticket in self.under_way)
        begin = now if len(ends) < self.slots else max(ends[len(ends) - self.slots], now)
        return begin + (self.seconds or 0.0)

    def stale(self, now: float) -> bool:
        """Whether `seconds` says little of what a batch would take now."""
        return self.seconds is None or self.batches < _TRIALS or now - self.last > _PATIENCE * self.seconds

    def measured(self, took: float, *, now: float) -> None:
        """Note that a batch is done. Its time replaces the estimate if that is stale, and else is averaged into it."""
        new = self.seconds is None or self.stale(now - took)
        self.seconds = took if new else _MEMORY * (self.seconds or took) + (1 - _MEMORY) * took
        self.batches, self.last = self.batches + 1, now


def choose(workers: list[Worker], now: float) -> Worker:
    """The worker that should have a further batch done first; of equals the one with more room.

    Before that comes a worker of which too little is known: one that was not measured often enough, or long ago. It is given one
    batch at a time.
    """
    for worker in workers:
        if not worker.under_way and worker.stale(now):
            return worker
    known = [worker for worker in workers if worker.seconds is not None]
    return min(known or workers, key=lambda worker: (worker.due(now), len(worker.under_way) / worker.slots))


class MixedSampler(Sampler):
    """Samples of a `NeighborSampler` on a device and one on the CPU, which are the same bits: only where each is made differs.

    Call `sample` from `threads` threads at a time. Each batch goes to the worker that should have it done first, by what batches
    took there so far (Quiver's mixed mode splits an epoch once; this goes on adapting).
    """

    def __init__(self, device: NeighborSampler, cpu: NeighborSampler, *, cpu_threads: int) -> None:
        self.graph, self.fanouts, self.device = cpu.graph, cpu.fanouts, device.device
        self.threads = cpu_threads + 1
        self.workers = [Worker("device", 1), Worker("cpu", cpu_threads)]
        self._samplers = {"device": device, "cpu": cpu}
        self._changed = free_in_child(threading.Condition())

    def sample(self, seeds: Any, epoch: int = 0, batch: int = 0, **options: Any) -> Sample:
        """As `NeighborSampler.sample`; the sample lies where it was made: on `device`, or on the CPU."""
        options["threads"] = 1
        with self._changed:
            now = perf_counter()
            worker = choose(self.workers, now)
            ticket = Ticket(worker.due(now))
            worker.under_way.append(ticket)
        try:
            with self._changed:
                self._changed.wait_for(lambda: ticket in worker.under_way[: worker.slots])
            begin = perf_counter()
            sample = self._samplers[worker.name].sample(seeds, epoch, batch, **options)
        finally:
            with self._changed:
                worker.under_way.remove(ticket)
                self._changed.notify_all()
        with self._changed:
            worker.measured(perf_counter() - begin, now=perf_counter())
        return sample

    def seed_times(self, time: Any | None, seeds: int) -> Tensor | None:
        """As `NeighborSampler.seed_times`."""
        return self._samplers["cpu"].seed_times(time, seeds)

    def shares(self) -> dict[str, float]:
        """What share of the batches each worker made."""
        total = sum(worker.batches for worker in self.workers)
        return {worker.name: worker.batches / total if total else 0.0 for worker in self.workers}

    @property
    def workspace_bytes(self) -> int:
        return sum(sampler.workspace_bytes for sampler in self._samplers.values())
