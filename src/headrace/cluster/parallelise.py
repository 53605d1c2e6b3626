"""`parallelise`: a model whose batches one rank computes, or whose first layer all of them compute together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from torch import nn

from headrace.cluster.push_pull import PushPull
from headrace.cluster.team import Team
from headrace.pipeline import Versions
from headrace.store import ColumnSlice

Strategy = Literal["data", "push_pull"]


def parallelise(
    model: nn.Module,
    strategy: Strategy = "push_pull",
    *,
    features: ColumnSlice | None = None,
    team: Team | None = None,
    versions: Versions | None = None,
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> PushPull | None:
    """The first layer of `model` by columns, for strategy "push_pull"; SplitError or ValueError says why it cannot be.

    features: this rank's columns of every node; team: the ranks that hold the others. With "data" every rank computes its own
    batches with the model as it is, so there is nothing to make: None. Gradients of what all ranks have are for
    `headrace.ranks.sum_gradients` in either case.

    >>> import headrace as hr, torch
    >>> from headrace.cluster import parallelise
    >>> x, model = torch.randn(10, 6), hr.nn.GNN(6, 8, 3, layers=2)
    >>> engine = parallelise(model, "push_pull", features=hr.store.ColumnSlice(x, 0, 6))  # one rank, all columns
    >>> [tuple(weight.shape) for weight in engine.maps]
    [(8, 6), (8, 6)]
    >>> engine.close()
    """
    if strategy not in ("data", "push_pull"):
        raise ValueError(f"strategy must be 'data' or 'push_pull', not {strategy!r}")
    if strategy == "data":
        return None
    layer = first_layer(model)
    if features is None:
        raise ValueError("push_pull needs features: this rank's columns, a headrace.store.ColumnSlice")
    return PushPull(layer, features, team or Team(None), versions, precision=precision)


def first_layer(model: nn.Module) -> nn.Module:
    """The layer that push-pull computes; ValueError where a model has none that says how."""
    layers = getattr(model, "layers", None)
    if layers is None or not len(layers) or not callable(getattr(layers[0], "split", None)):
        raise ValueError(
            f"push-pull computes model.layers[0] by columns of its input, and that of {type(model).__name__} has no split(): "
            "use a headrace.nn.GNN, or parallel data"
        )
    layer: nn.Module = layers[0]
    layer.split()  # type: ignore[operator]  # says why, where it cannot be
    return layer
