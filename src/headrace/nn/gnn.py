"""`GNN`: a stack of convolutions that takes a batch, sampled or whole, and can be run layer by layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, Protocol, cast, get_args

from torch import Tensor, nn

from headrace.kernels import dropout
from headrace.nn.convs.gat import GATConv
from headrace.nn.convs.gcn import GCNConv
from headrace.nn.convs.gin import GINConv
from headrace.nn.convs.sage import SAGEConv
from headrace.nn.first_sum import FirstSum
from headrace.nn.split import LayerSplit
from headrace.nn.structure import Structure, targets_of

Kind = Literal["sage", "gcn", "gin", "gat", "gatv2"]
KINDS: tuple[Kind, ...] = ("sage", "gcn", "gin", "gat", "gatv2")
Norm = Literal["none", "batch", "layer"]
_MOST_LAYERS = 10_000


class Batch(Protocol):
    """What a model is given: a loader's `Batch`, or a whole graph as one."""

    @property
    def blocks(self) -> Any: ...  # structures, the seeds' first

    @property
    def x(self) -> Tensor | None: ...

    @property
    def n_id(self) -> Tensor: ...

    @property
    def table(self) -> Tensor | None: ...  # the array of all features, if rows can be read from it by `n_id`

    @property
    def degree(self) -> Tensor: ...


class Layer(nn.Module):
    """Dropout, convolution, norm, activation, with the own row added where `residual`."""

    def __init__(
        self,
        conv: nn.Module,
        in_channels: int,
        out_channels: int,
        *,
        before: float = 0.0,
        after: float = 0.0,
        norm: Norm = "none",
        activation: Literal["relu", "elu", "none"] = "relu",
        residual: bool = False,
    ) -> None:
        super().__init__()
        self.conv, self.before, self.after, self.activation = conv, before, after, activation
        self.out_channels = out_channels
        self.norm = _norm(norm, out_channels)
        self.skip: nn.Module | None = None
        if residual:
            self.skip = nn.Identity() if in_channels == out_channels else nn.Linear(in_channels, out_channels, bias=False)

    @property
    def reads_ids(self) -> bool:
        """Whether rows can be read by id from the feature array. With dropout of the input they are needed as a copy."""
        return bool(getattr(self.conv, "reads_ids", False)) and not (self.training and self.before)

    def split(self) -> LayerSplit:
        """This layer by the columns of its input (`Split`); SplitError where it is not linear in them."""
        return LayerSplit(self)

    def forward(self, x: Tensor, where: Structure, *, ids: Tensor | None = None, summed: Tensor | None = None) -> Tensor:
        """New rows of the targets. `summed` are sums of `x` that the batch keeps (`FirstSum`)."""
        if self.before and self.training:
            x = dropout(x, self.before)
        more = {"ids": ids, "summed": summed}
        out: Tensor = self.conv(x, where, **{name: value for name, value in more.items() if value is not None})
        return self.finish(out, None if self.skip is None else self.skip(targets_of(x, where, ids)))

    def finish(self, out: Tensor, skipped: Tensor | None, *, ids: Tensor | None = None, seed: int | None = None) -> Tensor:
        """What follows the convolution: norm, the own row that went around it, activation, dropout.

        `ids`: which rows of a whole these are, so that they are dropped as there; `seed`: dropout's, in place of torch's generator.
        """
        if self.norm is not None:
            out = self.norm(out)
        if skipped is not None:
            out = out + skipped
        rate = self.after if self.training else 0.0
        which: dict[str, Any] = {"seed": seed} | ({} if ids is None else {"rows": ids})
        if self.activation == "relu":
            return dropout(out, rate, relu=True, **which)
        if self.activation == "elu":
            out = nn.functional.elu(out)
        return dropout(out, rate, **which)


