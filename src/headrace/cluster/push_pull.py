"""`PushPull`: the first layer of a model by ranks that hold some columns of every node's features each (P3, OSDI'21).

A GNN has few weights and wide features, so features stay where they are. The structure of a batch goes to all ranks of a team (or
they draw it again, where all have the graph). Each puts its columns through its columns of the layer's maps; the partial sums go
to the batch's owner, which adds them and goes on by itself: bias, norm, activation, dropout, the other layers, the loss. On the
way back the gradient of the sums goes to all, and each has the gradient of its own columns of the maps: nothing else is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from headrace.cluster.partial import Partial, Pushed
from headrace.cluster.rounds import IN_FLIGHT
from headrace.cluster.team import Team
from headrace.nn import LayerSplit
from headrace.pipeline import Versions
from headrace.ranks import Pending, Turns
from headrace.store import ColumnSlice

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Drawn:
    """A round of batches: this rank's own, if it has one, and the first layer's block of each member's."""

    own: Any
    blocks: list[Pushed | None]


@dataclass(eq=False)
class Flight:
    """A round that has begun and whose gradient has not come back."""

    own: Any = None
    partials: list[Partial | None] = field(default_factory=list)
    shapes: list[list[tuple[int, int]]] = field(default_factory=list)  # of each member's parts


Gradients = list[tuple[list[Tensor], list[Tensor]]]  # of each member's batch: those of the maps' columns, and of what is shared


class Arriving(Generic[T]):
    """Work in turn that ends with something on its way. `wait()` returns what that is, when it is there."""

    def __init__(self, pending: Pending[Callable[[], T]]) -> None:
        self._pending = pending

    def wait(self) -> T:
        return self._pending.wait()()


