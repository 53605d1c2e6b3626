"""`temporal_plan`: how trainers of an event stream are put together (i x j x k), from what batches lose and what memory takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from headrace._memory import machine_memory
from headrace._sizes import format_size
from headrace.graph import Dataset, EventStream
from headrace.nn.tgn.forms import FORMS
from headrace.plan.decided import Candidate, Choice, Decided
from headrace.temporal import Schedule, cut_events
from headrace.temporal.statistics import BatchLoss, batch_loss
from headrace.train import TemporalOptions

SIZES = (200, 400, 600, 1200, 2400, 4800)
KEEP = 1 / 3  # of the node-events that change a memory: batches as large as this allows


@dataclass(frozen=True)
class EventCandidate(Candidate):
    """A way that was weighed: bytes of node memory, and what batches that see one state of it lose."""

    loss: BatchLoss


@dataclass(frozen=True)
class TemporalPlan(Decided):
    """Choices `batch_size`, `k`, `j` and `i`, in the order in which they are made."""

    ranks: int
    machines: int
    memory: int  # bytes that copies may take on a machine
    choices: tuple[Choice, ...]

    columns: ClassVar[tuple[str, ...]] = ("node memory", "kept", "own events missed")

    @property
    def batch_size(self) -> int:
        return int(self["batch_size"].chosen)

    @property
    def parallel(self) -> str:
        """i, j and k in the spelling of the option `parallel`."""
        return "x".join(self[name].chosen for name in "ijk")

    @property
    def summary(self) -> str:
        trainers = f"{self.ranks} trainer{'s' * (self.ranks > 1)} on {self.machines} machine{'s' * (self.machines > 1)}"
        return f"{trainers}: --parallel {self.parallel} --batch-size {self.batch_size}"

    def cells(self, candidate: Candidate) -> tuple[str, ...]:
        assert isinstance(candidate, EventCandidate)
        return format_size(candidate.bytes), f"{candidate.loss.kept:.1%}", f"{candidate.loss.missed:.1f}"

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        about = {"ranks": self.ranks, "machines": self.machines, "memory": self.memory}
        return {"parallel": self.parallel, "batch_size": self.batch_size, **about, "choices": [asdict(c) for c in self.choices]}


def temporal_plan(
    data: Dataset | EventStream,
    options: TemporalOptions | None = None,
    *,
    ranks: int = 1,
    machines: int = 1,
    memory: int | None = None,
    batch_size: int | None = None,
) -> TemporalPlan:
    """Put `ranks` trainers on `machines` machines together, for the training events of a stream.

    The batch is `batch_size`, or the largest that still keeps a third of the node-events. Then copies of the memory (k), which cost
    only bytes: at least one a machine, since no copy spans two, at the most what `memory` bytes of a machine hold (three quarters
    of this one's without), and as many as there are epochs. Then epochs at once (j), which cost variance of the gradient. What
    trainers are left widen the batch (i), which costs what larger batches lose.

    >>> import headrace as hr
    >>> plan = hr.plan.temporal_plan(hr.generate.events(nodes=3000, events=20000), ranks=8, machines=2, memory=6_000_000)
    >>> plan.parallel, plan["k"].reason
    ('1x4x2', 'a copy has 3.4 MiB, and 5.7 MiB of a machine hold 1; copies see other parts of the stream at once, and lose nothing')
    """
    options = TemporalOptions() if options is None else options
    memory = machine_memory() * 3 // 4 if memory is None else memory
    if ranks < 1 or machines < 1 or ranks % machines:
        raise ValueError(f"ranks must be a multiple of machines, both at least 1, not {ranks} and {machines}")
    stream = EventStream.of(data)
    train = stream.splits().train
    sizes = SIZES if batch_size is None else (batch_size, *(size for size in SIZES if size > batch_size))
    ways = [_way(stream, train, size, options, str(size)) for size in sizes if size == sizes[0] or size <= train]
    size = _batch_size(ways, is_chosen=batch_size is not None)
    copy = stream.num_nodes * _row_bytes(options)
    groups = len(cut_events(stream, 0, train, int(size.chosen), options.cut)) - 1
    copies = _copies(ranks, machines, memory, copy, min(groups, options.epochs), size.candidate)
    k = int(copies.chosen)
    epochs = _epochs(ranks // k, k, min(groups, options.epochs // k), options.epochs, copies.candidate)
    j = int(epochs.chosen)
    i = ranks // k // j
    wide = _way(stream, train, i * int(size.chosen), options, str(i), bytes_=copy * k)
    lost = f"batches of {i} x {size.chosen} see one state: {wide.loss.kept:.1%} is kept in place of {size.candidate.loss.kept:.1%}"  # type: ignore[attr-defined]
    together = Choice("i", str(i), (wide,), "each batch has a state of its own" if i == 1 else f"{lost}; fewer ranks keep more")
    Schedule(i, j, k, -(-train // int(size.chosen)))  # refuses what cannot be run
    return TemporalPlan(ranks, machines, memory, (size, copies, epochs, together))


@dataclass(frozen=True)
class PlannedTemporal:
    """Options to train with and the plan that they come from. `record` is for `hr.train.temporal`, which keeps it with the run."""

    options: TemporalOptions
    plan: TemporalPlan

    def record(self) -> dict[str, Any]:
        return self.plan.as_dict()


def planned_temporal(
    data: Dataset | EventStream,
    chosen: Mapping[str, Any] | None = None,
    *,
    ranks: int = 1,
    machines: int = 1,
    memory: int | None = None,
) -> PlannedTemporal:
    """Options of `hr.train.temporal`: those that were `chosen`, by their names, and parallel and batch_size as a plan makes them.

    >>> import headrace as hr
    >>> planned = hr.plan.planned_temporal(hr.generate.events(nodes=300, events=4000), {"epochs": 4}, ranks=4)
    >>> planned.options.parallel, planned.options.batch_size
    ('1x1x4', 200)
    """
    chosen = {name: value for name, value in (chosen or {}).items() if name != "parallel"}
    base = TemporalOptions(**chosen)
    plan = temporal_plan(data, base, ranks=ranks, machines=machines, memory=memory, batch_size=chosen.get("batch_size"))
    return PlannedTemporal(replace(base, parallel=plan.parallel, batch_size=plan.batch_size), plan)


def _row_bytes(options: TemporalOptions) -> int:
    """Of a node in a copy: its memory, and mail of twice that."""
    return 0 if FORMS[options.model].updater is None else 3 * options.hidden * 4


def _way(
    stream: EventStream, train: int, size: int, options: TemporalOptions, name: str, bytes_: int | None = None
) -> EventCandidate:
    loss = batch_loss(stream, cut_events(stream, 0, train, size, options.cut))
    return EventCandidate(name, stream.num_nodes * _row_bytes(options) if bytes_ is None else bytes_, 0.0, loss)


def _batch_size(ways: list[EventCandidate], *, is_chosen: bool) -> Choice:
    enough = [way for way in ways if way.loss.kept >= KEEP]
    best = ways[0] if is_chosen or not enough else enough[-1]
    reason = "as given" if is_chosen else f"the largest that keeps {KEEP:.0%}" if enough else f"the smallest: none keeps {KEEP:.0%}"
    lost = f"of the events of a node in a batch only the last counts: it keeps {best.loss.kept:.1%} of them"
    return Choice("batch_size", best.name, tuple(ways), f"{reason}; {lost}")


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _copies(ranks: int, machines: int, memory: int, copy: int, most: int, size: Candidate) -> Choice:
    """As many copies as fit: whole ones on every machine."""
    assert isinstance(size, EventCandidate)
    held = memory // copy if copy else ranks
    if held < 1:
        raise ValueError(
            f"a copy of the memory has {format_size(copy)}, and a machine {format_size(memory)} for it: give more memory, or lower "
            "hidden"
        )
    if most < machines:
        raise ValueError(
            f"{machines} machines need a copy each, but {most} is the most that epochs and batches leave: raise epochs"
        )
    ways = [k for k in _divisors(ranks) if k % machines == 0]
    fits = [k for k in ways if k // machines <= held and k <= most]
    k = fits[-1]
    limit = (
        f"a copy has {format_size(copy)}, and {format_size(memory)} of a machine hold {held:,}" if copy else "there is no memory"
    )
    if k < ways[-1] and k // machines < held and most < ranks:
        limit = f"more copies than {most} would have no epoch or batch of their own"
    kept = tuple(EventCandidate(str(way), way * copy, 0.0, size.loss) for way in ways)
    return Choice("k", str(k), kept, f"{limit}; copies see other parts of the stream at once, and lose nothing")


def _epochs(left: int, copies: int, most: int, epochs: int, chosen: Candidate) -> Choice:
    """As many epochs at once as there are trainers left, and epochs."""
    assert isinstance(chosen, EventCandidate)
    ways = _divisors(left)
    j = [way for way in ways if way <= max(most, 1)][-1]
    reason = (
        "no trainer is left for it" if left == 1 else "a batch is learnt from j times with other negatives, read and written once"
    )
    if j < left:
        reason = f"{j * copies} of {epochs} epochs are made at once: more would make more epochs than were asked for"
    return Choice("j", str(j), tuple(EventCandidate(str(way), chosen.bytes, 0.0, chosen.loss) for way in ways), reason)
