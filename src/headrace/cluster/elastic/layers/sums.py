"""`LayerSum`: what a layer sums over neighbors, and the gradient of that, for ranges of a server's own rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.cluster.elastic.neighborhood import Neighborhood
from headrace.kernels import aggregate
from headrace.nn import Layer, SplitError
from headrace.nn.first_sum import FixedSum


class LayerSum:
    """The sum of a layer over a `Neighborhood`. SplitError where it is not linear, or learnt.

    Forward it reads rows of own nodes and ghosts. Its gradient is a gather along reversed edges over rows that their owners have
    scaled (`scaled`), plus what stays with a node itself (`kept`).
    """

    def __init__(self, layer: Layer, neighborhood: Neighborhood, dtype: torch.dtype) -> None:
        make_sum: Any = getattr(layer.conv, "fixed_sum", None)
        fixed: FixedSum | None = None if make_sum is None else make_sum()
        if fixed is None or fixed.factors is None:
            raise SplitError(f"{type(layer.conv).__name__} does not begin with a linear sum over neighbors")
        self._at, self.width = neighborhood, fixed.wide
        factors = fixed.factors(neighborhood.forward.rows(0, neighborhood.num_own, neighborhood.degree), dtype)
        self._factors = factors  # of all own rows, made once
        self._own_scale = None if factors.scale is None else factors.scale[: neighborhood.num_own]

    def gather(self, rows: Tensor, begin: int, end: int) -> Tensor:
        """Sums of own rows `begin` to `end`.  # [own + ghosts, d] -> [end - begin, d]"""
        where, factors = self._at.forward.rows(begin, end), self._factors.rows(begin, end - begin)
        out = aggregate(rows, where.indptr, where.indices, scale=factors.scale, row_scale=factors.row_scale)
        return out if factors.own is None else torch.addcmul(out, rows[begin:end], factors.own[:, None])

    def scaled(self, gradient: Tensor, begin: int, end: int) -> Tensor:
        """What those who gather back read of the sums' gradient.  # [n, d] -> [n, d]"""
        row_scale = self._factors.row_scale
        return gradient if row_scale is None else gradient * row_scale[begin:end, None]

    def kept(self, gradient: Tensor, begin: int, end: int) -> Tensor | None:
        """The part of the sums' gradient that goes to the same nodes; None where there is none.  # [n, d] -> [n, d]"""
        own = self._factors.own
        return None if own is None else gradient * own[begin:end, None]

    def gather_back(self, scaled: Tensor, begin: int, end: int) -> Tensor:
        """The gradient of own rows, of what is scaled.  # [own + ghosts, d] -> [n, d]"""
        where = self._at.backward.rows(begin, end)
        factor = None if self._own_scale is None else self._own_scale[begin:end]
        return aggregate(scaled, where.indptr, where.indices, row_scale=factor)
