"""`Workload`: the model that is planned for, as far as its cost goes: what each layer multiplies and sums, at which widths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import nn

from headrace.graph import Dataset, Graph
from headrace.nn import GNN, GATConv, GCNConv, GINConv, SAGEConv
from headrace.nn.gnn import KINDS, Kind

ATTENTION = ("gat", "gatv2")


@dataclass(frozen=True)
class LayerWork:
    """One layer: rows of `wide` columns become rows of `narrow`. The map that commutes with its sum gives `mapped` columns."""

    kind: Kind
    wide: int
    narrow: int
    mapped: int
    first: bool  # its input is the features: no gradient is wanted of them

    @property
    def attends(self) -> bool:
        return self.kind in ATTENTION


@dataclass(frozen=True)
class Workload:
    """A stack of layers of one kind over a whole graph. `dims` are the widths from the features to the classes.

    >>> [layer.wide for layer in Workload("gcn", (100, 64, 47)).layers]
    [100, 64]
    """

    kind: Kind
    dims: tuple[int, ...]
    heads: int = 8
    dropout: float = 0.5
    input_dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"model must be one of {', '.join(KINDS)}, not {self.kind!r}")
        if len(self.dims) < 2 or min(self.dims) < 1:
            raise ValueError(
                f"dims are the widths from the features to the classes, at least two of them and all positive: not {self.dims}"
            )
        if self.heads < 1 or (self.kind in ATTENTION and any(width % self.heads for width in self.dims[1:-1])):
            raise ValueError(f"hidden must be a multiple of heads, but {self.dims[1:-1]} are not of {self.heads}")
        for name, rate in (("dropout", self.dropout), ("input_dropout", self.input_dropout)):
            if not 0 <= rate < 1:
                raise ValueError(f"{name} must be from 0 to below 1, not {rate}")

    @property
    def layers(self) -> tuple[LayerWork, ...]:
        # GIN's network of the last layer has a hidden width too, which its first map gives.
        mapped = self.dims[1] if self.kind == "gin" and len(self.dims) > 2 else None
        return tuple(LayerWork(self.kind, a, b, mapped or b, i == 0) for i, (a, b) in enumerate(pairwise(self.dims)))

    def as_dict(self) -> dict[str, Any]:
        return {"model": self.kind, "dims": list(self.dims), "heads": self.heads, "input_dropout": self.input_dropout}

    def build(self) -> GNN:
        """The model itself, with fresh weights: what `verify` runs."""
        inside = set(self.dims[1:-1]) or {self.dims[-1]}
        if len(inside) > 1:
            raise ValueError(f"a GNN has one hidden width, and these dims have {sorted(inside)}: only the plan can be had of them")
        return GNN(
            self.dims[0],
            inside.pop(),
            self.dims[-1],
            layers=len(self.dims) - 1,
            conv=self.kind,
            dropout=self.dropout,
            input_dropout=self.input_dropout,
            heads=self.heads,
        )


def workload_of(
    data: Dataset | Graph,
    model: str | nn.Module | Sequence[int],
    *,
    hidden: int,
    layers: int,
    heads: int,
    conv: str,
    dropout: float,
    input_dropout: float | None,
) -> Workload:
    """What is planned for: a kind of model at these widths, a `GNN` as it is, or widths of layers of kind `conv`.

    Widths of features and classes are the dataset's. `input_dropout` is by default what `GNN` takes: `dropout` for gcn and
    attention, none for the others.
    """
    if isinstance(model, nn.Module):
        return _of_module(model)
    if isinstance(model, str):
        if model not in KINDS:
            raise ValueError(f"model must be one of {', '.join(KINDS)}, a GNN or a list of widths, not {model!r}")
        conv, dims = model, _dims(data, hidden, layers)
    else:
        dims = tuple(int(width) for width in model)
    if input_dropout is None:
        input_dropout = dropout if conv == "gcn" or conv in ATTENTION else 0.0
    return Workload(conv, dims, heads, dropout, input_dropout)  # type: ignore[arg-type]


def _dims(data: Dataset | Graph, hidden: int, layers: int) -> tuple[int, ...]:
    for name, value in (("hidden", hidden), ("layers", layers)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    features = 0 if isinstance(data, Graph) else data.num_features
    if not features:
        raise ValueError(f"there are no features whose width is known: give dims in place of a name, as in [128, {hidden}, 10]")
    assert isinstance(data, Dataset)
    return (features, *[hidden] * (layers - 1), data.num_classes or hidden)


def _of_module(model: nn.Module) -> Workload:
    convs: list[Any] = [layer.conv for layer in model.layers] if isinstance(model, GNN) else [model]
    kinds = {_kind(conv) for conv in convs}
    if len(kinds) > 1:
        raise ValueError(f"layers of several kinds ({', '.join(sorted(kinds))}) are planned one kind at a time: pass their widths")
    dims = [_wide(convs[0]), *(_narrow(conv) for conv in convs)]
    heads = max((conv.heads for conv in convs if isinstance(conv, GATConv)), default=8)
    first = model.layers[0] if isinstance(model, GNN) else None
    rates = (float(getattr(first, name, 0.0)) for name in ("after", "before"))
    return Workload(kinds.pop(), tuple(dims), heads, *rates)


def _kind(conv: nn.Module) -> Kind:
    for kind, layer in (("gcn", GCNConv), ("gin", GINConv), ("sage", SAGEConv)):
        if isinstance(conv, layer):
            return kind  # type: ignore[return-value]
    if isinstance(conv, GATConv):
        return "gatv2" if conv.v2 else "gat"
    raise ValueError(f"a {type(conv).__name__} cannot be planned for: pass a GNN of {', '.join(KINDS)}, or widths")


def _linears(conv: GINConv) -> list[nn.Linear]:
    maps = [module for module in conv.nn.modules() if isinstance(module, nn.Linear)]
    if not maps:
        raise ValueError("this GINConv's network has no Linear: pass widths in place of the model")
    return maps


def _wide(conv: Any) -> int:
    if isinstance(conv, GINConv):
        return _linears(conv)[0].in_features
    return int(conv.in_channels[0] if isinstance(conv.in_channels, tuple) else conv.in_channels)


def _narrow(conv: Any) -> int:
    if isinstance(conv, GINConv):
        return _linears(conv)[-1].out_features
    return int(conv.out_channels) * (conv.heads if isinstance(conv, GATConv) and conv.concat else 1)
