"""`Sums`: what the batches of an epoch add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.train.recipe import Step


@dataclass
class Sums:
    """Of the batches of an epoch so far; part of a run's state.

    time: seconds by what they were spent on, as the loop's clock counts them.
    """

    loss: float = 0.0  # over seeds
    measures: dict[str, float] = field(default_factory=dict)
    seeds: int = 0
    nodes: list[int] = field(default_factory=list)  # of each hop
    edges: list[int] = field(default_factory=list)
    bytes: int = 0
    seconds: float = 0.0
    time: dict[str, float] = field(default_factory=dict)

    def add(self, done: Step, loss: float, measured: dict[str, float]) -> None:
        """Count a step."""
        self.loss += loss * done.seeds
        self.seeds += done.seeds
        self.bytes += done.bytes
        for name, value in measured.items():
            self.measures[name] = self.measures.get(name, 0.0) + value
        self.nodes, self.edges = _added(self.nodes, done.nodes), _added(self.edges, done.edges)

    def means(self) -> dict[str, float]:
        """The loss and the measures of a seed."""
        seeds = max(self.seeds, 1)
        return {"loss": self.loss / seeds, **{f"train_{name}": value / seeds for name, value in self.measures.items()}}

    def throughput(self) -> dict[str, float]:
        """Per second of training: seeds, edges, bytes."""
        totals = {"seeds": self.seeds, "edges": sum(self.edges), "bytes": self.bytes}
        return {name: total / self.seconds for name, total in totals.items()} if self.seconds else {}

    def sampled(self, batches: int) -> dict[str, Any] | None:
        """Nodes and edges of a mean batch, hop by hop; None where none are sampled."""
        each = {"nodes": self.nodes, "edges": self.edges}
        return {name: [n / max(batches, 1) for n in sizes] for name, sizes in each.items()} if self.edges else None


def _added(sums: list[int], sizes: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(sums or [0] * len(sizes), sizes, strict=True)]