class PushPull:
    """The linear part of a first layer over the columns of all ranks of a team.

    layer: whole on every rank; of its maps (`split.names`) a rank updates its own columns.
    features: this rank's columns of every node.
    versions: which version of the maps a round reads. Only they are ever delayed (with what scores of attention use).
    precision: a context in which products are computed, such as autocast.

    `forward` and `backward` are collective and return at once; the work is done in their order on a thread of its own. It does not
    wait for what it has sent: while sums and gradients travel, it computes what comes next.
    """

    def __init__(
        self,
        layer: nn.Module,
        features: ColumnSlice,
        team: Team,
        versions: Versions | None = None,
        *,
        precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.layer, self.features, self.team = layer, features, team
        self.split: LayerSplit = layer.split()  # type: ignore[operator]
        self.versions = versions or Versions.flush()
        self.maps = [layer.get_parameter(name) for name in self.split.names]
        self.shared = [layer.get_parameter(name) for name in self.split.shared]
        self.updates = 0  # made so far: the newest version
        self.most_versions = 1  # that were alive at a time
        self.most_partial_bytes = 0  # of sums of this rank's batches in flight
        self._precision = precision
        self._stash: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        self._turns = Turns(ahead=64, name="headrace.PushPull", device=features.device)
        self._dtype = torch.promote_types(torch.float32, self.maps[0].dtype)

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return self.maps[0].device

    @property
    def columns(self) -> slice:
        """This rank's columns of the maps."""
        return slice(*self.features.columns)

    def forward(self, drawn: Callable[[], Drawn], update: int | None = None) -> Arriving[tuple[Flight, list[Tensor]]]:
        """Begin a round of update number `update`: sums of this rank's batch, when they have come.

        drawn: called in turn, on the thread that communicates, so it may be collective too.
        update: decides the version of the maps; without it they are read as they are now.
        """
        weights, shared = self._now() if update is None else self._version(self.versions.of_update(update))
        return Arriving(self._submit(lambda: self._forward(drawn(), weights, shared)))

    def backward(self, flight: Flight, gradients: Sequence[Tensor] | None) -> Pending[Gradients]:
        """Send the gradient of this rank's sums (None where it has no batch), and find those of the maps."""
        return self.gradients(flight, self.push(flight, gradients))

    def push(self, flight: Flight, gradients: Sequence[Tensor] | None) -> Pending[Callable[[], list[Tensor]]]:
        """The first half of `backward`: send. What is submitted before the second half is computed while gradients travel."""
        sizes = [sum(rows * width for rows, width in shapes) for shapes in flight.shapes]
        return self._submit(lambda: self.team.spread("errors", self._flat(gradients or []), sizes))

    def gradients(self, flight: Flight, told: Pending[Callable[[], list[Tensor]]]) -> Pending[Gradients]:
        """The second half of `backward`, of what `push` returned."""
        return self._submit(lambda: self._backward(flight, told.wait()()))

    def keep(self) -> None:
        """Before an update of the maps: keep what later rounds will read."""
        if self.updates in self.versions.needed(self.updates + 1):
            self._version(self.updates)
        self.updates += 1
        oldest = self.versions.of_update(self.updates)
        self._stash = {version: kept for version, kept in self._stash.items() if version >= oldest}
        self.most_versions = max(self.most_versions, len(self._stash.keys() | {self.updates}))

    def stashed(self) -> dict[int, tuple[list[Tensor], list[Tensor]]]:
        """Versions that later rounds will read, by number: columns of the maps, and what is shared."""
        return {version: self._version(version) for version in self.versions.needed(self.updates) if version != self.updates}

    def restore(self, updates: int, stash: Mapping[int, tuple[Sequence[Tensor], Sequence[Tensor]]]) -> None:
        """Go on after so many updates, with earlier versions of the whole maps."""
        self.updates = updates
        self._stash = {
            version: ([self._own(weight) for weight in maps], [weight.clone().requires_grad_() for weight in shared])
            for version, (maps, shared) in stash.items()
        }

    def close(self) -> None:
        """End the thread; every rank, after the last round. A rank that has failed must not: its thread may wait for others."""
        self._turns.close()

    def _version(self, version: int) -> tuple[list[Tensor], list[Tensor]]:
        if version not in self._stash:
            if version != self.updates:
                raise RuntimeError(f"version {version} of the weights is gone: the newest is {self.updates}")
            self._stash[version] = self._now()
        return self._stash[version]

    def _now(self) -> tuple[list[Tensor], list[Tensor]]:
        return [self._own(weight) for weight in self.maps], [weight.detach().clone().requires_grad_() for weight in self.shared]

    def _own(self, weight: Tensor) -> Tensor:
        return weight.detach()[:, self.columns].clone(memory_format=torch.contiguous_format).requires_grad_()

    def _submit(self, work: Callable[[], T]) -> Pending[T]:
        return self._turns.submit(self._reported(work))

    def _reported(self, work: Callable[[], T]) -> Callable[[], T]:
        def reported() -> T:
            try:
                with torch.enable_grad():
                    return work()
            except Exception as error:
                if self.team.exchange is not None:
                    self.team.exchange.report(error)
                raise

        return reported

    def _forward(self, drawn: Drawn, weights: list[Tensor], shared: list[Tensor]) -> Callable[[], tuple[Flight, list[Tensor]]]:
        if self.team.exchange is not None:
            self.team.exchange.begin()
        flight = Flight(drawn.own)
        with self._precision():
            for block in drawn.blocks:
                pushed = None if block is None else block.to(self.device)
                flight.partials.append(None if pushed is None else Partial(self.split, self.features, pushed, weights, shared))
                flight.shapes.append([] if pushed is None else self.split.shapes(pushed.block))
            scores = self._all_scores(flight, lambda partial, _: partial.scores()) if self.split.heads else None
            parts = [
                self._flat([] if partial is None else partial.parts(None if scores is None else scores[member]))
                for member, partial in enumerate(flight.partials)
            ]
        mine = self.team.place
        self.most_partial_bytes = max(self.most_partial_bytes, IN_FLIGHT * parts[mine].nbytes)
        sums = self.team.reduce("pull", parts)
        return self._reported(lambda: (flight, _unpacked(sums(), flight.shapes[mine])))

    def _backward(self, flight: Flight, told: list[Tensor]) -> Gradients:
        by_member = [_unpacked(flat, shapes) for flat, shapes in zip(told, flight.shapes, strict=True)]
        scores = None
        if self.split.heads:
            scores = self._all_scores(flight, lambda partial, member: partial.scores_gradient(by_member[member]))
        return [
            ([], []) if partial is None else partial.gradients(by_member[member], None if scores is None else scores[member])
            for member, partial in enumerate(flight.partials)
        ]

    def _all_scores(self, flight: Flight, of: Callable[[Partial, int], Tensor]) -> list[Tensor]:
        """Scores of each member's batch (or their gradients), summed over slices, on all ranks."""
        own = [self._flat([] if partial is None else [of(partial, member)]) for member, partial in enumerate(flight.partials)]
        everyone = self.team.spread("scores", self.team.reduce("scores", own)(), [len(flat) for flat in own])
        return [flat.view(-1, self.split.heads) for flat in everyone()]

    def _flat(self, rows: Sequence[Tensor]) -> Tensor:  # each [n, width] -> [numbers]
        if not rows:
            return torch.empty(0, dtype=self._dtype, device=self.device)
        flat = [part.reshape(-1).to(self._dtype) for part in rows]
        return flat[0] if len(flat) == 1 else torch.cat(flat)


def _unpacked(flat: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    parts = flat.split([rows * width for rows, width in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
