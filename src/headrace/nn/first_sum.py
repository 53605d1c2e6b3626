"""`FirstSum`: the first layer's sums of the features over neighbors, which training on a whole graph need make only once.

Features that are not learnt are the same at every step, and so is `A X`: a step that has it is a product alone, exactly. It is made
at the features' full width, even where a layer would otherwise map first and sum the smaller one: over many steps that is less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from headrace.nn.order import Order, keeping_pays
from headrace.nn.structure import Structure

Keep = Literal["auto", "always", "never"]
KEEP: tuple[Keep, ...] = ("auto", "always", "never")


@dataclass(frozen=True, eq=False)
class Factors:
    """A sum over neighbors by its factors: `row_scale[i]` times the sum of `weight[e] scale[j] x[j]`, plus `own[i] x[i]`.

    Its gradient has the same form over reversed edges, with the two scales exchanged. What is None is 1, and `own` 0.
    """

    weight: Tensor | None = None  # [entries]
    scale: Tensor | None = None  # [num_src]
    row_scale: Tensor | None = None  # [num_dst]
    own: Tensor | None = None  # [num_dst]

    def rows(self, first: int, count: int) -> Factors:
        """For some of the targets."""
        cut = (None if values is None else values[first : first + count] for values in (self.row_scale, self.own))
        return Factors(self.weight, self.scale, *cut)


@dataclass(frozen=True)
class FixedSum:
    """What a layer sums before anything that is learnt: layers of one `key` sum the same."""

    key: tuple[Any, ...]
    make: Callable[[Tensor, Structure], Tensor]  # of the features  # [num_src, wide] -> [num_dst, wide]
    wide: int
    narrow: int
    order: Order = "auto"  # in which the layer would sum otherwise
    adds_own: bool = False  # whether the own row is added at every step, before the product
    factors: Callable[[Structure, torch.dtype], Factors] | None = None  # of what `make` does, where that is linear


class FirstLayer(Protocol):
    """A layer, as far as its first sum goes."""

    conv: Any
    before: float  # dropout of the input


class FirstSum:
    """Keeps the sums of one array of features over one graph: for each kind of layer, and each type that products are in.

    uses: how many times a model will be run; `keep="auto"` keeps sums where they cost less over that many (`keeping_pays`).
    `reason` says what was decided, and `nbytes` what it takes.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=1000, edges=20000, classes=4, features=16)
    >>> batch = hr.loader.WholeBatch(data, 2, uses=100)
    >>> _ = hr.nn.GNN(16, 32, 4, layers=2)(batch)
    >>> batch.first_sum.nbytes, batch.first_sum.reason
    (64000, 'kept: 100 uses of a sum over 16 columns that never changes')
    """

    def __init__(self, uses: int = 1, *, keep: Keep = "auto") -> None:
        if keep not in KEEP:
            raise ValueError(f"keep must be one of {', '.join(KEEP)}, not {keep!r}")
        if uses < 1:
            raise ValueError(f"uses must be at least 1, not {uses}")
        self.uses, self.keep = uses, keep
        self.reason = "no layer has asked yet"
        self._of: tuple[Tensor, int, Structure] | None = None  # the features, their version, the graph
        self._kept: dict[tuple[Any, ...], Tensor] = {}
        self._no_room: str | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept."""
        return sum(kept.nbytes for kept in self._kept.values())

    def decide(self, layer: FirstLayer, x: Tensor, where: Structure) -> FixedSum | None:
        """What would be kept for this layer, if anything; `reason` says why."""
        make_sum = getattr(layer.conv, "fixed_sum", None)
        fixed: FixedSum | None = None if make_sum is None else make_sum()
        why_not = self._why_not(layer, fixed, x, where)
        if fixed is None or why_not is not None:
            self.reason = f"not kept: {why_not}"
            return None
        self.reason = f"kept: {self.uses} uses of a sum over {fixed.wide} columns that never changes"
        return fixed

    def of(self, layer: FirstLayer, x: Tensor, where: Structure) -> Tensor | None:
        """The sums that this layer begins with, or None where it must make its own.  # -> [num_dst, wide]"""
        fixed = self.decide(layer, x, where)
        if fixed is None:
            return None
        self._forget_others(x, where)
        dtype = x.dtype if fixed.adds_own else _product_type(x)
        key = (*fixed.key, dtype)
        if key not in self._kept:
            try:
                with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
                    self._kept[key] = fixed.make(x, where).to(dtype)
            except torch.cuda.OutOfMemoryError:
                torch.cuda.empty_cache()
                self._no_room = f"there is no room for it on {x.device}"
                self.reason = f"not kept: {self._no_room}"
                return None
        return self._kept[key]

    def _why_not(self, layer: FirstLayer, fixed: FixedSum | None, x: Tensor, where: Structure) -> str | None:
        if self.keep == "never":
            return "switched off"
        if self._no_room is not None:  # it is not tried again
            return self._no_room
        if fixed is None:
            return "what the first layer sums is learnt"
        if layer.before:
            return "dropout of the input changes the features at every step"
        if x.requires_grad:
            return "the features are learnt"
        if x.is_inference():
            return "the features are an inference tensor, whose changes cannot be seen"
        if fixed.order == "transform":
            return "the first layer is told to map before it sums"
        how: dict[str, Any] = {"uses": self.uses, "order": fixed.order, "adds_own": fixed.adds_own}
        if self.keep == "auto" and not keeping_pays(where, fixed.wide, fixed.narrow, **how):
            return f"summing at each of {self.uses} uses costs less than once over {fixed.wide} columns"
        return None

    def _forget_others(self, x: Tensor, where: Structure) -> None:
        """Drop what was kept of other features, or of these before they were changed in place."""
        if self._of is None or self._of[0] is not x or self._of[1] != x._version or self._of[2] is not where:
            self._kept.clear()
            self._of = (x, x._version, where)


def _product_type(x: Tensor) -> torch.dtype:
    """The type that a product of `x` is computed in: under autocast, what it would be cast to at every step."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) and x.dtype == torch.float32 else x.dtype
