"""`Plan`: how a model is trained on a whole graph, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from headrace._sizes import format_size
from headrace.graph import Dataset
from headrace.graph.topology.properties import Properties
from headrace.nn import GNN
from headrace.nn.first_sum import Keep
from headrace.plan.decided import Choice, Decided, seconds
from headrace.plan.machine import Machine
from headrace.plan.whole.cost import Cost
from headrace.plan.whole.steps import How
from headrace.plan.whole.sums import Kernel
from headrace.plan.whole.workload import Workload

AS_IT_IS = "as it is"


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
class Plan(Decided):
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

    @property
    def summary(self) -> str:
        figures = self.properties
        return (
            f"{self.workload.kind} {' -> '.join(map(str, self.workload.dims))} over {figures.nodes:,} nodes, "
            f"{figures.edges:,} edges on {self.machine.name} ({self.machine.device}), {self.epochs} epochs\n"
            f"predicted: forward {seconds(self.forward.seconds)}, step {seconds(self.step.seconds)} "
            f"({format_size(self.step.bytes)} moved)"
        )
