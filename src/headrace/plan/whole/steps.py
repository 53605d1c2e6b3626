"""What a layer costs, forward and in a training step, by the order of its operations. Pure functions of sizes and of a machine.

A linear map commutes with a sum over neighbors, `A (X W) = (A X) W`, so a layer may map first and sum the smaller width, or sum
first. Forward both are one sum and one product. In a step the sum's gradient is a sum over the transpose, taken to cost the same:
a layer that maps first always needs it, one that sums first only where its input wants a gradient, so the first layer does not. And
the first layer's sums of fixed features can be made once and kept (`headrace.nn.FirstSum`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from headrace.plan.machine import Machine
from headrace.plan.whole.cost import Cost, elementwise, product
from headrace.plan.whole.workload import LayerWork

How = Literal["transform", "aggregate", "kept"]
Sum = Callable[[int], Cost]  # of one aggregation of that many columns


def ways(layer: LayerWork, *, may_keep: bool) -> tuple[How, ...]:
    """The orders of operations that a layer can have: attention reads its coefficients off the mapped rows, so it maps first."""
    if layer.attends:
        return ("transform",)
    return ("transform", "aggregate", "kept") if layer.first and may_keep else ("transform", "aggregate")


def forward_cost(machine: Machine, layer: LayerWork, how: How, *, rows: int, dtype: torch.dtype, sums: Sum) -> Cost:
    """One layer forward. `sums(width)` is what a sum over all neighbors costs."""

    def mm(wide: int, narrow: int) -> Cost:
        return product(machine, rows=rows, wide=wide, narrow=narrow, dtype=dtype)

    total = mm(layer.wide, layer.mapped)
    if how != "kept":
        total = total + sums(summed_width(layer, how))
    fixed = machine.step_overhead(dtype) / 3  # backward is two of three parts
    if how == "kept":
        fixed = max(fixed - machine.sum_seconds, 0.0)  # the probe's layer made a sum
    own = _own(machine, layer, how, rows, dtype) + Cost(0.0, fixed)
    return total + own + _rest(machine, layer, how, rows, dtype, mm) + _activation(machine, layer, rows, dtype)


def step_cost(machine: Machine, layer: LayerWork, how: How, *, rows: int, dtype: torch.dtype, sums: Sum) -> Cost:
    """One layer forward and backward, the update of its weights left out: that is the same in any order."""

    def back(wide: int, narrow: int) -> Cost:
        weights = product(machine, rows=rows, wide=wide, narrow=narrow, dtype=dtype, gradient=True)
        return (
            weights
            if layer.first and wide == layer.wide
            else weights + product(machine, rows=rows, wide=narrow, narrow=wide, dtype=dtype)
        )

    total = forward_cost(machine, layer, how, rows=rows, dtype=dtype, sums=sums) + back(layer.wide, layer.mapped)
    if gradient_sums(layer, how):
        # A fused attention goes back over rows and over columns, each time with the scores to make again.
        total = total + (2 if layer.attends else 1) * sums(summed_width(layer, how)) + _own(machine, layer, how, rows, dtype)
    fixed = Cost(0.0, machine.step_overhead(dtype) * 2 / 3)
    return total + _rest(machine, layer, how, rows, dtype, back) + _activation(machine, layer, rows, dtype) + fixed


def summed_width(layer: LayerWork, how: How) -> int:
    """How many columns the sum over neighbors has."""
    return layer.mapped if how == "transform" else layer.wide


def gradient_sums(layer: LayerWork, how: How) -> bool:
    """Whether a step goes back through the sum."""
    return how == "transform" or (how == "aggregate" and not layer.first)


def sums_per_step(layer: LayerWork, how: How) -> int:
    """How many passes over all edges a step takes."""
    if layer.attends:
        return 3
    return 0 if how == "kept" else 1 + gradient_sums(layer, how)


def _own(machine: Machine, layer: LayerWork, how: How, rows: int, dtype: torch.dtype) -> Cost:
    """The own row, added to the sum (gcn, gin): two rows read and one written. In gcn's kept sums it is there already."""
    if layer.kind not in ("gcn", "gin") or (how == "kept" and layer.kind == "gcn"):
        return Cost()
    moved = 3.0 * rows * summed_width(layer, how) * dtype.itemsize
    return Cost(moved, machine.call_seconds + moved / machine.own_rate(dtype))


def _rest(machine: Machine, layer: LayerWork, how: How, rows: int, dtype: torch.dtype, mm: Callable[[int, int], Cost]) -> Cost:
    """The cost of what this kind of layer does beside its sums and main product."""
    if layer.kind == "sage":  # the own row has a map of its own; beside the sums, both are one product of rows that are copied
        copied = 4.0 * layer.wide if how == "aggregate" else 3.0 * layer.narrow
        return mm(layer.wide, layer.narrow) + elementwise(machine, rows=rows, width=1, passes=copied, itemsize=dtype.itemsize)
    if layer.kind == "gin":  # a norm, a relu and a second map; and the first map's bias apart, where it comes before the sum
        passes = 10 if how == "transform" else 8
        between = elementwise(machine, rows=rows, width=layer.mapped, passes=passes, itemsize=dtype.itemsize, calls=3)
        return between + mm(layer.mapped, layer.narrow)
    if layer.kind == "gat":  # two scores per row and head
        return elementwise(machine, rows=rows, width=layer.narrow, passes=2, itemsize=dtype.itemsize, calls=2)
    if layer.kind == "gatv2":
        return mm(layer.wide, layer.narrow)
    return elementwise(machine, rows=rows, width=layer.narrow, passes=2, itemsize=dtype.itemsize)  # gcn's bias


def _activation(machine: Machine, layer: LayerWork, rows: int, dtype: torch.dtype) -> Cost:
    return elementwise(machine, rows=rows, width=layer.narrow, passes=3, itemsize=dtype.itemsize)