class GNN(nn.Module):
    """Layers of one kind: `sage`, `gcn`, `gin`, `gat` or `gatv2`.

    `model(batch)` gives a row per seed. `model.layers` are called one after the other as `x = layer(x, block)`, which is what
    `headrace.train.infer` does with the whole graph. `input_dropout` (by default that of the paper: as `dropout` for gcn and gat,
    none for the others) is applied to the features; without it a sampled first layer reads features in place, and one over a
    whole graph may keep its sums (`FirstSum`).
    `hidden` is the width over all heads. `inner_norm` is the norm inside gin's network; a batch norm is the paper's. With another,
    and no `norm="batch"`, a node's row depends on no other node of its batch.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=1000, edges=20000, classes=4, features=16)
    >>> model = hr.nn.GNN(16, 32, 4, layers=2)
    >>> batch = next(iter(hr.loader.NeighborLoader(data, [5, 5], "train", batch_size=10)))
    >>> model(batch).shape
    torch.Size([10, 4])
    """

    def __init__(
        self,
        in_channels: int,
        hidden: int,
        out_channels: int,
        *,
        layers: int = 3,
        conv: Kind = "sage",
        dropout: float = 0.5,
        input_dropout: float | None = None,
        norm: Norm = "none",
        residual: bool = False,
        heads: int = 8,
        activation: Literal["relu", "elu", "none"] | None = None,
        inner_norm: Norm = "batch",
    ) -> None:
        config = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        self.config = config  # the arguments, of which an equal model can be made
        if layers < 1:
            raise ValueError(f"layers must be at least 1, not {layers}")
        if layers > _MOST_LAYERS:
            raise ValueError(f"layers must be at most {_MOST_LAYERS}, not {layers}")
        if conv not in KINDS:
            raise ValueError(f"conv must be one of {', '.join(KINDS)}, not {conv!r}")
        for name, kind in (("norm", norm), ("inner_norm", inner_norm)):
            if kind not in get_args(Norm):
                raise ValueError(f"{name} must be 'none', 'batch' or 'layer', not {kind!r}")
        if inner_norm != "batch" and conv != "gin":
            raise ValueError(f"inner_norm is the norm inside the network of gin, and {conv} has none: leave it out")
        if activation not in (None, "relu", "elu", "none"):
            raise ValueError(f"activation must be 'relu', 'elu' or 'none', not {activation!r}")
        for name, rate in (("dropout", dropout), ("input_dropout", input_dropout or 0.0)):
            if not 0 <= rate < 1:
                raise ValueError(f"{name} must be from 0 to below 1, not {rate}")
        attention = conv in ("gat", "gatv2")
        if attention and (heads < 1 or hidden % heads):
            raise ValueError(f"hidden must be a multiple of heads, but {hidden} is not one of {heads}")
        if input_dropout is None:
            input_dropout = dropout if attention or conv == "gcn" else 0.0
        if activation is None:
            activation = "elu" if attention else "relu"
        stack = []
        for i in range(layers):
            last = i == layers - 1
            wide, narrow = in_channels if i == 0 else hidden, out_channels if last else hidden
            stack.append(
                Layer(
                    _conv(conv, wide, narrow, hidden, 1 if last else heads, dropout, inner_norm),
                    wide,
                    narrow,
                    before=input_dropout if i == 0 else 0.0,
                    after=0.0 if last else dropout,
                    norm="none" if last else norm,
                    activation="none" if last else activation,
                    residual=residual and not last,
                )
            )
        self.layers = nn.ModuleList(stack)

    @property
    def reads_table(self) -> bool:
        """Whether the first layer reads features in place, by id, where the batch allows it."""
        return bool(self.layers[0].reads_ids)

    def forward(self, batch: Batch) -> Tensor:
        """A row per seed.  # -> [batch_size, out_channels]"""
        blocks = batch.blocks
        if len(blocks) != len(self.layers):
            raise ValueError(
                f"the model has {len(self.layers)} layers, the batch has {len(blocks)} hops: give one fanout per layer"
            )
        pulled: Sequence[Tensor] | None = getattr(batch, "pulled", None)
        x, ids, summed = (None, None, None) if pulled is not None else self._read(batch)
        for layer, block in zip(self.layers, reversed(blocks), strict=True):
            if getattr(layer.conv, "wants_degree", False) and getattr(block, "degree", 0) is None and pulled is None:
                block = dataclasses.replace(block, degree=batch.degree[: block.num_src])
            if pulled is not None:  # ranks that hold slices of the features have computed its linear part
                x, pulled = cast(Layer, layer).split().finish(pulled, block), None
            else:
                x, ids, summed = layer(x, block, ids=ids, summed=summed), None, None
        assert x is not None
        return x

    def _read(self, batch: Batch) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The input of the first layer: rows, or a table and the ids of rows in it; and kept sums of them, if any."""
        table = batch.table if self.reads_table else None
        x, ids = (batch.x, None) if table is None else (table, batch.n_id)
        if x is None:
            raise ValueError("the batch has no features: give the dataset an x")
        kept: FirstSum | None = getattr(batch, "first_sum", None)
        return x, ids, None if kept is None else kept.of(cast(Layer, self.layers[0]), x, batch.blocks[-1])


def _conv(kind: Kind, wide: int, narrow: int, hidden: int, heads: int, rate: float, inner_norm: Norm) -> nn.Module:
    if kind == "sage":
        return SAGEConv(wide, narrow)
    if kind == "gcn":
        return GCNConv(wide, narrow)
    if kind == "gin":
        steps = (nn.Linear(wide, hidden), _norm(inner_norm, hidden), nn.ReLU(), nn.Linear(hidden, narrow))
        return GINConv(nn.Sequential(*(step for step in steps if step is not None)))
    return GATConv(wide, narrow // heads, heads=heads, dropout=rate, v2=kind == "gatv2")


def _norm(kind: Norm, width: int) -> nn.Module | None:
    if kind == "none":
        return None
    return nn.BatchNorm1d(width) if kind == "batch" else nn.LayerNorm(width)
