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
        self._fixed, self._at, self.width = fixed, neighborhood, fixed.wide
        factors = fixed.factors(neighborhood.forward.rows(0, neighborhood.num_own, neighborhood.degree), dtype)
        own_scale = None if factors.scale is None else factors.scale[: neighborhood.num_own]
        self._scale, self._row_scale, self._own = own_scale, factors.row_scale, factors.own

    def gather(self, rows: Tensor, begin: int, end: int) -> Tensor:
        """Sums of own rows `begin` to `end`.  # [own + ghosts, d] -> [end - begin, d]"""
        return self._fixed.make(rows, self._at.forward.rows(begin, end, self._at.degree))

    def scaled(self, gradient: Tensor, begin: int, end: int) -> Tensor:
        """What those who gather back read of the sums' gradient.  # [n, d] -> [n, d]"""
        return gradient if self._row_scale is None else gradient * self._row_scale[begin:end, None]

    def kept(self, gradient: Tensor, begin: int, end: int) -> Tensor | None:
        """The part of the sums' gradient that goes to the same nodes; None where there is none.  # [n, d] -> [n, d]"""
        return None if self._own is None else gradient * self._own[begin:end, None]

    def gather_back(self, scaled: Tensor, begin: int, end: int) -> Tensor:
        """The gradient of own rows, of what is scaled.  # [own + ghosts, d] -> [n, d]"""
        where = self._at.backward.rows(begin, end)
        factor = None if self._scale is None else self._scale[begin:end]
        return aggregate(scaled, where.indptr, where.indices, row_scale=factor)
