"""`ParameterStore`: weights by version, and the gradients that become the next one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from headrace.cluster.elastic.task import Direction, Task
from headrace.pipeline import Versions

Tensors = Mapping[str, Tensor]  # weights or gradients, by the name of the parameter


@dataclass
class _Pin:
    """An interval's pass through an epoch: the version that it reads, and the gradients that have come."""

    epoch: int
    version: int
    gradients: dict[int, Tensors] = field(default_factory=dict)  # by layer, in the order of its tasks


class ParameterStore:
    """Weights of one server's intervals. Forward pins a version, backward uses it (weight stashing, Dorylus, section 5.1).

    weights: version 0. The store may change them in place.
    update: called with weights that nobody else reads, to change or replace, and with a sum of gradients; returns the new weights.
    intervals: the own ones. Each pins one version at a time.
    versions: how many may live. `flush` 1, `double_buffer` 2, `stash` one for each interval and the newest. A step that would
        make one more waits until a version is free.
    update_every: intervals whose gradients are summed to a step; by default all own ones.

    Gradients of a step are added in the order of intervals, so its bits do not depend on who came first. Stores of several servers
    exchange sums between `take` and `step`:

    >>> store = ParameterStore({"w": torch.zeros(1)}, lambda weights, total: {"w": weights["w"] - total["w"]}, intervals=[4, 5])
    >>> for interval in (5, 4):
    ...     version = store.pin(Task(0, 0, Direction.TURN, interval))
    ...     print(version, store.add(Task(0, 0, Direction.TURN, interval), {"w": torch.tensor([0.5])}))
    0 True
    0 True
    >>> total = store.take()
    >>> store.step({"w": 3 * total["w"]}), store.weights()["w"].item()  # the sum of three such servers
    (1, -3.0)
    """

    def __init__(
        self,
        weights: Tensors,
        update: Callable[[Tensors, Tensors], Tensors],
        *,
        intervals: Collection[int],
        versions: Literal["flush", "stash", "double_buffer"] = "flush",
        update_every: int | None = None,
    ) -> None:
        self.intervals = frozenset(intervals)
        self.versions = _policy(versions, len(self.intervals), update_every)
        self.version = 0  # the newest
        self.most_versions = 0  # that lived at a time
        self.most_bytes = 0
        self.duplicates = 0  # gradients that came again
        self._update = update
        self._weights: dict[int, Tensors] = {0: _detached(weights)}
        self._pins: dict[tuple[int, bool], _Pin] = {}  # by interval, and whether it is validated
        self._ended = dict.fromkeys(self.intervals, -1)  # the last epoch whose gradients are complete
        self._complete: list[tuple[int, int, list[Tensors]]] = []  # interval, epoch, gradients
        self._taken = False
        self._count()

    def pin(self, task: Task) -> int:
        """The version that a task reads: the newest if it starts its interval's pass, else the one that this pass has pinned."""
        if task.interval not in self.intervals:
            raise ValueError(f"task {task} is not of an own interval")
        pin = self._pins.get(_pass(task))
        if pin is not None and pin.epoch == task.epoch:
            return pin.version
        if pin is not None:
            raise ValueError(f"task {task} needs weights while its interval is in epoch {pin.epoch}")
        if not task.starts_pass:
            raise ValueError(f"task {task} has no pinned weights: the first task of its pass pins them")
        if self._taken and self.versions.live == 1:
            raise RuntimeError(f"task {task} starts before the update that it must see: step first")
        self._pins[_pass(task)] = _Pin(task.epoch, self.version)
        return self.version

    def weights(self, version: int | None = None) -> Tensors:
        """Weights of a version that lives, by default the newest."""
        number = self.version if version is None else version
        if number not in self._weights:
            raise KeyError(f"version {number} of the weights does not live: {sorted(self._weights)} do")
        return self._weights[number]

    def add(self, task: Task, gradients: Tensors) -> bool:
        """Gradients of a task have come. Whether they count: a second time they are counted as duplicates and ignored.

        The last ones of an interval unpin its version.
        """
        if not task.has_gradients or task.interval not in self.intervals:
            raise ValueError(f"task {task} has no gradients for this store")
        pin = self._pins.get(_pass(task))
        if task.epoch <= self._ended[task.interval] or (pin is not None and task.layer in pin.gradients):
            self.duplicates += 1
            return False
        if pin is None or pin.epoch != task.epoch:
            raise ValueError(f"task {task} has gradients, but its interval has pinned no weights for this epoch")
        pin.gradients[task.layer] = gradients
        if task.ends_training:
            self._complete.append((task.interval, task.epoch, list(pin.gradients.values())))
            self._ended[task.interval] = task.epoch
            self._unpin(task)
        return True

    def release(self, task: Task) -> None:
        """Unpin the weights of a validation."""
        if task.direction != Direction.VALIDATE:
            raise ValueError(f"task {task} is no validation: its weights are released by its last gradients")
        self._unpin(task)

    def take(self, *, rest: bool = False) -> dict[str, Tensor] | None:
        """The sum of gradients for a step that is due, or None. rest: as soon as there are any, at the end or before `settle`."""
        if len(self._complete) < (1 if rest else self.versions.m) or not self.may_step or self._taken:
            return None
        complete, self._complete, self._taken = sorted(self._complete, key=lambda entry: entry[:2]), [], True
        total: dict[str, Tensor] = {}
        for _, _, parts in complete:
            for gradients in parts:
                for name, gradient in gradients.items():
                    total[name] = total[name].add_(gradient) if name in total else gradient.clone()
        return {name: total[name] if name in total else torch.zeros_like(weight) for name, weight in self.weights().items()}

    @property
    def may_step(self) -> bool:
        """Whether a new version keeps the bound, whatever is pinned until then."""
        kept = set(self._pinned)
        if self.versions.live > 1:
            kept.add(self.version)
        return len(kept) < self.versions.live

    def step(self, total: Tensors) -> int:
        """Make the next version from a sum of gradients: what `take` gave, exchanged with other servers, or another's sum."""
        pinned = self._pinned
        if len(pinned) >= self.versions.live:
            raise RuntimeError(f"versions {sorted(pinned)} are pinned, and {self.versions.kind} has room for {self.versions.live}")
        weights = self._weights[self.version]
        if self.version in pinned:
            weights = {name: weight.clone() for name, weight in weights.items()}
        self._weights[self.version + 1] = _detached(self._update(weights, total))
        if self.version not in pinned:
            del self._weights[self.version]
        self.version += 1
        self._taken = False
        self._count()
        return self.version

    def settle(self) -> None:
        """Go on with `flush`. All own intervals are between two epochs, and their gradients are in the weights."""
        if self._pins or self._complete or self._taken:
            raise RuntimeError("intervals are under way or gradients wait: end the epoch, and step with take(rest=True)")
        self.versions = Versions.flush(len(self.intervals))

    @property
    def live(self) -> int:
        """Versions that live: the newest, and those that are pinned."""
        return len(self._weights)

    @property
    def living(self) -> list[int]:
        """The versions that live."""
        return list(self._weights)

    @property
    def nbytes(self) -> int:
        """Bytes of all live versions."""
        return sum(weight.nbytes for weights in self._weights.values() for weight in weights.values())

    @property
    def _pinned(self) -> set[int]:
        return {pin.version for pin in self._pins.values()}

    def _unpin(self, task: Task) -> None:
        version = self._pins.pop(_pass(task)).version
        if version != self.version and version not in self._pinned:
            del self._weights[version]

    def _count(self) -> None:
        self.most_versions = max(self.most_versions, self.live)
        self.most_bytes = max(self.most_bytes, self.nbytes)


def _detached(weights: Tensors) -> Tensors:
    return {name: weight.detach() for name, weight in weights.items()}


def _pass(task: Task) -> tuple[int, bool]:
    return task.interval, task.direction == Direction.VALIDATE


def _policy(kind: str, intervals: int, update_every: int | None) -> Versions:
    if intervals < 1:
        raise ValueError("a parameter store needs at least one interval")
    m = intervals if update_every is None else update_every
    if kind == "flush":
        if m != intervals:
            raise ValueError(f"flush updates once an epoch, after all {intervals} intervals, not after {m}: use stash")
        return Versions.flush(m)
    if kind == "stash":
        return Versions.stash(intervals, m)
    if kind == "double_buffer":
        if m < intervals:
            raise ValueError(f"double_buffer needs update_every of {intervals}, its intervals, or more, not {m}: use stash")
        return Versions.double_buffer(m)
    raise ValueError(f"versions must be flush, stash or double_buffer, not {kind!r}")
