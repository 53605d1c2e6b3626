"""`Plan`: decisions with what they were made from, what they are predicted to cost, and why; printable as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from headrace._sizes import format_size
from headrace.graph import Dataset
from headrace.graph.properties import Properties
from headrace.nn import GNN
from headrace.nn.first_sum import Keep
from headrace.plan.cost import Cost
from headrace.plan.machine import Machine
from headrace.plan.steps import How
from headrace.plan.sums import Kernel
from headrace.plan.workload import Workload

AS_IT_IS = "as it is"


@dataclass(frozen=True)
class Candidate:
    """One way that was weighed. Bytes and seconds are of a training step, unless its choice says what else."""

    name: str
    bytes: float
    seconds: float


@dataclass(frozen=True)
class Choice:
    """What was decided, among which candidates, and the reason in words."""

    name: str
    chosen: str
    alternatives: tuple[Candidate, ...]
    reason: str

    @property
    def candidate(self) -> Candidate:
        """What was chosen, with its prediction."""
        return next(c for c in self.alternatives if c.name == self.chosen)


@dataclass(frozen=True)
class Configuration:
    """A way to train: which order of nodes, which type, which order of operations in each layer."""

    order: str  # of the nodes; "as it is" for none
    dtype: torch.dtype
    hows: tuple[How, ...]

    def __str__(self) -> str:
        return f"{self.order}, {'bf16' if self.dtype == torch.bfloat16 else 'fp32'}, {' + '.join(self.hows)}"

    @property
    def keep_sum(self) -> Keep:
        """What a `WholeBatch` is to be told of the first layer's sums."""
        return "always" if "kept" in self.hows else "never"

    def apply_to(self, model: GNN) -> GNN:
        """Tell every layer in which order it sums and maps. Sums that are kept are made before the map."""
        if len(model.layers) != len(self.hows):
            raise ValueError(f"this plan is for {len(self.hows)} layers, the model has {len(model.layers)}")
        for layer, how in zip(model.layers, self.hows, strict=True):
            if hasattr(layer.conv, "order"):
                layer.conv.order = "transform" if how == "transform" else "aggregate"  # type: ignore[union-attr]
        return model


@dataclass(frozen=True)
class Plan:
    """What `advise` decided. `str(plan)` is a table of the choices with their predictions and reasons."""

    choices: tuple[Choice, ...]
    workload: Workload
    properties: Properties
    machine: Machine
    epochs: int
    forward: Cost
    step: Cost
    configuration: Configuration
    seconds_of: Mapping[Configuration, float] = field(repr=False, compare=False)  # a step of every configuration that was costed
    kernels: Mapping[str, tuple[Kernel, ...]] = field(repr=False, compare=False)  # of each choice of kernel, the chosen one first
    order: Tensor | None = field(default=None, repr=False, compare=False)  # [num_nodes], where the nodes are to be reordered

    def __iter__(self) -> Iterator[Choice]:
        return iter(self.choices)

    def __getitem__(self, name: str) -> Choice:
        for choice in self.choices:
            if choice.name == name:
                return choice
        raise KeyError(f"this plan has no choice {name!r}: it has {', '.join(choice.name for choice in self.choices)}")

    def apply(self, data: Dataset, *, features: bool = True) -> Dataset:
        """The dataset as planned: its nodes reordered if they are to be, its features in the type that was chosen.

        What else was chosen is the model's: `plan.configuration.apply_to(model)` tells it.
        """
        if data.num_nodes != self.properties.nodes or data.num_edges != self.properties.edges:
            raise ValueError(
                f"this plan is for {self.properties.nodes} nodes and {self.properties.edges} edges, "
                f"the dataset has {data.num_nodes} and {data.num_edges}"
            )
        moved = data if self.order is None else data.reorder(self.order)
        dtype = self.configuration.dtype
        if not features or moved.x is None or moved.x.dtype == dtype or not moved.x.is_floating_point():
            return moved
        return replace(moved, x=moved.x.to(dtype))

    def as_dict(self) -> dict[str, Any]:
        """All but the permutation, as JSON writes it."""
        return {
            "model": self.workload.as_dict(),
            "epochs": self.epochs,
            "dtype": str(self.configuration.dtype).removeprefix("torch."),
            "choices": [asdict(choice) for choice in self.choices],
            "kernels": {
                name: {"width": of[0].width, "columns": of[0].columns, "launch": of[0].launch and asdict(of[0].launch)}
                for name, of in self.kernels.items()
            },
            "forward": asdict(self.forward),
            "step": asdict(self.step),
            "properties": self.properties.as_dict(),
            "machine": self.machine.as_dict(),
        }

    def __str__(self) -> str:
        found = self.properties
        lines = [
            f"{self.workload.kind} {' -> '.join(map(str, self.workload.dims))} over {found.nodes:,} nodes, {found.edges:,} edges "
            f"on {self.machine.name} ({self.machine.device}), {self.epochs} epochs",
            f"predicted: forward {seconds(self.forward.seconds)}, step {seconds(self.step.seconds)} "
            f"({format_size(self.step.bytes)} moved)",
        ]
        for choice in self.choices:
            lines.append("")
            lines.append(f"{choice.name}: {choice.chosen}")
            for candidate in choice.alternatives:
                mark = "*" if candidate.name == choice.chosen else " "
                lines.append(f"  {mark} {candidate.name:<28} {format_size(candidate.bytes):>10} {seconds(candidate.seconds):>10}")
            lines.append(f"  {choice.reason}")
        return "\n".join(lines)


def seconds(value: float) -> str:
    """Seconds for a reader: `1.5 ms`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} us"
