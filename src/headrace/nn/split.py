"""`Split`: a convolution as a part that is linear in the columns of its input, and what follows.

    conv(x, where) = finish(sum over slices p of mapped(x[:, p], where, weights[:, p]), where)

So ranks that hold some columns each can compute a layer together, and send sums as wide as its output in place of features (P3,
Gandhi and Iyer, OSDI'21, calls the parts transform, sync and apply). What `fixed_sum` makes may be handed to `mapped` as
`summed`: it is what the linear part sums before any weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.kernels import draw_seed, dropout
from headrace.nn.structure import Structure, sources_of, targets_of


class SplitError(ValueError):
    """A layer is not linear in the columns of its input; the message says why."""


class Mapped(Protocol):
    """The linear part. `ids`: source i is row `ids[i]` of `x`; `summed`: sums of `x` that `fixed_sum` made."""

    def __call__(
        self, x: Tensor, where: Structure, weights: Sequence[Tensor], ids: Tensor | None = None, summed: Tensor | None = None
    ) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Attention:
    """Of a layer whose linear part weighs rows by scores (GAT): scores are sums over slices too, and are needed by all.

    `mapped` gives a row per source. Scores of all slices are added; then `mix` is linear in the rows again.
    """

    weights: tuple[str, ...]  # names of what `scores` uses: replicated, its gradient is a sum over slices
    scores: Callable[[Tensor, Structure, Sequence[Tensor]], Tensor]  # [num_src, width] -> [num_src + num_dst, heads]
    mix: Callable[[Tensor, Tensor, Structure, int], Tensor]  # rows, all scores, dropout's seed -> [num_dst, width]
    heads: int
    dropout: float


@dataclass(frozen=True, eq=False)
class ByNode:
    """An attention layer in parts that are computed for each node alone, around the pass over edges (`kernels.attend_rows`).

    `project` gives what a node is to those who read it, and what it is as a reader. The first is its row [n, heads * channels],
    with its part of the score behind it [n, heads] where the kernel takes a `source`; the second is the kernel's `target`.
    """

    project: Callable[[Tensor], tuple[Tensor, Tensor]]  # [n, in] -> [n, source_width], [n, target_width]
    end: Callable[[Tensor], Tensor]  # what attention gave [n, heads * channels] -> rows of the layer
    heads: int
    channels: int
    slope: float
    self_loops: bool
    dropout: float
    pairs: bool  # whether scores are those of `attend_pairs`
    edge_weight: str | None  # the name of its `attention`
    end_weights: tuple[str, ...]  # names of what `end` uses; `project` uses all others

    @property
    def width(self) -> int:
        """Of what attention gives."""
        return self.heads * self.channels

    @property
    def source_width(self) -> int:
        return self.width + (0 if self.pairs else self.heads)

    @property
    def target_width(self) -> int:
        return self.width if self.pairs else self.heads


@dataclass(frozen=True, eq=False)
class Split:
    """A convolution in parts (see above). `weights` names its linear maps: their second dimension is the input's columns."""

    weights: tuple[str, ...]
    width: int  # of the rows that are added up
    mapped: Mapped
    finish: Callable[[Tensor, Structure], Tensor]
    attention: Attention | None = None
    rows: Callable[[Structure], int] = lambda where: where.num_dst  # how many there are of them
    reads_own: bool = True  # whether `mapped` reads the targets' own rows beside what is `summed`
    by_node: ByNode | None = None  # of attention: the same layer cut by nodes


@dataclass(frozen=True)
class Draws:
    """Seeds that a layer takes from torch's generator before its linear part has ended, in that order."""

    input_dropout: int
    attention: int


