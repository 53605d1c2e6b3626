"""Whether a layer's linear map comes before its sum over neighbors or after it, and whether its sums are worth keeping.

The two commute, `A (X W) = (A X) W`, so that the order is a question of cost alone: of the width that is summed, of the rows that
are multiplied, and of what a gradient runs back through. Pure functions of sizes: layers ask them, and so does a planner.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from headrace.graph import RowRange
from headrace.nn.structure import Structure

Order = Literal["auto", "aggregate", "transform"]  # sum first, map first, or whichever costs less
ORDERS: tuple[Order, ...] = ("auto", "aggregate", "transform")
Gradient = Literal["none", "weights", "all"]  # what is wanted of a layer: nothing, that of its weights, that of its input too

# What one gathered element costs in multiply-adds: 4 bytes at 10 GB/s against 2 operations at 100 GFLOP/s. (On an H200, 4 bytes
# at 3 TB/s against 2 operations at 50 TFLOP/s are 33: the same order.)
_GATHER = 20
_PRODUCTS = {"none": 1, "weights": 2, "all": 3}  # of a linear map: forward, for its weights, for its input


def transform_first(where: Structure, wide: int, narrow: int, *, order: Order = "auto", gradient: Gradient = "none") -> bool:
    """Whether a linear map from `wide` to `narrow` columns had better come before the sum over neighbors.

    Before, it is applied to every source and the sum is over `narrow` columns; after, it is applied to the targets only. In a
    whole graph the smaller width wins; in a sampled block the sources are many. A sum that comes first has no gradient to compute
    where the input wants none, and so in a first layer wins up to twice the width. `order` decides where it is not "auto".

    >>> import headrace as hr
    >>> graph = hr.Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> hr.nn.transform_first(graph, 100, 64), hr.nn.transform_first(graph, 100, 64, gradient="weights")
    (True, False)
    """
    if order != "auto":
        return order == "transform"
    return step_cost(where, wide, narrow, "transform", gradient) < step_cost(where, wide, narrow, "aggregate", gradient)


def step_cost(where: Structure, wide: int, narrow: int, order: Literal["aggregate", "transform"], gradient: Gradient) -> int:
    """Multiply-adds of one pass of a layer, and back where a gradient is wanted; gathered elements are counted as such."""
    if order == "transform":
        rows, width, sums = where.num_src, narrow, 1 if gradient == "none" else 2
    else:
        rows, width, sums = where.num_dst, wide, 2 if gradient == "all" else 1
    return _PRODUCTS[gradient] * rows * wide * narrow + sums * _GATHER * entries_of(where) * width


def keeping_pays(where: Structure, wide: int, narrow: int, *, uses: int, order: Order = "auto", adds_own: bool = False) -> bool:
    """Whether sums of the features, made once at their full width, cost less over `uses` steps than summing at every step.

    With kept sums a step is the product alone. `adds_own`: the own row is added to them at every step (GIN), at full width.

    >>> import headrace as hr
    >>> graph = hr.Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> [hr.nn.keeping_pays(graph, 1433, 16, uses=uses) for uses in (1, 200)]
    [False, True]
    """
    first = "transform" if transform_first(where, wide, narrow, order=order, gradient="weights") else "aggregate"
    plain = step_cost(where, wide, narrow, first, "weights")  # type: ignore[arg-type]
    kept = _PRODUCTS["weights"] * where.num_dst * wide * narrow
    if adds_own:  # two rows read and one written, in order
        plain += 3 * _GATHER * where.num_dst * (narrow if first == "transform" else wide)
        kept += 3 * _GATHER * where.num_dst * wide
    return uses * (plain - kept) > _GATHER * entries_of(where) * wide


def entries_of(where: Structure) -> int:
    """How many entries the rows hold."""
    return int(where.indptr[-1] - where.indptr[0]) if isinstance(where, RowRange) else len(where.indices)


def gradient_of(x: Tensor) -> Gradient:
    """Which gradients a layer with this input will be asked for, as far as can be seen before it runs."""
    return "none" if not torch.is_grad_enabled() else "all" if x.requires_grad else "weights"


def check_order(order: Order) -> Order:
    """`order`, or an error that says what it may be."""
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
    return order