class LayerSplit:
    """A `Layer` by columns of its input: what each slice computes, and what follows the sum over slices.

    names: of the linear maps among the layer's parameters; `shared`: of those that every slice uses whole.

    >>> import headrace as hr, torch
    >>> layer, x = hr.nn.Layer(hr.nn.SAGEConv(6, 4), 6, 4), torch.randn(3, 6)
    >>> graph = hr.Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> split, total = layer.split(), []
    >>> for begin, end in ((0, 2), (2, 6)):
    ...     weights = [layer.get_parameter(name)[:, begin:end] for name in split.names]
    ...     total.append(split.parts(split.project(x[:, begin:end], graph, weights, begin=begin, of=6), graph)[0])
    >>> bool(torch.allclose(split.finish([sum(total)], graph), layer(x, graph), atol=1e-6))
    True
    """

    def __init__(self, layer: Any) -> None:
        conv, name = getattr(layer, "conv", None), type(layer).__name__
        if not callable(getattr(conv, "split", None)):
            raise SplitError(f"{name} has no conv with split(), which says how it is computed from columns of its input")
        assert conv is not None
        self.layer, self.conv = layer, cast(Split, conv.split())
        self._skips: Literal["map", "columns"] | None = None
        if layer.skip is not None:
            self._skips = "map" if hasattr(layer.skip, "weight") else "columns"
        self.names = tuple(f"conv.{n}" for n in self.conv.weights) + (("skip.weight",) if self._skips == "map" else ())
        attention = self.conv.attention
        self.shared = () if attention is None else tuple(f"conv.{n}" for n in attention.weights)

    @property
    def reads_ids(self) -> bool:
        """Whether rows can be read by id from an array of all, without a copy of them."""
        return bool(self.layer.reads_ids)

    @property
    def reads_own(self) -> bool:
        """Whether the targets' own rows are read, beside the sums over their neighbors."""
        return self.conv.reads_own or self._skips is not None

    @property
    def heads(self) -> int:
        """Scores of an edge that slices add up before they weigh rows; 0 where there are none."""
        return 0 if self.conv.attention is None else self.conv.attention.heads

    def draws(self, key: int | None = None) -> Draws:
        """Seeds of a batch whose generator begins with `key`; without one, the next of torch's own generator."""
        generator = None if key is None else torch.Generator().manual_seed(key)
        attention = self.conv.attention
        rates = (self.layer.before, 0.0 if attention is None else attention.dropout)
        drawn = self.layer.training
        return Draws(*(draw_seed(generator) if rate and drawn else 0 for rate in rates))

    def project(
        self,
        x: Tensor,
        where: Structure,
        weights: Sequence[Tensor],
        *,
        begin: int,
        of: int,
        ids: Tensor | None = None,
        draws: Draws | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Rows of the linear maps of columns `begin` and on, `of` so many, and of the way around: sums of both are over slices."""
        if self.layer.before and self.layer.training:
            assert draws is not None
            x, ids = sources_of(x, where, ids), None
            x = dropout(x, self.layer.before, seed=draws.input_dropout, columns=(begin, of))
        rows = self.conv.mapped(x, where, weights[: len(self.conv.weights)], ids)
        if self._skips is None:
            return rows, None
        own = targets_of(x, where, ids)
        if self._skips == "map":
            return rows, F.linear(own, weights[-1])
        return rows, F.pad(own, (begin, of - begin - own.shape[1]))

    def scores(self, projected: tuple[Tensor, Tensor | None], where: Structure, shared: Sequence[Tensor]) -> Tensor:
        """What this slice adds to the scores of edges.  # -> [num_src + num_dst, heads]"""
        assert self.conv.attention is not None
        return self.conv.attention.scores(projected[0], where, shared)

    def parts(
        self,
        projected: tuple[Tensor, Tensor | None],
        where: Structure,
        scores: Tensor | None = None,
        draws: Draws | None = None,
    ) -> list[Tensor]:
        """What this slice adds to the rows of the layer, of the shapes of `shapes`; `scores` are those of all slices."""
        rows, skipped = projected
        if self.conv.attention is not None:
            assert scores is not None
            rows = self.conv.attention.mix(rows, scores, where, 0 if draws is None else draws.attention)
        return [rows] if skipped is None else [rows, skipped]

    def shapes(self, where: Structure) -> list[tuple[int, int]]:
        """Rows and width of each of the parts."""
        skipped = [] if self._skips is None else [(where.num_dst, int(self.layer.out_channels))]
        return [(self.conv.rows(where), self.conv.width), *skipped]

    def finish(self, sums: Sequence[Tensor], where: Structure) -> Tensor:
        """New rows of the targets, from the sums of all slices' parts. Takes the seeds that the layer would have taken by now."""
        self.draws()
        out = self.conv.finish(sums[0], where)
        finished: Tensor = self.layer.finish(out, sums[1] if len(sums) > 1 else None)
        return finished
